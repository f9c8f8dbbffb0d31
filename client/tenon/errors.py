"""Typed exceptions, made from the details of a gRPC status.

Every error of the service carries google.rpc.ErrorInfo; its reason (a name of tenon.v1.ErrorReason)
picks the class. An error without one comes from the transport and is picked by its status code.
"""

from collections.abc import Iterable

import grpc
from google.rpc import error_details_pb2, status_pb2

from tenon.v1 import errors_pb2, generation_pb2

STATUS_DETAILS_KEY = "grpc-status-details-bin"
ERROR_DOMAIN = "tenon.dev"

Metadata = Iterable[tuple[str, str | bytes]]


class TenonError(Exception):
    """A call failed.

    code: status code. reason: name of tenon.v1.ErrorReason without its prefix, "" for errors of the
    transport. field: path of the offending request field. metadata: the numbers that the message
    mentions. retry_after: seconds. usage, resumable: set when the generation had begun.
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        reason: str = "",
        field: str | None = None,
        metadata: dict[str, str] | None = None,
        retry_after: float | None = None,
        usage: generation_pb2.Usage | None = None,
        resumable: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.field = field
        self.metadata = metadata or {}
        self.retry_after = retry_after
        self.usage = usage
        self.resumable = resumable


class InvalidRequest(TenonError):
    """A field is missing, malformed or out of range; `field` names it."""


class UnsupportedField(InvalidRequest):
    """A field is valid but the server does not support it; `field` names it."""


class ContextLengthExceeded(InvalidRequest):
    """Prompt and limits exceed the model's context; `metadata` holds the numbers."""


class ConstraintRefused(InvalidRequest):
    """The constraint is malformed, not enforceable or too complex."""


class NotFound(TenonError):
    """No such model or request."""


class AlreadyExists(TenonError):
    """A request with that id is running."""


class Overloaded(TenonError):
    """The queue is full or the request waited too long; try again after `retry_after` seconds."""


class QuotaExceeded(TenonError):
    """A limit of the caller is spent."""


class PermissionDenied(TenonError):
    """The caller is unknown or may not do this."""


class Unavailable(TenonError):
    """The server cannot be reached, drains, loads its model or restarts its engine."""


class DeadlineExceeded(TenonError):
    """The deadline passed or cannot be met."""


class Cancelled(TenonError):
    """The call was cancelled."""


class InternalError(TenonError):
    """The server's fault; `metadata["incident_id"]` finds it in the server's log."""


_BY_REASON: dict[str, type[TenonError]] = {
    "INVALID_FIELD": InvalidRequest,
    "UNSUPPORTED_FIELD": UnsupportedField,
    "CONTEXT_LENGTH_EXCEEDED": ContextLengthExceeded,
    "CONSTRAINT_INVALID": ConstraintRefused,
    "CONSTRAINT_UNSUPPORTED": ConstraintRefused,
    "CONSTRAINT_TOO_COMPLEX": ConstraintRefused,
    "MODEL_NOT_FOUND": NotFound,
    "REQUEST_NOT_FOUND": NotFound,
    "DUPLICATE_REQUEST_ID": AlreadyExists,
    "QUEUE_FULL": Overloaded,
    "QUEUE_TIMEOUT": Overloaded,
    "QUOTA_EXCEEDED": QuotaExceeded,
    "DRAINING": Unavailable,
    "ENGINE_UNAVAILABLE": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "INTERNAL": InternalError,
}

_BY_CODE: dict[grpc.StatusCode, type[TenonError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequest,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedField,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAUTHENTICATED: PermissionDenied,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.INTERNAL: InternalError,
}


def error_from_status(
    code: grpc.StatusCode, message: str | None, trailing_metadata: Metadata | None
) -> TenonError:
    """The typed exception of a failed call."""
    status = _status_details(trailing_metadata)
    info = error_details_pb2.ErrorInfo()
    field = retry_after = usage = None
    resumable = False
    for detail in status.details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            field = _first_field(detail.value)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry_info = error_details_pb2.RetryInfo.FromString(detail.value)
            retry_after = retry_info.retry_delay.ToTimedelta().total_seconds()
        elif detail.Is(errors_pb2.GenerationFailure.DESCRIPTOR):
            failure = errors_pb2.GenerationFailure.FromString(detail.value)
            usage, resumable = failure.usage, failure.resumable
    error_class = _BY_REASON.get(info.reason) or _BY_CODE.get(code, TenonError)
    return error_class(
        message or code.name,
        code=code,
        reason=info.reason,
        field=field,
        metadata=dict(info.metadata),
        retry_after=retry_after,
        usage=usage,
        resumable=resumable,
    )


def _status_details(trailing_metadata: Metadata | None) -> status_pb2.Status:
    for key, value in trailing_metadata or ():
        if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
            return status_pb2.Status.FromString(value)
    return status_pb2.Status()


def _first_field(serialized: bytes) -> str | None:
    violations = error_details_pb2.BadRequest.FromString(serialized).field_violations
    return violations[0].field if violations else None
