"""Turns the body of POST /v1/chat/completions into a generation of the service."""

from dataclasses import dataclass
from typing import Any

from gateway import errors
from gateway.chat_messages import read_messages
from gateway.chat_tools import read_tools
from gateway.config import GatewayConfig
from gateway.fields import Fields
from gateway.generation_request import (
    MAX_TOP_LOGPROBS,
    UINT32_MAX,
    ResponseOptions,
    check_ignored,
    read_cache,
    read_model,
    read_response_options,
    read_sampling,
    read_scheduling,
    read_stop,
)
from gateway.structured import read_constraint
from tenon.v1 import generation_pb2, prompt_pb2

EFFORTS = {
    "minimal": prompt_pb2.REASONING_EFFORT_MINIMAL,
    "low": prompt_pb2.REASONING_EFFORT_LOW,
    "medium": prompt_pb2.REASONING_EFFORT_MEDIUM,
    "high": prompt_pb2.REASONING_EFFORT_HIGH,
    "xhigh": prompt_pb2.REASONING_EFFORT_HIGH,
    "max": prompt_pb2.REASONING_EFFORT_HIGH,
}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request that has passed every check that needs no model.

    logprobs: whether the answer reports them. named_tool: the function that must be called.
    """

    spec: generation_pb2.GenerationSpec
    options: ResponseOptions
    logprobs: bool = False
    named_tool: str | None = None


def parse_chat_request(body: dict[str, Any], config: GatewayConfig) -> ChatRequest:
    """Reads every field of the API. Raises ApiError naming the first field that is wrong."""
    fields = Fields(body, ignore_unknown=config.unknown_fields == "ignore")
    model = read_model(fields)
    conversation = prompt_pb2.Conversation(messages=read_messages(fields))
    _refuse_unsupported(fields)
    named_tool = read_tools(fields, conversation)
    _read_reasoning(fields, conversation)
    output = _read_logprobs(fields)
    spec = generation_pb2.GenerationSpec(
        model=model,
        prompt=prompt_pb2.Prompt(conversation=conversation),
        sampling=read_sampling(fields, config.max_outputs),
        stop=_read_stop(fields),
        constraint=read_constraint(fields),
        output=output,
        scheduling=read_scheduling(fields),
        cache=read_cache(fields),
    )
    options = read_response_options(fields)
    check_ignored(fields)
    _check_ignored_in_chat(fields)
    fields.check_unknown()
    return ChatRequest(spec, options, output is not None, named_tool)


def _refuse_unsupported(fields: Fields) -> None:
    fields.refuse("audio", "web_search_options", "functions", "function_call", "moderation")
    modalities = fields.array("modalities", 16)
    if modalities is not None and modalities != ["text"]:
        raise errors.unsupported_value("modalities", 'must be ["text"]')


def _check_ignored_in_chat(fields: Fields) -> None:
    fields.string("verbosity", choices=("low", "medium", "high"))
    prediction = fields.object("prediction")
    if prediction is not None:
        prediction.string("type", choices=("content",))


def _read_reasoning(fields: Fields, conversation: prompt_pb2.Conversation) -> None:
    effort = fields.string("reasoning_effort", choices=("none", *EFFORTS))
    if effort == "none":
        conversation.reasoning.enabled = False
    elif effort is not None:
        conversation.reasoning.effort = EFFORTS[effort]


def _read_stop(fields: Fields) -> generation_pb2.StopParams:
    stop = read_stop(fields)
    limit = fields.integer("max_completion_tokens", 1, UINT32_MAX)
    deprecated = fields.integer("max_tokens", 1, UINT32_MAX)
    if limit is not None and deprecated is not None and limit != deprecated:
        raise errors.invalid_value("max_tokens", "it differs from 'max_completion_tokens'")
    chosen = deprecated if limit is None else limit
    if chosen is not None:
        stop.max_tokens = chosen
    return stop


def _read_logprobs(fields: Fields) -> generation_pb2.OutputOptions | None:
    wanted = fields.boolean("logprobs") or False
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if not wanted:
        if top is not None:
            raise errors.invalid_value("top_logprobs", "it needs 'logprobs' to be true")
        return None
    return generation_pb2.OutputOptions(logprobs=True, top_logprobs=top or 0)
