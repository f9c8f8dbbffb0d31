"""Turns the body of POST /v1/completions into one generation of the service per prompt."""

from dataclasses import dataclass
from typing import Any

from gateway import errors
from gateway.config import GatewayConfig
from gateway.fields import Fields, check_array, check_integer, check_string
from gateway.generation_request import (
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

MAX_LOGPROBS = 5
DEFAULT_MAX_TOKENS = 16
MAX_PROMPT_TOKENS = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A completion request that has passed every check that needs no model.

    specs: one per prompt. num_outputs: outputs per prompt. is_batch: prompts came as a list.
    """

    specs: list[generation_pb2.GenerationSpec]
    options: ResponseOptions
    num_outputs: int = 1
    echo: bool = False
    logprobs: bool = False
    is_batch: bool = False


def parse_completion_request(body: dict[str, Any], config: GatewayConfig) -> CompletionRequest:
    """Reads every field of the API. Raises ApiError naming the first field that is wrong."""
    fields = Fields(body, ignore_unknown=config.unknown_fields == "ignore")
    shared = generation_pb2.GenerationSpec(
        model=read_model(fields),
        sampling=read_sampling(fields, config.max_outputs),
        stop=read_stop(fields),
        constraint=read_constraint(fields),
        scheduling=read_scheduling(fields),
        cache=read_cache(fields),
    )
    prompts = _read_prompts(fields, config.max_prompts)
    shared.stop.max_tokens = _read_max_tokens(fields)
    echo = fields.boolean("echo") or False
    has_logprobs = _read_logprobs(fields, echo, shared.output)
    num_outputs = shared.sampling.num_outputs or 1
    _check_unsupported(fields, num_outputs)
    options = read_response_options(fields)
    check_ignored(fields)
    fields.check_unknown()
    specs = [_with_prompt(shared, prompt) for prompt in prompts]
    is_batch = isinstance(body.get("prompt"), list) and not isinstance(body["prompt"][0], int)
    return CompletionRequest(specs, options, num_outputs, echo, has_logprobs, is_batch)


def _read_logprobs(fields: Fields, echo: bool, output: generation_pb2.OutputOptions) -> bool:
    top = fields.integer("logprobs", 0, MAX_LOGPROBS)
    if top is None:
        return False
    if echo:
        raise errors.unsupported_parameter("echo", "not together with 'logprobs' yet")
    output.logprobs = True
    output.top_logprobs = top
    return True


def _with_prompt(
    shared: generation_pb2.GenerationSpec, prompt: prompt_pb2.Prompt
) -> generation_pb2.GenerationSpec:
    spec = generation_pb2.GenerationSpec(prompt=prompt)
    spec.MergeFrom(shared)
    return spec


def _read_max_tokens(fields: Fields) -> int:
    limit = fields.integer("max_tokens", 0, UINT32_MAX)
    if limit == 0:
        reason = "is 0, which scores the prompt, and prompt log probabilities are not there yet"
        raise errors.unsupported_value("max_tokens", reason)
    return DEFAULT_MAX_TOKENS if limit is None else limit


def _check_unsupported(fields: Fields, num_outputs: int) -> None:
    if fields.string("suffix"):
        raise errors.unsupported_parameter("suffix")
    best_of = fields.integer("best_of", 0, 20)
    if best_of is None:
        return
    if best_of > 1:
        raise errors.unsupported_value("best_of", "must be at most 1")
    if num_outputs > max(best_of, 1):
        raise errors.invalid_value("best_of", "it must not be less than 'n'")


def _read_prompts(fields: Fields, max_prompts: int) -> list[prompt_pb2.Prompt]:
    value = fields.value("prompt")
    if value is None:
        # The API's default is the token that begins a document.
        return [prompt_pb2.Prompt(text="", add_special_tokens=True)]
    if isinstance(value, str):
        return [prompt_pb2.Prompt(text=value)]
    if not isinstance(value, list):
        raise errors.invalid_type("prompt", "a string or an array", value)
    if not value:
        raise errors.empty_array("prompt")
    if isinstance(value[0], str):
        return [_text_prompt(item, i) for i, item in enumerate(_batch(value, max_prompts))]
    if isinstance(value[0], list):
        return [
            _token_prompt(item, f"prompt[{i}]") for i, item in enumerate(_batch(value, max_prompts))
        ]
    return [_token_prompt(value, "prompt")]


def _batch(value: list[Any], max_prompts: int) -> list[Any]:
    return check_array(value, "prompt", max_prompts)


def _text_prompt(value: Any, index: int) -> prompt_pb2.Prompt:
    return prompt_pb2.Prompt(text=check_string(value, f"prompt[{index}]"))


def _token_prompt(value: Any, path: str) -> prompt_pb2.Prompt:
    ids = check_array(value, path, MAX_PROMPT_TOKENS)
    if not ids:
        raise errors.empty_array(path)
    for i, item in enumerate(ids):
        if type(item) is not int or not 0 <= item <= UINT32_MAX:
            check_integer(item, f"{path}[{i}]", 0, UINT32_MAX)
    return prompt_pb2.Prompt(token_ids=prompt_pb2.TokenIds(ids=ids))
