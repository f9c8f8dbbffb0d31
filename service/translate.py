"""From tenon.v1.GenerationSpec to `GenerationOptions`: every field checked, none ignored.

A field that this server cannot honour is refused by its path with UNSUPPORTED_FIELD.
"""

from collections.abc import Mapping

from google.protobuf.message import Message

from engine.request import Priority
from service.errors import invalid, unsupported
from service.options import GenerationOptions, OutputChoice, SamplingChoice, StopChoice
from service.translate_constraint import translate_constraint
from service.translate_prompt import translate_prompt
from service.validation import (
    MAX_NAME_CHARS,
    check_count,
    check_duration,
    check_enum,
    check_length,
    check_range,
    check_token_ids,
)
from tenon.v1 import generation_pb2

MAX_OUTPUTS = 16
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_STOP_TOKEN_IDS = 64

PRIORITIES: Mapping[int, Priority] = {
    generation_pb2.PRIORITY_CLASS_UNSPECIFIED: Priority.STANDARD,
    generation_pb2.PRIORITY_CLASS_BATCH: Priority.BATCH,
    generation_pb2.PRIORITY_CLASS_STANDARD: Priority.STANDARD,
    generation_pb2.PRIORITY_CLASS_INTERACTIVE: Priority.INTERACTIVE,
}


def translate_spec(
    spec: generation_pb2.GenerationSpec, vocab_size: int, path: str = "spec"
) -> GenerationOptions:
    """Validates a spec in full. Raises ServiceError for the first field that is wrong."""
    prompt, truncate = translate_prompt(spec, vocab_size, f"{path}.prompt")
    scheduling, cache = spec.scheduling, spec.cache
    check_length(
        f"{path}.scheduling.session_id", scheduling.session_id, 0, MAX_NAME_CHARS, "characters"
    )
    check_length(f"{path}.cache.narrow", cache.narrow, 0, MAX_NAME_CHARS, "characters")
    return GenerationOptions(
        prompt=prompt,
        truncate=truncate,
        sampling=_sampling(spec.sampling, vocab_size, f"{path}.sampling"),
        stop=_stop(spec.stop, vocab_size, f"{path}.stop"),
        output=_output(spec.output, f"{path}.output"),
        constraint=translate_constraint(spec.constraint, f"{path}.constraint")
        if spec.HasField("constraint")
        else None,
        priority=_priority(scheduling, f"{path}.scheduling.priority"),
        max_queue_time=_seconds(scheduling, "max_queue_time", f"{path}.scheduling.max_queue_time"),
        bypass_cache=cache.bypass,
        cache_narrow=cache.narrow,
    )


def _priority(scheduling: generation_pb2.SchedulingParams, path: str) -> Priority:
    return PRIORITIES[check_enum(path, scheduling.priority, generation_pb2.PriorityClass.values())]


def _sampling(params: generation_pb2.SamplingParams, vocab_size: int, path: str) -> SamplingChoice:
    def number(name: str, low: float, high: float, **bounds: bool) -> float | None:
        if not params.HasField(name):  # type: ignore[arg-type]  # names of optional scalars
            return None
        return check_range(f"{path}.{name}", getattr(params, name), low, high, **bounds)

    if params.deterministic:
        raise unsupported(f"{path}.deterministic")
    num_outputs = params.num_outputs if params.HasField("num_outputs") else 1
    return SamplingChoice(
        temperature=number("temperature", 0, 2),
        top_p=number("top_p", 0, 1, low_open=True),
        top_k=params.top_k if params.HasField("top_k") else None,
        min_p=number("min_p", 0, 1, high_open=True),
        frequency_penalty=number("frequency_penalty", -2, 2),
        presence_penalty=number("presence_penalty", -2, 2),
        repetition_penalty=number("repetition_penalty", 0, 10, low_open=True),
        seed=params.seed if params.HasField("seed") else None,
        num_outputs=check_count(f"{path}.num_outputs", num_outputs, 1, MAX_OUTPUTS),
        logit_bias=_logit_bias(params.logit_bias, vocab_size, f"{path}.logit_bias"),
    )


def _logit_bias(
    biases: Mapping[int, float], vocab_size: int, path: str
) -> tuple[tuple[int, float], ...]:
    check_length(path, list(biases), 0, MAX_LOGIT_BIAS, "entries")
    for token_id, bias in biases.items():
        if token_id >= vocab_size:
            problem = f"has no token to bias; the vocabulary ends at {vocab_size - 1}"
            raise invalid(f"{path}[{token_id}]", problem)
        check_range(f"{path}[{token_id}]", bias, -100, 100)
    return tuple(sorted(biases.items()))


def _stop(params: generation_pb2.StopParams, vocab_size: int, path: str) -> StopChoice:
    max_tokens = params.max_tokens if params.HasField("max_tokens") else None
    if max_tokens is not None:
        check_count(f"{path}.max_tokens", max_tokens, 1)
    min_tokens = params.min_tokens if params.HasField("min_tokens") else 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid(f"{path}.min_tokens", f"is {min_tokens}, above max_tokens ({max_tokens})")
    check_length(f"{path}.stop_strings", params.stop_strings, 0, MAX_STOP_STRINGS, "entries")
    for index, text in enumerate(params.stop_strings):
        field = f"{path}.stop_strings[{index}]"
        check_length(field, text, 1, MAX_STOP_STRING_CHARS, "characters")
    ids_field = f"{path}.stop_token_ids"
    check_length(ids_field, params.stop_token_ids, 0, MAX_STOP_TOKEN_IDS, "entries")
    return StopChoice(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_strings=tuple(params.stop_strings),
        stop_token_ids=check_token_ids(ids_field, params.stop_token_ids, vocab_size),
        include_stop_string=params.include_stop_string,
        ignore_eos=params.ignore_eos,
        max_duration=_seconds(params, "max_duration", f"{path}.max_duration"),
    )


def _output(options: generation_pb2.OutputOptions, path: str) -> OutputChoice:
    if options.HasField("prompt_logprobs"):
        raise unsupported(f"{path}.prompt_logprobs")
    top = check_count(f"{path}.top_logprobs", options.top_logprobs, 0, MAX_TOP_LOGPROBS)
    if top and not options.logprobs:
        raise invalid(f"{path}.top_logprobs", "needs logprobs to be set")
    # raw_text needs nothing: without tools and reasoning sections all text is raw.
    return OutputChoice(
        token_ids=options.token_ids,
        logprobs=top if options.logprobs else None,
        skip_text=options.skip_text,
        prompt_token_ids=options.prompt_token_ids,
        special_tokens=options.special_tokens,
    )


def _seconds(message: Message, name: str, field: str) -> float | None:
    """A google.protobuf.Duration in seconds; None if it is not set."""
    return check_duration(field, getattr(message, name)) if message.HasField(name) else None
