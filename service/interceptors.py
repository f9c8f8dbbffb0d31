"""What happens around every call: errors become statuses, and one line of log and metrics each.

Layers, outer to inner: error mapper, call record, request check, handler. Exception text never
reaches a client; an incident id does, and the log holds the rest under it.
"""

import asyncio
import contextvars
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from service.errors import ServiceError, client_message, internal, trailing_metadata
from service.metrics import ServiceMetrics

REQUEST_ID_KEY = "x-request-id"
OUR_METHODS = "/tenon."
PROBED_METHODS = ("/ListModels", "/GetModel")

if TYPE_CHECKING:
    # Generic for type checkers only.
    Handler = grpc.RpcMethodHandler[Any, Any] | None

Context = grpc.aio.ServicerContext[Any, Any]
Behavior = Callable[[Any, Context], Awaitable[Any]]

_log = structlog.get_logger("tenon.service")


@dataclass(slots=True)
class CallRecord:
    """What a handler adds to the log line of its call. Times in seconds."""

    request_id: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    first_token_seconds: float | None = None


current_call: contextvars.ContextVar[CallRecord] = contextvars.ContextVar("current_call")


@dataclass(frozen=True, slots=True)
class MalformedRequest:
    """Stands for request bytes that are not a message of the type."""

    type_name: str


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handlers of our own services; health and reflection stay as they are."""

    def __init__(self, metrics: ServiceMetrics) -> None:
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler":
        """Rebuilds the handler of the method with all layers around it."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        if handler is None or not method.startswith(OUR_METHODS):
            return handler
        wrap = self._wrap(method)
        deserialize = tolerant_deserializer(handler.request_deserializer)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                wrap(handler.unary_stream), deserialize, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            wrap(handler.unary_unary), deserialize, handler.response_serializer
        )

    def _wrap(self, method: str) -> Callable[[Any], Any]:
        def wrap(behavior: Behavior) -> Behavior:
            return map_errors(method, record_call(method, self._metrics, check_request(behavior)))

        return wrap


def map_errors(method: str, behavior: Behavior) -> Behavior:
    """Turns every exception into a status with details; cancellation and abort pass."""

    async def call(request: Any, context: Context) -> Any:
        try:
            return await behavior(request, context)
        except ServiceError as error:
            failure = error
            if error.reason == "INTERNAL" and "incident_id" not in error.metadata:
                failure = internal(report_incident(method, error))
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            if context.done():
                return None  # the peer has gone; nobody is left to tell
            failure = internal(report_incident(method, error))
        return await context.abort(
            failure.code, client_message(failure), trailing_metadata(failure)
        )

    return call


def record_call(method: str, metrics: ServiceMetrics, behavior: Behavior) -> Behavior:
    """Gives the call a record, and writes it to log and metrics when the call ends."""

    async def call(request: Any, context: Context) -> Any:
        record = CallRecord(request_id_of(context))
        current_call.set(record)
        arrival = time.monotonic()
        outcome = ("OK", "")
        try:
            return await behavior(request, context)
        except BaseException as error:
            outcome = _outcome_of(error)
            raise
        finally:
            metrics.requests.labels(method.rpartition("/")[2], outcome[0]).inc()
            log_call(method, record, outcome, time.monotonic() - arrival)

    return call


def _outcome_of(error: BaseException) -> tuple[str, str]:
    """Status code and reason of a call that ended with an exception."""
    if isinstance(error, ServiceError):
        return error.code.name, error.reason
    if isinstance(error, asyncio.CancelledError):
        return "CANCELLED", ""
    return "INTERNAL", "INTERNAL"


def check_request(behavior: Behavior) -> Behavior:
    """Refuses requests whose bytes could not be read."""

    async def call(request: Any, context: Context) -> Any:
        if isinstance(request, MalformedRequest):
            message = f"the request is not a valid {request.type_name} message"
            raise ServiceError("INVALID_FIELD", message, field="")
        return await behavior(request, context)

    return call


def tolerant_deserializer(deserialize: Any) -> Callable[[bytes], Any]:
    """Reads a message; bytes that are none become MalformedRequest, for a clear error later."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            owner = getattr(deserialize, "__self__", None)
            return MalformedRequest(getattr(owner, "__name__", "protobuf"))

    return read


def request_id_of(context: Context) -> str:
    """The caller's x-request-id if it is a decent one, else a new id."""
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID_KEY and isinstance(value, str) and 0 < len(value) <= 128:
            return value
    return f"req-{uuid.uuid4().hex}"


def report_incident(method: str, error: BaseException) -> str:
    """Logs what happened and returns the id under which it is found."""
    incident_id = uuid.uuid4().hex[:16]
    # format_exception survives exceptions whose __str__ raises.
    trace = "".join(traceback.format_exception(error))
    _log.error("incident", incident_id=incident_id, method=method, traceback=trace)
    return incident_id


def log_call(method: str, record: CallRecord, outcome: tuple[str, str], seconds: float) -> None:
    """One line per call, without any text of prompts or answers."""
    fields: dict[str, object] = {
        "request_id": record.request_id,
        "method": method,
        "code": outcome[0],
        "seconds": round(seconds, 4),
    }
    if outcome[1]:
        fields["reason"] = outcome[1]
    if record.first_token_seconds is not None:
        fields["first_token_seconds"] = round(record.first_token_seconds, 4)
    for name in ("prompt_tokens", "cached_tokens", "output_tokens"):
        if getattr(record, name) is not None:
            fields[name] = getattr(record, name)
    # A gateway asks for the models whenever it is probed, also while they load.
    is_probe = method.endswith(PROBED_METHODS) and outcome[0] in ("OK", "UNAVAILABLE")
    write = _log.debug if is_probe else _log.info
    write("call", **fields)
