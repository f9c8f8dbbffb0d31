"""A model's chat template: from messages to the text of a prompt."""

from collections.abc import Iterable, Mapping
from typing import Any

from service.chat_environment import (
    ChatTemplateError,
    ChatTemplateRefused,
    compile_template,
    run_template,
)
from service.chat_guard import ControlTokenGuard, RenderedPrompt
from service.chat_messages import normalize_messages
from service.chat_probe import TemplateCapabilities, probe_template
from service.tokenizer import Tokenizer, control_token_pattern

__all__ = [
    "ChatTemplate",
    "ChatTemplateError",
    "ChatTemplateRefused",
    "RenderedPrompt",
    "TemplateCapabilities",
    "load_chat_template",
]

_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
# The space at the end shows whether the template trims the message.
_CONTINUE_MARK = "\ue000continue here\ue001 "


class ChatTemplate:
    """A compiled template. Immutable; may be shared by threads.

    A template is code of the model's maker: it runs in jinja's sandbox with bounded repetition,
    ranges and output, and in the caller's thread.
    """

    def __init__(
        self,
        source: str,
        bos_token: str | None = None,
        eos_token: str | None = None,
        control_tokens: Iterable[str] = (),
    ) -> None:
        """Raises ChatTemplateError if the source is not a template.

        control_tokens: names that act on the model and must not act when a message mentions them.
        """
        self._template = compile_template(source)
        self._control_pattern = control_token_pattern(control_tokens)
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self.source = source
        self.capabilities = probe_template(source, self._run)

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. See `render_prompt`."""
        return self.render_prompt(
            messages, tools, add_generation_prompt, continue_final_message, variables
        ).text

    def render_prompt(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """The prompt's text, and where it merely mentions control tokens.

        messages, tools: as in OpenAI's chat API. continue_final_message: the text ends inside the
        last message, which must be the assistant's; there is no generation prompt then.
        variables: plain JSON data for the template.
        Raises ChatTemplateRefused with the template's own words, ChatTemplateError if it fails.
        """
        guard = ControlTokenGuard(self._control_pattern)
        prepared = guard.mark(normalize_messages(messages, self.capabilities))
        if continue_final_message:
            prepared = _with_continue_mark(prepared)
        settings = guard.mark(self._checked_variables(variables or {}))
        settings["tools"] = guard.mark(tools) if tools else None
        settings["add_generation_prompt"] = add_generation_prompt and not continue_final_message
        rendered = self._run(prepared, settings)
        if continue_final_message:
            rendered = _cut_at_continue_mark(rendered)
        return guard.unmark(rendered)

    def _run(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        defaults = {"tools": None, "documents": None, "add_generation_prompt": False}
        return run_template(
            self._template, {**defaults, **self._tokens, **variables, "messages": messages}
        )

    def _checked_variables(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        taken = sorted(_OWN_VARIABLES.intersection(variables) - {"documents"})
        if taken:
            raise ChatTemplateRefused(f"the template variable {taken[0]!r} is set by the server")
        return dict(variables)


def load_chat_template(tokenizer: Tokenizer, source: str | None = None) -> ChatTemplate | None:
    """The template of a model, or `source` in its place; None where the model has none."""
    source = source if source is not None else tokenizer.chat_template
    if source is None:
        return None
    return ChatTemplate(
        source,
        tokenizer.token_name(tokenizer.bos_id),
        tokenizer.token_name(tokenizer.eos_id),
        tokenizer.special_tokens,
    )


def _with_continue_mark(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not messages or messages[-1]["role"] != "assistant":
        raise ChatTemplateRefused("continue_final_message needs a last message of the assistant")
    *earlier, last = messages
    content = last["content"]
    if isinstance(content, str):
        return [*earlier, {**last, "content": content + _CONTINUE_MARK}]
    text = "".join(part["text"] for part in content) + _CONTINUE_MARK
    return [*earlier, {**last, "content": [{"type": "text", "text": text}]}]


def _cut_at_continue_mark(rendered: str) -> str:
    end = rendered.rfind(_CONTINUE_MARK.rstrip())
    if end < 0:
        raise ChatTemplateError("the chat template drops the final message; it cannot be continued")
    if rendered.startswith(_CONTINUE_MARK, end):
        return rendered[:end]
    return rendered[:end].rstrip()
