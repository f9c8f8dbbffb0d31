"""Learns what a chat template can do by rendering small conversations with it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from service.chat_environment import ChatTemplateError

_MARK = "Zq7Mark"
_REASONING_SWITCHES = ("enable_thinking", "thinking")

# Renders messages with template variables; raises ChatTemplateError.
Renderer = Callable[[list[dict[str, Any]], dict[str, Any]], str]


@dataclass(frozen=True, slots=True)
class TemplateCapabilities:
    """What a template does with a conversation.

    system_role, developer_role, tool_role: it writes messages of that role as such. tools: it
    writes declarations of tools. string_content, typed_content: it takes content as text, as a list
    of parts. object_arguments: it wants a call's arguments as an object and not as JSON text.
    reasoning_switch: the variable that turns reasoning on and off, None where there is none.
    """

    system_role: bool
    developer_role: bool
    tools: bool
    tool_role: bool
    string_content: bool
    typed_content: bool
    object_arguments: bool
    reasoning_switch: str | None


def probe_template(source: str, render: Renderer) -> TemplateCapabilities:
    """Capabilities of the template with this source. Never raises for what the template does."""
    string_content = _writes(render, [{"role": "user", "content": _MARK}])
    typed_content = _takes_parts(render)

    def message(role: str, text: str) -> dict[str, Any]:
        parts = [{"type": "text", "text": text}]
        return {"role": role, "content": text if string_content else parts}

    user = message("user", "Hi")
    # A template that writes any role as it comes knows only those that it names.
    return TemplateCapabilities(
        system_role=_writes(render, [message("system", _MARK), user]),
        developer_role="developer" in source
        and _writes(render, [message("developer", _MARK), user]),
        tools=_writes(render, [user], {"tools": [_tool(_MARK)]}),
        tool_role="tool" in source and _writes_tool_result(render, message),
        string_content=string_content or not typed_content,
        typed_content=typed_content,
        object_arguments="tool_calls" in source and _wants_object_arguments(render, user),
        reasoning_switch=_find_reasoning_switch(source, render, user),
    )


def _writes(
    render: Renderer, messages: list[dict[str, Any]], variables: dict[str, Any] | None = None
) -> bool:
    return _MARK in _rendered(render, messages, variables or {})


def _rendered(render: Renderer, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
    try:
        return render(messages, variables)
    except ChatTemplateError:
        return ""


def _takes_parts(render: Renderer) -> bool:
    """Whether a list of parts is written as its text and not as the list itself."""
    parts = [{"type": "text", "text": _MARK}]
    text = _rendered(render, [{"role": "user", "content": parts}], {})
    return _MARK in text and f"'{_MARK}'" not in text and f'"{_MARK}"' not in text


def _writes_tool_result(render: Renderer, message: Callable[[str, str], dict[str, Any]]) -> bool:
    """Tries arguments as an object and as text, since a template may take only one of them."""
    for arguments in ({"city": "Paris"}, '{"city":"Paris"}'):
        messages = [message("user", "Hi"), _call(arguments)]
        messages.append({**message("tool", _MARK), "tool_call_id": "call00001", "name": "weather"})
        if _writes(render, messages):
            return True
    return False


def _wants_object_arguments(render: Renderer, user: dict[str, Any]) -> bool:
    """Whether JSON text is not written as it is while an object is written."""
    text = f'{{"{_MARK}":1}}'
    if text in _rendered(render, [user, _call(text), user], {}):
        return False
    return f'"{_MARK}"' in _rendered(render, [user, _call({_MARK: 1}), user], {})


def _find_reasoning_switch(source: str, render: Renderer, user: dict[str, Any]) -> str | None:
    for name in _REASONING_SWITCHES:
        if name in source and (
            _rendered(render, [user], {name: True, "add_generation_prompt": True})
            != _rendered(render, [user], {name: False, "add_generation_prompt": True})
        ):
            return name
    return None


def _call(arguments: Any) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    call = {"id": "call00001", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": name, "description": "Weather of a city", "parameters": parameters}
    return {"type": "function", "function": function}
