"""The tools of a chat request and the choice among them, as the service's messages."""

import re
from typing import Any

from gateway import errors
from gateway.fields import Fields, check_string
from gateway.structured import schema_text
from tenon.v1 import prompt_pb2

MAX_TOOLS = 128
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def read_tools(fields: Fields, conversation: prompt_pb2.Conversation) -> str | None:
    """Adds tools, choice and parallel calls to the conversation; an empty array is no tools.

    Returns the function that must be called, if one is named.
    """
    tools = [_read_tool(tool) for tool in fields.objects("tools", MAX_TOOLS) or []]
    names = [tool.function.name for tool in tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise errors.invalid_value(f"tools[{i}].function.name", f"'{name}' is there twice")
    choice = _read_tool_choice(fields, set(names))
    parallel = fields.boolean("parallel_tool_calls")
    if not tools:
        return None
    conversation.tools.extend(tools)
    if choice is not None:
        conversation.tool_choice.CopyFrom(choice)
    if parallel is not None:
        conversation.parallel_tool_calls = parallel
    return choice.named.name if choice is not None and choice.HasField("named") else None


def _read_tool(tool: Fields) -> prompt_pb2.Tool:
    path = tool.path_of("type")
    kind = check_string(tool.require("type"), path, choices=("function", "custom"))
    if kind == "custom":
        raise errors.unsupported_value(path, "must be 'function'")
    tool.require("function")
    function = tool.object("function")
    assert function is not None
    name = check_string(function.require("name"), function.path_of("name"))
    if not TOOL_NAME.fullmatch(name):
        reason = "expected 1 to 64 letters, digits, underscores or dashes"
        raise errors.invalid_value(function.path_of("name"), reason)
    parameters = function.value("parameters")
    path = function.path_of("parameters")
    declaration = prompt_pb2.FunctionTool(
        name=name,
        description=function.string("description") or "",
        parameters_json_schema="" if parameters is None else schema_text(parameters, path),
        strict=function.boolean("strict"),
    )
    function.check_unknown()
    tool.check_unknown()
    return prompt_pb2.Tool(function=declaration)


def _read_tool_choice(fields: Fields, names: set[str]) -> prompt_pb2.ToolChoice | None:
    value = fields.value("tool_choice")
    if value is None:
        return None
    if isinstance(value, str):
        return _choice_by_word(value, names)
    if not isinstance(value, dict):
        raise errors.invalid_type("tool_choice", "a string or an object", value)
    choice = fields.object("tool_choice")
    assert choice is not None
    kinds = ("function", "allowed_tools", "custom")
    kind = check_string(choice.require("type"), choice.path_of("type"), choices=kinds)
    if kind == "custom":
        raise errors.unsupported_value(choice.path_of("type"), "must not be 'custom'")
    if kind == "function":
        named = prompt_pb2.ToolChoiceNamed(name=_read_name(choice, names))
        message = prompt_pb2.ToolChoice(named=named)
    else:
        message = prompt_pb2.ToolChoice(allowed=_read_allowed(choice, names))
    choice.check_unknown()
    return message


def _choice_by_word(word: str, names: set[str]) -> prompt_pb2.ToolChoice:
    check_string(word, "tool_choice", choices=("none", "auto", "required"))
    if word == "required":
        if not names:
            raise errors.invalid_value("tool_choice", "'required' needs 'tools'")
        return prompt_pb2.ToolChoice(required=prompt_pb2.ToolChoiceRequired())
    if word == "none":
        return prompt_pb2.ToolChoice(none=prompt_pb2.ToolChoiceNone())
    return prompt_pb2.ToolChoice(auto=prompt_pb2.ToolChoiceAuto())


def _read_allowed(choice: Fields, names: set[str]) -> prompt_pb2.ToolChoiceAllowed:
    choice.require("allowed_tools")
    allowed = choice.object("allowed_tools")
    assert allowed is not None
    path = allowed.path_of("mode")
    mode = check_string(allowed.require("mode"), path, choices=("auto", "required"))
    tools = allowed.objects("tools", MAX_TOOLS)
    if not tools:
        raise errors.empty_array(allowed.path_of("tools"))
    for tool in tools:
        check_string(tool.require("type"), tool.path_of("type"), choices=("function",))
    message = prompt_pb2.ToolChoiceAllowed(
        names=[_read_name(tool, names) for tool in tools], required=mode == "required"
    )
    allowed.check_unknown()
    return message


def _read_name(choice: Fields, names: set[str]) -> str:
    choice.require("function")
    function = choice.object("function")
    assert function is not None
    path = function.path_of("name")
    name: Any = check_string(function.require("name"), path)
    if name not in names:
        raise errors.invalid_value(path, f"'{name[:64]}' is not among 'tools'")
    function.check_unknown()
    return str(name)
