"""Assembles the ASGI app: one table of routes, JSON answers for everything else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.catalog import ModelCatalog
from gateway.config import GatewayConfig
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.generation_routes import ChatCompletions, Completions
from gateway.lifecycle import Lifecycle
from gateway.metrics import GatewayMetrics
from gateway.model_routes import Models, OneModel, Ready, health
from tenon import AsyncClient


class NamedRoute:
    """Notes which route serves an exchange, for logs and metrics."""

    def __init__(self, path: str, app: ASGIApp) -> None:
        self._path = path
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        Exchange.of(scope).route = self._path
        await self._app(scope, receive, send)


def build_app(
    config: GatewayConfig, client: AsyncClient, metrics: GatewayMetrics | None = None
) -> Starlette:
    """The gateway in front of one service. The app closes the client when it shuts down."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await client.close()

    metrics = metrics or GatewayMetrics(CollectorRegistry())
    app = Starlette(
        routes=_routes(config, client),
        middleware=[Middleware(Lifecycle, config=config, metrics=metrics)],
        exception_handlers={HTTPException: _refuse},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def _routes(config: GatewayConfig, client: AsyncClient) -> list[Route]:
    catalog = ModelCatalog(client)
    return [
        _route("POST", "/v1/chat/completions", ChatCompletions(client, catalog, config)),
        _route("POST", "/v1/completions", Completions(client, config)),
        _route("GET", "/v1/models", Models(catalog)),
        _route("GET", "/v1/models/{model:path}", OneModel(catalog)),
        _route("GET", "/health", health),
        _route("GET", "/ready", Ready(catalog)),
    ]


def _route(method: str, path: str, app: ASGIApp) -> Route:
    return Route(path, NamedRoute(path, app), methods=[method])


async def _refuse(request: Request, error: Exception) -> Response:
    """No such path, or no such method on it."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        refusal = ApiError(
            405,
            f"The method {request.method} is not allowed for this path.",
            code="method_not_supported",
            headers=dict(error.headers or {}),
        )
    else:
        refusal = ApiError(404, "There is no such path.", code="unknown_url")
    Exchange.of(request.scope).error_code = refusal.code
    return Response(
        refusal.body(),
        refusal.status,
        headers={"content-type": "application/json", **refusal.response_headers()},
    )
