"""The outermost layer: gives each request its id, turns exceptions into error objects, logs."""

import re
import secrets
import time
from typing import Any
from urllib.parse import unquote

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import errors
from gateway.chunks import error_event
from gateway.config import GatewayConfig
from gateway.errors import ApiError
from gateway.exchange import SCOPE_KEY, Exchange
from gateway.json_body import ClientGone, request_header
from gateway.metrics import GatewayMetrics

OPENAI_VERSION = "2020-10-01"
CLIENT_GONE_STATUS = 499
MAX_CLIENT_ID_CHARS = 512
PROBES = ("/health", "/ready")
MAX_HEADERS = 100
MAX_HEADER_BYTES = 64 * 1024
_SLASHES = re.compile(r"/{2,}")


class Lifecycle:
    """Pure ASGI around the routes. No exception passes it."""

    def __init__(self, app: ASGIApp, config: GatewayConfig, metrics: GatewayMetrics) -> None:
        self._app = app
        self._config = config
        self._metrics = metrics
        self._log = structlog.get_logger("tenon.gateway")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(f"req_{secrets.token_hex(16)}", scope, receive, send)
        exchange.send = _sender(exchange, send)
        scope[SCOPE_KEY] = exchange
        _tidy_path(scope)
        self._metrics.begin()
        try:
            await self._serve(exchange)
        finally:
            self._metrics.end(exchange)
            self._write_log(exchange)

    async def _serve(self, exchange: Exchange) -> None:
        try:
            self._check_headers(exchange.scope)
            await self._app(exchange.scope, exchange.receive, exchange.send)
        except ClientGone:
            exchange.status = CLIENT_GONE_STATUS
            exchange.error_code = "client_gone"
        except ApiError as error:
            await self._refuse(exchange, error)
        except Exception:
            incident_id = secrets.token_hex(8)
            self._log.exception("incident", incident_id=incident_id, request_id=exchange.request_id)
            await self._refuse(exchange, errors.internal_error(incident_id))

    def _check_headers(self, scope: Scope) -> None:
        headers = scope["headers"]
        size = sum(len(name) + len(value) for name, value in headers)
        if len(headers) > MAX_HEADERS or size > MAX_HEADER_BYTES:
            message = "The request headers are too large."
            raise ApiError(431, message, code="request_headers_too_large")
        # A page that rebinds its own name to this address must not reach it.
        if not self._config.accepts_host(request_header(scope, b"host")):
            message = "The Host header does not name this server."
            raise ApiError(400, message, code="invalid_host")

    async def _refuse(self, exchange: Exchange, error: ApiError) -> None:
        exchange.error_code = error.code
        if exchange.status is not None:
            # The headers are out, so the error can only be the end of the stream.
            await exchange.send({"type": "http.response.body", "body": error_event(error)})
            return
        await exchange.respond(error.status, error.body(), error.response_headers())

    def _write_log(self, exchange: Exchange) -> None:
        now = time.perf_counter()
        fields: dict[str, Any] = {
            "method": exchange.scope["method"],
            "route": exchange.route,
            "status": exchange.status,
            "request_id": exchange.request_id,
            "milliseconds": round((now - exchange.started_at) * 1000),
        }
        optional = {
            "model": exchange.model,
            "error_code": exchange.error_code,
            "stream": exchange.is_stream,
            "client_request_id": _client_request_id(exchange.scope),
        }
        fields.update({name: value for name, value in optional.items() if value})
        # Probes come every few seconds and would bury the requests of users.
        write = self._log.debug if exchange.route in PROBES else self._log.info
        write("request", **fields)


def _sender(exchange: Exchange, send: Send) -> Send:
    """Adds the headers of every response and notes when and how it was answered."""

    async def send_noting(message: Message) -> None:
        if message["type"] == "http.response.start":
            exchange.status = message["status"]
            message = {**message, "headers": [*message["headers"], *_headers(exchange)]}
        elif exchange.first_byte_at is None and message.get("body"):
            exchange.first_byte_at = time.perf_counter()
        await send(message)

    return send_noting


def _headers(exchange: Exchange) -> list[tuple[bytes, bytes]]:
    milliseconds = round((time.perf_counter() - exchange.started_at) * 1000)
    request_id = exchange.request_id.encode()
    return [
        (b"x-request-id", request_id),
        (b"request-id", request_id),
        (b"openai-processing-ms", str(milliseconds).encode()),
        (b"openai-version", OPENAI_VERSION.encode()),
    ]


def _tidy_path(scope: Scope) -> None:
    """Collapses doubled slashes and drops trailing ones, before percent signs are decoded."""
    raw = scope.get("raw_path") or scope["path"].encode()
    path = _SLASHES.sub("/", raw.decode("latin-1").partition("?")[0])
    scope["path"] = unquote(path.rstrip("/")) or "/"


def _client_request_id(scope: Scope) -> str:
    """What the caller named its request; only ever logged."""
    value = request_header(scope, b"x-client-request-id")[:MAX_CLIENT_ID_CHARS]
    return value if value.isascii() and value.isprintable() else ""
