"""Frames: what is written is read, in whatever pieces, and old generations are dropped."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig, EngineInfo
from engine.request import (
    EngineLoad,
    FinishReason,
    Priority,
    RequestError,
    RequestOutput,
    RequestSpec,
    RequestStats,
    SamplingParams,
    TokenLogprobs,
)
from grammar.spec import ConstraintKind, ConstraintSpec
from service import frames
from service.engine_client import EngineFactory, EngineRequest

TOKENS = st.integers(0, 2**31 - 1)
NUMBERS = st.floats(allow_nan=False)
TOKEN_LISTS = st.lists(TOKENS, max_size=5).map(tuple)
NAMES = st.text(max_size=8)
ERRORS = st.builds(
    RequestError, NAMES, NAMES, st.lists(st.tuples(NAMES, NAMES), max_size=2).map(tuple)
)
PARAMS = st.builds(
    SamplingParams,
    temperature=NUMBERS,
    logit_bias=st.lists(st.tuples(TOKENS, NUMBERS), max_size=2).map(tuple),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.none() | st.integers(0, 20),
)
SPECS = st.builds(
    RequestSpec,
    request_id=NAMES,
    prompt_ids=TOKEN_LISTS,
    sampling=PARAMS,
    max_tokens=TOKENS,
    stop_token_ids=TOKEN_LISTS,
    priority=st.sampled_from(Priority),
    salt=st.binary(max_size=16),
    deadline=st.none() | NUMBERS,
)
CONSTRAINTS = st.builds(
    ConstraintSpec,
    kind=st.sampled_from(ConstraintKind),
    source=NAMES,
    must_close=st.none() | st.booleans(),
)
REQUESTS = st.builds(EngineRequest, SPECS, st.none() | CONSTRAINTS)
LOGPROBS = st.builds(TokenLogprobs, NUMBERS, TOKEN_LISTS, st.lists(NUMBERS, max_size=2).map(tuple))
OUTPUTS = st.builds(
    RequestOutput,
    request_id=NAMES,
    queue_position=st.none() | TOKENS,
    token_ids=TOKEN_LISTS,
    logprobs=st.lists(LOGPROBS, max_size=2).map(tuple),
    finish_reason=st.none() | st.sampled_from(FinishReason),
    stats=st.none() | st.builds(RequestStats, queue=NUMBERS),
    error=st.none() | ERRORS,
)
INFOS = st.builds(EngineInfo, NAMES, TOKENS, NAMES, NAMES, NAMES, *[TOKENS] * 4, NAMES)
COMMANDS = st.one_of(
    st.builds(frames.Begin, st.builds(EngineFactory, st.builds(EngineConfig, NAMES), NAMES)),
    st.builds(frames.Submit, st.lists(REQUESTS, max_size=3).map(tuple)),
    st.builds(frames.Abort, st.lists(NAMES, max_size=3).map(tuple)),
    st.builds(frames.End, st.lists(NAMES, max_size=3).map(tuple)),
    st.builds(frames.Prepare, TOKENS, CONSTRAINTS),
    st.builds(frames.ResetPrefixCache, TOKENS),
    st.just(frames.Close()),
)
EVENTS = st.one_of(
    st.builds(frames.Loading, NAMES, NUMBERS),
    st.builds(frames.Loaded, INFOS),
    st.builds(frames.LoadFailed, st.lists(NAMES, max_size=3).map(tuple), NAMES),
    st.builds(
        frames.StepFrame,
        TOKENS,
        st.lists(OUTPUTS, max_size=3).map(tuple),
        st.builds(EngineLoad, running=TOKENS),
    ),
    st.builds(frames.Prepared, TOKENS, st.none() | ERRORS),
    st.builds(frames.PrefixCacheReset, TOKENS, TOKENS),
)


def read_in_pieces(decoder: "frames.FrameDecoder[Any]", stream: bytes, piece: int) -> list[object]:
    pieces = (stream[start : start + piece] for start in range(0, len(stream), piece))
    return [message for data in pieces for message in decoder.feed(data)]


@given(st.lists(COMMANDS, max_size=4), st.integers(1, 64))
def test_commands_are_read_as_they_were_written(messages: list[Any], piece: int) -> None:
    encoder = frames.FrameEncoder(7)
    decoder = frames.FrameDecoder[Any](frames.Begin | frames.Command)
    stream = b"".join(map(encoder.encode, messages))
    assert read_in_pieces(decoder, stream, piece) == messages


@given(st.lists(EVENTS, max_size=4), st.integers(1, 64))
def test_events_are_read_as_they_were_written(messages: list[Any], piece: int) -> None:
    encoder = frames.FrameEncoder(7)
    decoder = frames.FrameDecoder[Any](frames.Event, generation=7)
    stream = b"".join(map(encoder.encode, messages))
    assert read_in_pieces(decoder, stream, piece) == messages


@given(st.lists(st.tuples(st.integers(1, 3), EVENTS), max_size=6))
def test_frames_of_another_generation_are_dropped(numbered: list[tuple[int, Any]]) -> None:
    stream = b"".join(frames.FrameEncoder(number).encode(event) for number, event in numbered)
    decoder = frames.FrameDecoder[Any](frames.Event, generation=2)
    assert decoder.feed(stream) == [event for number, event in numbered if number == 2]


@pytest.mark.parametrize(
    "stream",
    [
        frames.HEADER.pack(frames.MAX_BODY_BYTES + 1, 1),
        frames.HEADER.pack(1, 1) + b"\xc1",
        frames.HEADER.pack(6, 1) + b"\x81\xa4type\x01",
        frames.FrameEncoder(1).encode(frames.Close()),
    ],
    ids=["too long", "no msgpack", "cut short", "a command among events"],
)
def test_a_damaged_stream_is_an_error(stream: bytes) -> None:
    decoder = frames.FrameDecoder[Any](frames.Event, generation=1)
    with pytest.raises(frames.FrameError):
        decoder.feed(stream)
