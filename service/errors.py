"""The one table from error reasons to gRPC status codes, and errors as google.rpc details.

`ServiceError` is the only exception whose text reaches a client.
"""

from collections.abc import Mapping

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from engine.request import RequestError
from tenon.errors import ERROR_DOMAIN, STATUS_DETAILS_KEY
from tenon.v1 import errors_pb2

PUSHBACK_KEY = "grpc-retry-pushback-ms"
# Proxies cap headers at 8 KiB and base64 adds a third.
MAX_MESSAGE_CHARS = 512
MAX_METADATA_CHARS = 256
DEFAULT_RETRY_AFTER = 1.0

STATUS_CODES: Mapping[str, grpc.StatusCode] = {
    "INVALID_FIELD": grpc.StatusCode.INVALID_ARGUMENT,
    "UNSUPPORTED_FIELD": grpc.StatusCode.UNIMPLEMENTED,
    "CONTEXT_LENGTH_EXCEEDED": grpc.StatusCode.INVALID_ARGUMENT,
    "CONSTRAINT_INVALID": grpc.StatusCode.INVALID_ARGUMENT,
    "CONSTRAINT_UNSUPPORTED": grpc.StatusCode.INVALID_ARGUMENT,
    "CONSTRAINT_TOO_COMPLEX": grpc.StatusCode.INVALID_ARGUMENT,
    "MODEL_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "REQUEST_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "DUPLICATE_REQUEST_ID": grpc.StatusCode.ALREADY_EXISTS,
    "QUEUE_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "QUEUE_TIMEOUT": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "QUOTA_EXCEEDED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "KV_CACHE_TOO_SMALL": grpc.StatusCode.INVALID_ARGUMENT,
    "DRAINING": grpc.StatusCode.UNAVAILABLE,
    "ENGINE_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "INTERNAL": grpc.StatusCode.INTERNAL,
    "DEADLINE_EXCEEDED": grpc.StatusCode.DEADLINE_EXCEEDED,
    "ABORTED_BY_OPERATOR": grpc.StatusCode.ABORTED,
    "NO_CHAT_TEMPLATE": grpc.StatusCode.FAILED_PRECONDITION,
    "TEMPLATE_REFUSED": grpc.StatusCode.INVALID_ARGUMENT,
    "CANCELLED_BY_CALLER": grpc.StatusCode.CANCELLED,
    "SLOW_READER": grpc.StatusCode.RESOURCE_EXHAUSTED,
}

# Errors that pass by themselves: they carry RetryInfo and gRPC's own pushback.
RETRYABLE_REASONS = frozenset({"QUEUE_FULL", "QUEUE_TIMEOUT", "DRAINING", "ENGINE_UNAVAILABLE"})


class ServiceError(Exception):
    """A request is refused or failed, for a reason that its caller may know.

    reason: a name of tenon.v1.ErrorReason without its prefix. field: path of the field in the
    request message. metadata: everything dynamic in the message. retry_after: seconds.
    failure: set when output had begun.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        field: str | None = None,
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        failure: errors_pb2.GenerationFailure | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.code = STATUS_CODES[reason]
        self.message = message
        self.field = field
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after
        self.failure = failure
        if reason in RETRYABLE_REASONS and retry_after is None:
            self.retry_after = DEFAULT_RETRY_AFTER


def invalid(field: str, problem: str) -> ServiceError:
    """INVALID_FIELD: `problem` goes on after the field's path ("must be at least 1")."""
    return ServiceError("INVALID_FIELD", f"{field} {problem}", field=field)


def unsupported(field: str, problem: str = "is not supported by this server yet") -> ServiceError:
    """UNSUPPORTED_FIELD: valid, but not built in."""
    return ServiceError("UNSUPPORTED_FIELD", f"{field} {problem}", field=field)


def internal(incident_id: str) -> ServiceError:
    """Our fault; the log has what happened under the incident id."""
    return ServiceError(
        "INTERNAL",
        f"internal error; the server's log has it as incident {incident_id}",
        metadata={"incident_id": incident_id},
    )


def from_engine(error: RequestError | None) -> ServiceError:
    """The error of a request that the engine refused or dropped."""
    if error is None or error.reason not in STATUS_CODES:
        raise AssertionError(f"the engine gave an unknown error: {error}")
    metadata = dict(error.metadata)
    seconds = metadata.get("retry_after_seconds")
    return ServiceError(
        error.reason,
        error.message,
        metadata=metadata,
        retry_after=float(seconds) if seconds is not None else None,
    )


def trailing_metadata(error: ServiceError) -> tuple[tuple[str, str | bytes], ...]:
    """What is sent beside code and message: google.rpc.Status with details, and the pushback."""
    status = status_pb2.Status(code=error.code.value[0], message=client_message(error))
    status.details.extend(_details(error))
    pairs: list[tuple[str, str | bytes]] = [(STATUS_DETAILS_KEY, status.SerializeToString())]
    if error.retry_after is not None:
        pairs.append((PUSHBACK_KEY, str(max(0, round(error.retry_after * 1000)))))
    return tuple(pairs)


def client_message(error: ServiceError) -> str:
    """The message, short enough for a header."""
    return error.message[:MAX_MESSAGE_CHARS]


def _details(error: ServiceError) -> list[any_pb2.Any]:
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN)
    for key, value in error.metadata.items():
        info.metadata[key] = value[:MAX_METADATA_CHARS]
    details = [_pack(info)]
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field[:MAX_METADATA_CHARS], description=client_message(error)
        )
        details.append(_pack(error_details_pb2.BadRequest(field_violations=[violation])))
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(max(0, round(error.retry_after * 1000)))
        details.append(_pack(retry))
    if error.failure is not None:
        details.append(_pack(error.failure))
    return details


def _pack(
    message: error_details_pb2.ErrorInfo
    | error_details_pb2.BadRequest
    | error_details_pb2.RetryInfo
    | errors_pb2.GenerationFailure,
) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
