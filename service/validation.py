"""Checks of request fields. Each raises a ServiceError that names the field by its path.

A path is that of the request message, for example spec.sampling.temperature.
"""

import math
import re
from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from service.errors import ServiceError, invalid

MAX_REQUEST_ID_CHARS = 128
MAX_DURATION_SECONDS = 315_576_000_000  # google.protobuf.Duration's own bound
MAX_NAME_CHARS = 256
_PRINTABLE_ASCII = re.compile(r"[\x20-\x7e]*")


def check_range(
    field: str,
    value: float,
    low: float,
    high: float,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> float:
    """A finite number within bounds, either of which may be excluded."""
    within_low = value > low if low_open else value >= low
    within_high = value < high if high_open else value <= high
    if not (math.isfinite(value) and within_low and within_high):
        interval = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
        raise invalid(field, f"must be in {interval}, not {value:g}")
    return value


def check_count(field: str, value: int, low: int, high: int | None = None) -> int:
    """An integer within bounds, both included."""
    if value < low or (high is not None and value > high):
        bound = f"at least {low}" if high is None else f"in [{low}, {high}]"
        raise invalid(field, f"must be {bound}, not {value}")
    return value


def check_length(field: str, items: Sequence[object], low: int, high: int, noun: str) -> None:
    """A list or text with an allowed number of items."""
    if not low <= len(items) <= high:
        bound = f"at most {high}" if low == 0 else f"{low} to {high}"
        raise invalid(field, f"must have {bound} {noun}, not {len(items)}")


def check_request_id(field: str, value: str) -> str:
    """At most 128 printable ASCII characters."""
    check_length(field, value, 0, MAX_REQUEST_ID_CHARS, "characters")
    if not _PRINTABLE_ASCII.fullmatch(value):
        raise invalid(field, "must consist of printable ASCII characters")
    return value


def check_enum(field: str, value: int, known: Sequence[int]) -> int:
    """A number that this server knows; proto3 lets unknown ones through."""
    if value not in known:
        raise invalid(field, f"has the unknown value {value}")
    return value


def check_oneof(field: str, message: Message, oneof: str) -> str:
    """The member that is set. An unset one may be a member that only newer callers know."""
    member = message.WhichOneof(oneof)
    if member is None:
        names = [item.name for item in message.DESCRIPTOR.oneofs_by_name[oneof].fields]
        raise invalid(field, f"must have one of {', '.join(names)} that this server knows")
    return str(member)


def check_duration(field: str, value: Duration) -> float:
    """A positive time in seconds."""
    seconds = value.seconds + value.nanos / 1e9
    if abs(value.seconds) > MAX_DURATION_SECONDS or abs(value.nanos) >= 1_000_000_000:
        raise invalid(field, "is not a valid google.protobuf.Duration")
    if seconds <= 0:
        raise invalid(field, f"must be longer than 0 seconds, not {seconds:g}")
    return seconds


def check_token_ids(field: str, ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Ids that the model knows."""
    if ids and max(ids) >= vocab_size:
        position = next(index for index, id_ in enumerate(ids) if id_ >= vocab_size)
        raise invalid(
            f"{field}[{position}]", f"is {ids[position]}; the vocabulary ends at {vocab_size - 1}"
        )
    return tuple(ids)


def check_context_length(
    prompt_tokens: int, requested_tokens: int, max_model_len: int, field: str
) -> None:
    """Prompt plus output within the context."""
    if prompt_tokens + requested_tokens <= max_model_len:
        return
    raise ServiceError(
        "CONTEXT_LENGTH_EXCEEDED",
        f"the context is {max_model_len} tokens, but the prompt has {prompt_tokens} and "
        f"{requested_tokens} more are requested",
        field=field,
        metadata={
            "max_model_len": str(max_model_len),
            "prompt_tokens": str(prompt_tokens),
            "requested_tokens": str(prompt_tokens + requested_tokens),
        },
    )
