"""From an error of the service to the OpenAI error object: one table by reason, one by status."""

import re

import grpc

from gateway import errors
from gateway.errors import ApiError
from tenon.errors import TenonError

DEFAULT_RETRY_S = 1.0

# Proto paths below `spec`, and the parameter of the API that was translated into them.
_PARAMS = {
    "model": "model",
    "sampling.num_outputs": "n",
    "stop.max_tokens": "max_tokens",
    "stop.stop_strings": "stop",
    "output.logprobs": "logprobs",
    "output.top_logprobs": "top_logprobs",
    "output.prompt_logprobs": "logprobs",
    "constraint": "response_format",
    "scheduling.priority": "priority",
    "cache.narrow": "cache_salt",
    "prompt.conversation.tool_choice": "tool_choice",
    "prompt.conversation.parallel_tool_calls": "parallel_tool_calls",
    "prompt.conversation.reasoning": "reasoning_effort",
    "prompt.conversation": "messages",
}
_MESSAGE = re.compile(r"prompt\.conversation\.(messages\[\d+\])(?:\.(\w+))?")
_MESSAGE_FIELDS = {"parts": "content", "reasoning": "reasoning_content"}
_INDEX = re.compile(r"\[\d+\]$")


def param_of(field: str, prompt_param: str) -> str:
    """The API's name of a request field of the service. prompt_param: where the prompt was."""
    path = field.removeprefix("spec.")
    message = _MESSAGE.match(path)
    if message is not None:
        name = message[2]
        return f"{message[1]}.{_MESSAGE_FIELDS.get(name, name)}" if name else message[1]
    if path.startswith("prompt.conversation.tools"):
        return path.removeprefix("prompt.conversation.").split(".")[0]
    known = _longest_known(path)
    if known is not None:
        return known + (_INDEX.search(path) or [""])[0]
    if path == "prompt" or path.startswith("prompt."):
        return prompt_param
    return path.rpartition(".")[2]


def api_error(
    error: TenonError, *, prompt_param: str, constraint_param: str = "response_format"
) -> ApiError:
    """What the client sees of a failed call. 5xx messages say nothing of the cause."""
    by_reason = _by_reason(error, prompt_param, constraint_param)
    return by_reason if by_reason is not None else _by_status(error, prompt_param)


def _longest_known(path: str) -> str | None:
    path = _INDEX.sub("", path)
    while path:
        if path in _PARAMS:
            return _PARAMS[path]
        path = path.rpartition(".")[0]
    return None


def _by_reason(error: TenonError, prompt_param: str, constraint_param: str) -> ApiError | None:
    match error.reason:
        case "CONTEXT_LENGTH_EXCEEDED" | "KV_CACHE_TOO_SMALL":
            return _refusal(error, "context_length_exceeded", prompt_param)
        case "CONSTRAINT_INVALID" | "CONSTRAINT_UNSUPPORTED" | "CONSTRAINT_TOO_COMPLEX":
            return _refusal(error, "invalid_json_schema", constraint_param)
        case "UNSUPPORTED_FIELD":
            param = _param(error, prompt_param)
            is_constraint = param == "response_format"
            return errors.unsupported_parameter(constraint_param if is_constraint else str(param))
        case "NO_CHAT_TEMPLATE":
            return _refusal(error, "unsupported_value", prompt_param)
        case "TEMPLATE_REFUSED":
            return _refusal(error, "invalid_value", prompt_param)
        case "MODEL_NOT_FOUND":
            return ApiError(404, error.message, code="model_not_found", param="model")
        case "QUEUE_FULL" | "QUEUE_TIMEOUT":
            return _overloaded(error, "The server is overloaded: its queue is full.")
        case "DRAINING":
            return _overloaded(error, "The server is shutting down.")
        case "ENGINE_UNAVAILABLE":
            return _overloaded(error, "The model is not ready: it loads or restarts.")
        case "QUOTA_EXCEEDED":
            return _quota(error)
    return None


def _by_status(error: TenonError, prompt_param: str) -> ApiError:
    status = grpc.StatusCode
    match error.code:
        case status.INVALID_ARGUMENT | status.FAILED_PRECONDITION:
            return _refusal(error, "invalid_value", _param(error, prompt_param))
        case status.OUT_OF_RANGE:
            return _refusal(error, "context_length_exceeded", prompt_param)
        case status.UNIMPLEMENTED:
            return errors.unsupported_parameter(_param(error, prompt_param) or "request")
        case status.NOT_FOUND:
            return ApiError(404, error.message)
        case status.UNAUTHENTICATED:
            return ApiError(401, "Incorrect API key provided.", code="invalid_api_key")
        case status.PERMISSION_DENIED:
            message = "The key may not do this."
            return ApiError(403, message, type="permission_error", code="insufficient_permissions")
        case status.ALREADY_EXISTS | status.ABORTED:
            return ApiError(409, error.message, code="conflict", should_retry=False)
        case status.RESOURCE_EXHAUSTED:
            return _quota(error)
        case status.DEADLINE_EXCEEDED:
            return _deadline()
        case status.UNAVAILABLE:
            return _overloaded(error, "The inference service cannot be reached.")
    return errors.internal_error(error.metadata.get("incident_id", ""))


def _param(error: TenonError, prompt_param: str) -> str | None:
    return param_of(error.field, prompt_param) if error.field else None


def _refusal(error: TenonError, code: str, param: str | None) -> ApiError:
    """A 400 with the service's own words, in which its field path becomes the API's."""
    message = error.message
    if error.field and param:
        message = message.replace(error.field, f"'{param}'")
    return ApiError(400, message, code=code, param=param)


def _overloaded(error: TenonError, message: str) -> ApiError:
    return ApiError(
        503,
        message,
        type="service_unavailable_error",
        code="server_is_overloaded",
        retry_after=error.retry_after or DEFAULT_RETRY_S,
    )


def _quota(error: TenonError) -> ApiError:
    if error.retry_after is None:
        quota = "insufficient_quota"
        return ApiError(429, error.message, type=quota, code=quota, should_retry=False)
    return ApiError(
        429,
        error.message,
        type="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after=error.retry_after,
    )


def _deadline() -> ApiError:
    # The work was done once; doing it again would meet the same deadline.
    message = "The request did not finish within its deadline."
    return ApiError(
        504, message, type="timeout_error", code="deadline_exceeded", should_retry=False
    )
