"""The OpenAI error object and the one table of its codes; knows nothing of gRPC."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

INVALID_REQUEST = "invalid_request_error"
# A number of JSON may have thousands of digits.
MAX_SHOWN_CHARS = 32


@dataclass(slots=True)
class ApiError(Exception):
    """A refusal as the client sees it.

    status: HTTP status. param: dotted path of the offending field. retry_after: seconds until it is
    worth trying again. should_retry: what x-should-retry tells the official clients, None leaves it
    to the status. headers: further response headers.
    """

    status: int
    message: str
    type: str = INVALID_REQUEST
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None
    should_retry: bool | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """The error object as JSON; all four keys are always there."""
        return msgspec.json.encode({"error": self.fields()})

    def fields(self) -> dict[str, Any]:
        """The inside of the error object."""
        return {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }

    def response_headers(self) -> dict[str, str]:
        """Headers that tell clients whether and when to try again."""
        headers = dict(self.headers)
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, round(self.retry_after)))
            headers["retry-after-ms"] = str(max(1, round(self.retry_after * 1000)))
        if self.should_retry is not None:
            headers["x-should-retry"] = "true" if self.should_retry else "false"
        return headers


def invalid_json(reason: str) -> ApiError:
    """The body is not one JSON object."""
    return ApiError(400, f"The request body is not valid: {reason}.", code="invalid_json")


def missing_parameter(param: str) -> ApiError:
    """A required field is absent or null."""
    message = f"Missing required parameter: '{param}'."
    return ApiError(400, message, code="missing_required_parameter", param=param)


def invalid_type(param: str, expected: str, value: object) -> ApiError:
    """A field has the wrong JSON type. expected: with article, for example "a string"."""
    got = json_type(value)
    message = f"Invalid type for '{param}': expected {expected}, but got {got} instead."
    return ApiError(400, message, code="invalid_type", param=param)


def invalid_value(param: str, reason: str) -> ApiError:
    """A field has the right type and a wrong value."""
    return ApiError(
        400, f"Invalid value for '{param}': {reason}.", code="invalid_value", param=param
    )


def out_of_range(param: str, code: str, expected: str, got: object) -> ApiError:
    """A number, length or count is beyond its bound. code: for example integer_above_max_value."""
    what = code.replace("_", " ").replace(" min ", " minimum ").replace(" max ", " maximum ")
    shown = str(got)
    if len(shown) > MAX_SHOWN_CHARS:
        shown = f"{shown[:MAX_SHOWN_CHARS]}..."
    message = f"Invalid '{param}': {what}. Expected {expected}, but got {shown} instead."
    return ApiError(400, message, code=code, param=param)


def empty_array(param: str) -> ApiError:
    """An array that must have items has none."""
    message = f"Invalid '{param}': empty array. Expected an array with at least one item."
    return ApiError(400, message, code="empty_array", param=param)


def unknown_parameter(param: str) -> ApiError:
    """A field that the API does not have."""
    return ApiError(400, f"Unknown parameter: '{param}'.", code="unknown_parameter", param=param)


def unsupported_parameter(param: str, reason: str = "") -> ApiError:
    """A field of the API that this server does not have."""
    message = f"Unsupported parameter: '{param}' is not supported by this server"
    message += f": {reason}." if reason else "."
    return ApiError(400, message, code="unsupported_parameter", param=param)


def unsupported_value(param: str, reason: str) -> ApiError:
    """A value of the API that this server does not have."""
    message = f"Unsupported value: '{param}' {reason}."
    return ApiError(400, message, code="unsupported_value", param=param)


def model_not_found(name: str) -> ApiError:
    """The server does not serve that model."""
    message = f"The model '{name[:256]}' does not exist or is not served here."
    return ApiError(404, message, code="model_not_found", param="model")


def request_too_large(limit: int) -> ApiError:
    """The body is longer than `limit` bytes."""
    message = f"The request body is larger than {limit} bytes."
    return ApiError(413, message, code="request_too_large")


def unsupported_media_type(reason: str) -> ApiError:
    """Content type or encoding is not one that is read."""
    return ApiError(415, reason, code="unsupported_media_type")


def body_timeout(seconds: float) -> ApiError:
    """The body did not arrive in time."""
    message = f"The request body did not arrive within {seconds:g} seconds."
    return ApiError(408, message, type="timeout_error", code="request_timeout")


def internal_error(incident_id: str) -> ApiError:
    """Our fault. The id finds the cause in the log; the client learns nothing else."""
    message = "The server had an error while processing the request."
    if incident_id:
        message += f" Incident: {incident_id}."
    return ApiError(500, message, type="server_error", code="internal_error")


def json_type(value: object) -> str:
    """The JSON type of a decoded value, with its article."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal"
        case str():
            return "a string"
        case list():
            return "an array"
    return "an object"
