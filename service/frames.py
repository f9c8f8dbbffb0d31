"""Messages between an engine client and its host, and how they look on a socket.

A frame is an 8-byte header (length of the body, generation of the host; both big-endian uint32)
and a msgpack body. It knows neither sockets nor processes.
"""

import struct
from typing import Generic, TypeVar

import msgspec

from engine.config import EngineInfo
from engine.request import EngineLoad, RequestError, RequestOutput
from grammar.spec import ConstraintSpec
from service.engine_client import EngineFactory, EngineRequest

HEADER = struct.Struct(">II")
# Far above any real frame (64 prompts of 1M tokens); a longer one means a damaged stream.
MAX_BODY_BYTES = 512 * 1024 * 1024


class FrameError(Exception):
    """The byte stream is damaged: a length or a body that no host or client writes."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """First frame to a host process: what it shall build."""

    factory: EngineFactory


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Adds sequences."""

    requests: tuple[EngineRequest, ...]


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Drops requests without a word."""

    request_ids: tuple[str, ...]


class End(msgspec.Struct, frozen=True, tag=True):
    """Ends requests with FinishReason.ENDED."""

    request_ids: tuple[str, ...]


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Asks for a compiled constraint; answered by Prepared."""

    call_id: int
    constraint: ConstraintSpec


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True):
    """Asks to drop unused cached blocks; answered by PrefixCacheReset."""

    call_id: int


class Close(msgspec.Struct, frozen=True, tag=True):
    """Ends the host."""


class Loading(msgspec.Struct, frozen=True, tag=True):
    """Loading went on: stage in words, progress from 0 to 1."""

    stage: str
    progress: float


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The engine takes requests."""

    info: EngineInfo


class LoadFailed(msgspec.Struct, frozen=True, tag=True):
    """The engine could not be built. kinds: names of the exception's class and its bases."""

    kinds: tuple[str, ...]
    message: str


class StepFrame(msgspec.Struct, frozen=True, tag=True):
    """What one step did for the whole batch.

    num_applied: commands that the host had applied before the step. An output of a request that
    was submitted by a later command belongs to an earlier request of the same id.
    """

    num_applied: int
    outputs: tuple[RequestOutput, ...]
    load: EngineLoad


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """Answer to Prepare: the refusal, or None."""

    call_id: int
    error: RequestError | None


class PrefixCacheReset(msgspec.Struct, frozen=True, tag=True):
    """Answer to ResetPrefixCache."""

    call_id: int
    num_blocks: int


Command = Submit | Abort | End | Prepare | ResetPrefixCache | Close
Event = Loading | Loaded | LoadFailed | StepFrame | Prepared | PrefixCacheReset

Message = TypeVar("Message")


class FrameEncoder:
    """Writes messages of one generation as frames. One owner, one thread."""

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: Begin | Command | Event) -> bytes:
        """The whole frame of a message."""
        body = self._encoder.encode(message)
        return HEADER.pack(len(body), self._generation) + body


class FrameDecoder(Generic[Message]):
    """Cuts a byte stream into messages and drops those of another generation.

    generation None takes the generation of the first frame. Raises FrameError.
    """

    def __init__(self, message_type: object, generation: int | None = None) -> None:
        self.generation = generation
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(message_type)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes."""
        self._buffer += data
        messages: list[Message] = []
        start = 0
        while (body := self._body_at(start)) is not None:
            generation, end = body
            if self.generation is None:
                self.generation = generation
            if generation == self.generation:
                messages.append(self._decode(bytes(self._buffer[start + HEADER.size : end])))
            start = end
        del self._buffer[:start]
        return messages

    def _body_at(self, start: int) -> tuple[int, int] | None:
        """(generation, end offset) of the frame at `start`, None until it is complete."""
        if len(self._buffer) - start < HEADER.size:
            return None
        length, generation = HEADER.unpack_from(self._buffer, start)
        if length > MAX_BODY_BYTES:
            raise FrameError(f"a frame of {length} bytes; the limit is {MAX_BODY_BYTES}")
        end = start + HEADER.size + length
        return (generation, end) if end <= len(self._buffer) else None

    def _decode(self, body: bytes) -> Message:
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise FrameError(f"a frame that cannot be read: {error}") from error
