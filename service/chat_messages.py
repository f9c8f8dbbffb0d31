"""Brings messages into the form that a template takes, without losing any of their text."""

import json
from typing import Any

from service.chat_probe import TemplateCapabilities

SYSTEM_SEPARATOR = "\n\n"


def normalize_messages(
    messages: list[dict[str, Any]], capabilities: TemplateCapabilities
) -> list[dict[str, Any]]:
    """New messages for the template; the given ones are not changed.

    Text parts are joined in order without separator, absent content is "". A developer message
    becomes a system message unless the template knows developers; several leading system messages
    become one; where the template knows no system role its text goes before the first user's.
    """
    normalized = [_normalize_message(message, capabilities) for message in messages]
    normalized = _merge_leading_system(normalized)
    if not capabilities.system_role:
        normalized = _fold_system_into_user(normalized)
    if capabilities.string_content:
        return normalized
    return [{**message, "content": _as_parts(message["content"])} for message in normalized]


def _normalize_message(
    message: dict[str, Any], capabilities: TemplateCapabilities
) -> dict[str, Any]:
    result = {key: value for key, value in message.items() if value is not None}
    result["content"] = _as_text(message.get("content"))
    if result["role"] == "developer" and not capabilities.developer_role:
        result["role"] = "system"
    if reasoning := message.get("reasoning"):
        # The names under which templates look for it.
        result |= {"reasoning_content": reasoning, "thinking": reasoning}
    if calls := message.get("tool_calls"):
        result["tool_calls"] = [_normalize_call(call, capabilities) for call in calls]
    else:
        result.pop("tool_calls", None)
    return result


def _normalize_call(call: dict[str, Any], capabilities: TemplateCapabilities) -> dict[str, Any]:
    """Arguments as an object or as JSON text; text that is not JSON stays text."""
    function = dict(call["function"])
    arguments = function.get("arguments", "{}")
    if capabilities.object_arguments and isinstance(arguments, str):
        function["arguments"] = _parsed_or_text(arguments)
    elif not capabilities.object_arguments and not isinstance(arguments, str):
        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": function}


def _parsed_or_text(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _merge_leading_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    num_leading = 0
    while num_leading < len(messages) and messages[num_leading]["role"] == "system":
        num_leading += 1
    if num_leading < 2:
        return messages
    text = SYSTEM_SEPARATOR.join(message["content"] for message in messages[:num_leading])
    return [{**messages[0], "content": text}, *messages[num_leading:]]


def _fold_system_into_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not messages or messages[0]["role"] != "system":
        return messages
    system, *rest = messages
    if rest and rest[0]["role"] == "user":
        text = system["content"] + SYSTEM_SEPARATOR + rest[0]["content"]
        return [{**rest[0], "content": text}, *rest[1:]]
    return [{"role": "user", "content": system["content"]}, *rest]


def _as_text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content)


def _as_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}] if text else []
