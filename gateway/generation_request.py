"""What chat and completion requests have in common: sampling, stopping, scheduling, streaming."""

import re
from dataclasses import dataclass
from typing import Any

from gateway import errors
from gateway.fields import Fields, check_integer, check_number, check_string
from tenon.v1 import generation_pb2

UINT32_MAX = 2**32 - 1
INT64_MAX = 2**63 - 1
MAX_STOP_STRINGS = 4
MAX_STOP_LENGTH = 256
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 1024
MAX_TOP_LOGPROBS = 20
PRIORITIES = {
    "batch": generation_pb2.PRIORITY_CLASS_BATCH,
    "standard": generation_pb2.PRIORITY_CLASS_STANDARD,
    "interactive": generation_pb2.PRIORITY_CLASS_INTERACTIVE,
}
_TOKEN_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """How the answer is sent.

    include_usage: a last chunk with the usage. obfuscate: chunks are padded to hide their length.
    service_tier: whether the answer names its tier, which it does for those who chose one.
    """

    stream: bool = False
    include_usage: bool = False
    obfuscate: bool = False
    service_tier: bool = False


def read_model(fields: Fields) -> str:
    """The model's name; the service knows which exist."""
    name = check_string(fields.require("model"), fields.path_of("model"), max_length=1024)
    if not name:
        raise errors.model_not_found(name)
    return name


def read_sampling(fields: Fields, max_outputs: int) -> generation_pb2.SamplingParams:
    """Sampling fields of OpenAI and our extensions; absent ones take the model's defaults."""
    seed = fields.integer("seed", -INT64_MAX - 1, INT64_MAX)
    return generation_pb2.SamplingParams(
        temperature=fields.number("temperature", 0, 2),
        top_p=fields.number("top_p", 0, 1, exclusive_minimum=True),
        frequency_penalty=fields.number("frequency_penalty", -2, 2),
        presence_penalty=fields.number("presence_penalty", -2, 2),
        # The API's seeds are signed, the service's are not: the same 64 bits.
        seed=None if seed is None else seed & 0xFFFF_FFFF_FFFF_FFFF,
        num_outputs=fields.integer("n", 1, max_outputs),
        logit_bias=_read_logit_bias(fields),
        top_k=fields.integer("top_k", 0, UINT32_MAX),
        min_p=fields.number("min_p", 0, 1),
        repetition_penalty=fields.number("repetition_penalty", 0, 10, exclusive_minimum=True),
    )


def read_stop(fields: Fields) -> generation_pb2.StopParams:
    """Stop strings and ids; max_tokens is the caller's to add."""
    ids = fields.array("stop_token_ids", MAX_STOP_TOKEN_IDS) or []
    path = fields.path_of("stop_token_ids")
    return generation_pb2.StopParams(
        min_tokens=fields.integer("min_tokens", 0, UINT32_MAX),
        stop_strings=_read_stop_strings(fields),
        stop_token_ids=[
            check_integer(item, f"{path}[{i}]", 0, UINT32_MAX) for i, item in enumerate(ids)
        ],
        ignore_eos=fields.boolean("ignore_eos") or False,
    )


def read_scheduling(fields: Fields) -> generation_pb2.SchedulingParams | None:
    """The extension `priority`."""
    priority = fields.string("priority", choices=tuple(PRIORITIES))
    if priority is None:
        return None
    return generation_pb2.SchedulingParams(priority=PRIORITIES[priority])


def read_cache(fields: Fields) -> generation_pb2.CacheOptions | None:
    """The extension `cache_salt`: only requests with an equal one share cached prefixes."""
    narrow = fields.string("cache_salt", max_length=256)
    return generation_pb2.CacheOptions(narrow=narrow) if narrow else None


def read_response_options(fields: Fields) -> ResponseOptions:
    """`stream`, `stream_options` and `service_tier`."""
    stream = fields.boolean("stream") or False
    options = fields.object("stream_options")
    include_usage = obfuscate = False
    if options is not None:
        include_usage = options.boolean("include_usage") or False
        obfuscate = options.boolean("include_obfuscation") or False
        options.check_unknown()
        if not stream and next(options.items(), None) is not None:
            raise errors.invalid_value(
                "stream_options", "it is only allowed when 'stream' is enabled"
            )
    tiers = ("auto", "default", "flex", "scale", "priority", "fast")
    tier = fields.string("service_tier", choices=tiers)
    return ResponseOptions(stream, include_usage, obfuscate, tier is not None)


def check_ignored(fields: Fields) -> None:
    """Fields that hint at billing, caching or attribution: validated, and without effect."""
    fields.string("user", max_length=1024)
    fields.string("safety_identifier", max_length=128)
    fields.string("prompt_cache_key", max_length=1024)
    fields.value("prompt_cache_options")
    fields.value("prompt_cache_retention")
    fields.boolean("store")
    _check_metadata(fields)


def _check_metadata(fields: Fields) -> None:
    metadata = fields.object("metadata")
    if metadata is None:
        return
    pairs = list(metadata.items())
    if len(pairs) > 16:
        expected = "an object of at most 16 pairs"
        raise errors.out_of_range("metadata", "object_above_max_properties", expected, len(pairs))
    for key, value in pairs:
        if len(key) > 64:
            expected = "a key of at most 64 characters"
            raise errors.out_of_range("metadata", "string_above_max_length", expected, len(key))
        check_string(value, metadata.path_of(key), max_length=512)


def _read_stop_strings(fields: Fields) -> list[str]:
    value = fields.value("stop")
    path = fields.path_of("stop")
    if value is None:
        return []
    if isinstance(value, str):
        return [_stop_string(value, path)]
    if not isinstance(value, list):
        raise errors.invalid_type(path, "a string or an array of strings", value)
    strings = fields.array("stop", MAX_STOP_STRINGS) or []
    return [_stop_string(item, f"{path}[{i}]") for i, item in enumerate(strings)]


def _stop_string(value: Any, path: str) -> str:
    if value == "":
        raise errors.invalid_value(path, "a stop string must not be empty")
    return check_string(value, path, MAX_STOP_LENGTH)


def _read_logit_bias(fields: Fields) -> dict[int, float]:
    bias = fields.object("logit_bias")
    if bias is None:
        return {}
    pairs = list(bias.items())
    if len(pairs) > MAX_LOGIT_BIAS:
        expected = f"an object of at most {MAX_LOGIT_BIAS} token ids"
        raise errors.out_of_range("logit_bias", "object_above_max_properties", expected, len(pairs))
    return {_token_id(key): check_number(v, bias.path_of(key), -100, 100) for key, v in pairs}


def _token_id(key: str) -> int:
    if not _TOKEN_ID.fullmatch(key) or int(key) > UINT32_MAX:
        raise errors.invalid_value("logit_bias", f"'{key[:64]}' is not a token id")
    return int(key)
