"""From tenon.v1.Prompt and Conversation to `PromptSource`."""

import json
from collections.abc import Mapping

from service.errors import invalid, unsupported
from service.options import ChatMessage, ChatPrompt, PromptSource, TextPrompt, TokenPrompt
from service.validation import (
    MAX_NAME_CHARS,
    check_enum,
    check_length,
    check_oneof,
    check_token_ids,
)
from tenon.v1 import generation_pb2, prompt_pb2

MAX_MESSAGES = 2048
MAX_PARTS = 1024
MAX_VARIABLES_BYTES = 64 * 1024

ROLES: Mapping[int, str] = {
    prompt_pb2.ROLE_SYSTEM: "system",
    prompt_pb2.ROLE_DEVELOPER: "developer",
    prompt_pb2.ROLE_USER: "user",
    prompt_pb2.ROLE_ASSISTANT: "assistant",
}


def translate_prompt(
    spec: generation_pb2.GenerationSpec, vocab_size: int, path: str
) -> tuple[PromptSource, bool]:
    """The source of the prompt, and whether an over-long one is cut at its start."""
    if not spec.HasField("prompt"):
        raise invalid(path, "is required")
    prompt = spec.prompt
    kind = check_oneof(path, prompt, "source")
    if prompt.HasField("delivered_output"):
        raise unsupported(f"{path}.delivered_output")
    if prompt.HasField("add_special_tokens") and kind != "text":
        raise invalid(f"{path}.add_special_tokens", f"has no meaning for {kind}")
    check_enum(f"{path}.truncation", prompt.truncation, prompt_pb2.TruncationPolicy.values())
    truncate = prompt.truncation == prompt_pb2.TRUNCATION_POLICY_DROP_OLDEST
    if kind == "conversation":
        return translate_conversation(prompt.conversation, f"{path}.conversation"), truncate
    if kind == "token_ids":
        field = f"{path}.token_ids.ids"
        if not prompt.token_ids.ids:
            raise invalid(field, "must not be empty")
        return TokenPrompt(check_token_ids(field, prompt.token_ids.ids, vocab_size)), truncate
    special = prompt.add_special_tokens if prompt.HasField("add_special_tokens") else None
    return TextPrompt(prompt.text, special), truncate


def translate_conversation(conversation: prompt_pb2.Conversation, path: str) -> ChatPrompt:
    """Validates a conversation. Raises ServiceError for what is wrong or not built in."""
    check_length(f"{path}.messages", conversation.messages, 1, MAX_MESSAGES, "messages")
    _refuse_tools(conversation, path)
    _refuse_reasoning(conversation.reasoning, f"{path}.reasoning")
    messages = tuple(
        _message(message, f"{path}.messages[{index}]")
        for index, message in enumerate(conversation.messages)
    )
    if conversation.continue_final_message and messages[-1].role != "assistant":
        raise invalid(
            f"{path}.continue_final_message", "needs an assistant message as the last one"
        )
    variables = conversation.template_variables_json
    _check_variables(variables, f"{path}.template_variables_json")
    return ChatPrompt(messages, conversation.continue_final_message, variables)


def _refuse_tools(conversation: prompt_pb2.Conversation, path: str) -> None:
    for index, tool in enumerate(conversation.tools):
        check_oneof(f"{path}.tools[{index}]", tool, "kind")
    if conversation.tools:
        raise unsupported(f"{path}.tools")
    if conversation.HasField("tool_choice"):
        kind = check_oneof(f"{path}.tool_choice", conversation.tool_choice, "kind")
        if kind != "none":
            raise unsupported(f"{path}.tool_choice.{kind}")
    if conversation.HasField("parallel_tool_calls"):
        raise unsupported(f"{path}.parallel_tool_calls")


def _refuse_reasoning(reasoning: prompt_pb2.Reasoning, path: str) -> None:
    check_enum(f"{path}.effort", reasoning.effort, prompt_pb2.ReasoningEffort.values())
    for name in ("enabled", "max_tokens"):
        if reasoning.HasField(name):
            raise unsupported(f"{path}.{name}")
    if reasoning.effort != prompt_pb2.REASONING_EFFORT_UNSPECIFIED:
        raise unsupported(f"{path}.effort")


def _message(message: prompt_pb2.Message, path: str) -> ChatMessage:
    check_enum(f"{path}.role", message.role, prompt_pb2.Role.values())
    if message.role == prompt_pb2.ROLE_UNSPECIFIED:
        raise invalid(f"{path}.role", "is required")
    if message.role == prompt_pb2.ROLE_TOOL:
        raise unsupported(f"{path}.role", "ROLE_TOOL is not supported by this server yet")
    if message.tool_calls:
        raise unsupported(f"{path}.tool_calls")
    if message.tool_call_id:
        raise invalid(f"{path}.tool_call_id", "belongs to messages of ROLE_TOOL only")
    if message.reasoning and message.role != prompt_pb2.ROLE_ASSISTANT:
        raise invalid(f"{path}.reasoning", "belongs to messages of ROLE_ASSISTANT only")
    check_length(f"{path}.name", message.name, 0, MAX_NAME_CHARS, "characters")
    check_length(f"{path}.parts", message.parts, 0, MAX_PARTS, "parts")
    for index, part in enumerate(message.parts):
        check_oneof(f"{path}.parts[{index}]", part, "kind")
    content = "".join(part.text for part in message.parts)
    return ChatMessage(ROLES[message.role], content, message.name, message.reasoning)


def _check_variables(text: str, field: str) -> None:
    if not text:
        return
    check_length(field, text, 0, MAX_VARIABLES_BYTES, "characters")
    try:
        variables = json.loads(text)
    except (ValueError, RecursionError):
        raise invalid(field, "is not valid JSON") from None
    if not isinstance(variables, dict):
        raise invalid(field, "must be a JSON object")
