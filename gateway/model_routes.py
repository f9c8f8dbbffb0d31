"""GET /v1/models, /v1/models/{id}, /health and /ready."""

from typing import Any

from starlette.types import Receive, Scope, Send

from gateway import errors
from gateway.catalog import ModelCatalog
from gateway.chunks import encode_json
from gateway.exchange import Exchange
from gateway.service_errors import api_error
from tenon.errors import TenonError
from tenon.v1 import model_pb2

_OVERDUE = errors.ApiError(
    503,
    "The inference service does not answer.",
    type="service_unavailable_error",
    code="server_is_overloaded",
    retry_after=1.0,
)


class Models:
    """The list of models as an ASGI app."""

    def __init__(self, catalog: ModelCatalog) -> None:
        self._catalog = catalog

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        models = await _read(self._catalog)
        body = {"object": "list", "data": [_model_object(model) for model in models]}
        await Exchange.of(scope).respond(200, encode_json(body))


class OneModel:
    """One model by its name, which may hold slashes, as an ASGI app."""

    def __init__(self, catalog: ModelCatalog) -> None:
        self._catalog = catalog

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["model"]
        for model in await _read(self._catalog):
            if name == model.name or name in model.aliases:
                await Exchange.of(scope).respond(200, encode_json(_model_object(model)))
                return
        raise errors.model_not_found(name)


async def health(scope: Scope, receive: Receive, send: Send) -> None:
    """The process is alive; nothing else is asked."""
    await Exchange.of(scope).respond(200, b'{"status":"ok"}')


class Ready:
    """Whether requests would be served, and if not, how far the engine is, as an ASGI app."""

    def __init__(self, catalog: ModelCatalog) -> None:
        self._catalog = catalog

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            models = await self._catalog.read()
        except (TenonError, TimeoutError) as error:
            body = encode_json(_not_ready(error))
            await Exchange.of(scope).respond(503, body, {"retry-after": "1"})
            return
        names = [model.name for model in models]
        await Exchange.of(scope).respond(200, encode_json({"status": "ready", "models": names}))


async def _read(catalog: ModelCatalog) -> list[model_pb2.Model]:
    try:
        return await catalog.models()
    except TenonError as error:
        raise api_error(error, prompt_param="prompt") from error
    except TimeoutError:
        raise _OVERDUE from None


def _model_object(model: model_pb2.Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.load_time.seconds,
        "owned_by": "tenon",
        "max_model_len": model.max_model_len,
    }


def _not_ready(error: TenonError | TimeoutError) -> dict[str, Any]:
    """State, stage and progress (0 to 1) as the service reports them; never its error text."""
    body: dict[str, Any] = {"status": "not_ready", "state": "unreachable"}
    if not isinstance(error, TenonError) or not error.reason:
        return body
    body["state"] = error.metadata.get("state", error.reason.lower())
    if error.metadata.get("stage"):
        body["stage"] = error.metadata["stage"]
    if "progress" in error.metadata:
        body["progress"] = float(error.metadata["progress"])
    return body
