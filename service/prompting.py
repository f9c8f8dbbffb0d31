"""From a prompt's source to token ids: render, tokenize, fit into the context."""

import asyncio
import json
from collections.abc import Callable
from typing import TypeVar

from service.chat_template import ChatTemplate, ChatTemplateError, RenderedPrompt
from service.errors import ServiceError, invalid
from service.options import ChatMessage, ChatPrompt, PromptSource, TextPrompt, TokenPrompt
from service.runtime import ModelAssets

# Below this many characters tokenizing takes less than handing it to a thread costs others.
INLINE_CHARS = 4096

_Result = TypeVar("_Result")


async def tokenize_prompt(assets: ModelAssets, source: PromptSource, path: str) -> tuple[int, ...]:
    """Token ids of a prompt; long ones are rendered and encoded off the event loop.

    path: that of the prompt, for errors. Raises ServiceError.
    """
    if isinstance(source, TokenPrompt):
        return source.ids
    if isinstance(source, TextPrompt):
        text = source.text
        encode = assets.tokenizer.encode
        ids = await run_sized(
            len(text),
            # Whoever writes the whole prompt writes its control tokens too.
            lambda: encode(text, add_special_tokens=source.add_special_tokens, parse_special=True),
        )
    else:
        chat = source
        size = sum(len(message.content) for message in chat.messages)
        _, ids = await run_sized(size, lambda: render_and_encode(assets, chat, path))
    if not ids:
        raise invalid(path, "is empty: it has no tokens to continue")
    return tuple(ids)


def render_and_encode(
    assets: ModelAssets, chat: ChatPrompt, path: str
) -> tuple[RenderedPrompt, list[int]]:
    """A conversation as text and as the ids that are fed. Raises ServiceError."""
    if assets.template is None:
        raise ServiceError(
            "NO_CHAT_TEMPLATE", "the model has no chat template; send text or token_ids", field=path
        )
    rendered = _render(assets.template, chat, path)
    ids = assets.tokenizer.encode(
        rendered.text,
        add_special_tokens=False,
        parse_special=True,
        literal_spans=rendered.literal_spans,
    )
    return rendered, ids


async def run_sized(num_chars: int, work: Callable[[], _Result]) -> _Result:
    """Runs short work at once and long work in a thread."""
    if num_chars <= INLINE_CHARS:
        return work()
    return await asyncio.to_thread(work)


def _render(template: ChatTemplate, chat: ChatPrompt, path: str) -> RenderedPrompt:
    try:
        return template.render_prompt(
            [_template_message(message) for message in chat.messages],
            continue_final_message=chat.continue_final_message,
            variables=json.loads(chat.variables_json) if chat.variables_json else None,
        )
    except ChatTemplateError as error:
        message = f"the chat template refused the conversation: {error}"
        raise ServiceError("TEMPLATE_REFUSED", message, field=path) from None


def _template_message(message: ChatMessage) -> dict[str, str]:
    fields = {"role": message.role, "content": message.content}
    if message.name:
        fields["name"] = message.name
    if message.reasoning:
        fields["reasoning"] = message.reasoning
    return fields
