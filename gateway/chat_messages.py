"""The messages of a chat request as messages of the service."""

from typing import Any

from gateway import errors
from gateway.fields import Fields, check_string
from tenon.v1 import prompt_pb2

MAX_MESSAGES = 2048
MAX_PARTS = 512
MAX_TOOL_CALLS = 128
ROLES = {
    "system": prompt_pb2.ROLE_SYSTEM,
    "developer": prompt_pb2.ROLE_DEVELOPER,
    "user": prompt_pb2.ROLE_USER,
    "assistant": prompt_pb2.ROLE_ASSISTANT,
    "tool": prompt_pb2.ROLE_TOOL,
}
OTHER_PARTS = ("image_url", "input_audio", "file")


def read_messages(fields: Fields) -> list[prompt_pb2.Message]:
    """All messages, oldest first. A tool message must answer a call of an earlier message."""
    fields.require("messages")
    items = fields.objects("messages", MAX_MESSAGES) or []
    if not items:
        raise errors.empty_array(fields.path_of("messages"))
    open_calls: set[str] = set()
    messages = []
    for item in items:
        message = _read_message(item)
        open_calls.update(call.id for call in message.tool_calls)
        if message.role == prompt_pb2.ROLE_TOOL and message.tool_call_id not in open_calls:
            reason = "it answers no tool call of an earlier assistant message"
            raise errors.invalid_value(item.path_of("tool_call_id"), reason)
        messages.append(message)
    return messages


def _read_message(item: Fields) -> prompt_pb2.Message:
    name = check_string(item.require("role"), item.path_of("role"))
    if name == "function":
        reason = "must not be 'function': use 'tool' instead"
        raise errors.unsupported_value(item.path_of("role"), reason)
    role = ROLES[check_string(name, item.path_of("role"), choices=tuple(ROLES))]
    message = prompt_pb2.Message(role=role, name=item.string("name", max_length=256) or "")
    if role == prompt_pb2.ROLE_ASSISTANT:
        _read_assistant(item, message)
    else:
        message.parts.extend(_read_content(item, item.require("content"), ("text",)))
    if role == prompt_pb2.ROLE_TOOL:
        path = item.path_of("tool_call_id")
        message.tool_call_id = check_string(item.require("tool_call_id"), path, max_length=256)
    item.check_unknown()
    return message


def _read_assistant(item: Fields, message: prompt_pb2.Message) -> None:
    item.refuse("audio", "function_call")
    item.array("annotations", MAX_PARTS)
    message.tool_calls.extend(_read_tool_calls(item))
    refusal = item.string("refusal")
    content = item.value("content")
    if content is None and not message.tool_calls and refusal is None:
        raise errors.missing_parameter(item.path_of("content"))
    if content is not None:
        message.parts.extend(_read_content(item, content, ("text", "refusal")))
    if refusal is not None:
        message.parts.append(prompt_pb2.ContentPart(text=refusal))
    message.reasoning = item.string("reasoning_content") or ""


def _read_content(
    item: Fields, content: Any, kinds: tuple[str, ...]
) -> list[prompt_pb2.ContentPart]:
    if isinstance(content, str):
        return [prompt_pb2.ContentPart(text=content)]
    if not isinstance(content, list):
        path = item.path_of("content")
        raise errors.invalid_type(path, "a string or an array of content parts", content)
    parts = item.objects("content", MAX_PARTS) or []
    return [_read_part(part, kinds) for part in parts]


def _read_part(part: Fields, kinds: tuple[str, ...]) -> prompt_pb2.ContentPart:
    path = part.path_of("type")
    kind = check_string(part.require("type"), path)
    if kind in OTHER_PARTS:
        raise errors.unsupported_value(path, f"is '{kind}', but the models here read only text")
    check_string(kind, path, choices=kinds)
    text = check_string(part.require(kind), part.path_of(kind))
    part.value("prompt_cache_breakpoint")
    part.check_unknown()
    return prompt_pb2.ContentPart(text=text)


def _read_tool_calls(item: Fields) -> list[prompt_pb2.ToolCall]:
    return [_read_tool_call(call) for call in item.objects("tool_calls", MAX_TOOL_CALLS) or []]


def _read_tool_call(call: Fields) -> prompt_pb2.ToolCall:
    kind = check_string(call.require("type"), call.path_of("type"), choices=("function", "custom"))
    if kind == "custom":
        raise errors.unsupported_value(call.path_of("type"), "must be 'function'")
    call.require("function")
    function = call.object("function")
    assert function is not None
    arguments = function.require("arguments")
    message = prompt_pb2.ToolCall(
        id=check_string(call.require("id"), call.path_of("id"), max_length=256),
        name=check_string(function.require("name"), function.path_of("name"), max_length=64),
        arguments_json=check_string(arguments, function.path_of("arguments")),
    )
    call.value("index")
    function.check_unknown()
    call.check_unknown()
    return message
