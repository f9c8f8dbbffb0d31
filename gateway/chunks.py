"""Writes the chunks of a stream: the constant parts are rendered once, a delta costs one escape."""

import secrets
import time
from typing import Any, Protocol

import msgspec

from gateway.errors import ApiError
from gateway.generation_request import ResponseOptions
from tenon.v1 import generation_pb2, generation_service_pb2

DONE = b"data: [DONE]\n\n"
MAX_PADDING = 24
FINISH_REASONS = {
    generation_pb2.FINISH_REASON_LENGTH: "length",
    generation_pb2.FINISH_REASON_TIME_LIMIT: "length",
    generation_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls",
}
encode_json = msgspec.json.encode


class StreamEncoder(Protocol):
    """Turns the messages of one or more generations into server-sent events."""

    def encode(self, prompt_index: int, message: generation_service_pb2.GenerateResponse) -> bytes:
        """The events of one message, which may be none."""

    def end(self) -> bytes:
        """What follows the last message."""


class Envelope:
    """The parts of a response that are the same in each of its chunks."""

    def __init__(self, id_: str, object_: str, options: ResponseOptions) -> None:
        self.id = id_
        self.created = int(time.time())
        self._object = object_
        self._options = options
        self._head = b""

    def open(self, started: generation_pb2.Started) -> None:
        """Learns the model and the fingerprint. The first of a batch holds for all."""
        if not self._head:
            head = encode_json(self.constants(started, self._object))
            self._head = b"data: " + head[:-1] + b',"choices":['

    def constants(self, started: generation_pb2.Started, object_: str) -> dict[str, Any]:
        """The fields that all responses begin with."""
        constants = {
            "id": self.id,
            "object": object_,
            "created": self.created,
            "model": started.model,
            "system_fingerprint": started.fingerprint,
        }
        if self._options.service_tier:
            constants["service_tier"] = "default"
        return constants

    def chunk(self, choice: bytes) -> bytes:
        """One event with one choice. choice: the rendered object."""
        usage = b',"usage":null' if self._options.include_usage else b""
        return b"".join((self._head, choice, b"]", usage, self._padding(), b"}\n\n"))

    def end(self, usage: dict[str, Any]) -> bytes:
        """The usage, if it was asked for, and the end mark."""
        if not self._options.include_usage:
            return DONE
        return b"".join((self._head, b'],"usage":', encode_json(usage), b"}\n\n", DONE))

    def _padding(self) -> bytes:
        if not self._options.obfuscate:
            return b""
        padding = secrets.token_urlsafe(MAX_PADDING)[: secrets.randbelow(MAX_PADDING) + 1]
        return b',"obfuscation":"' + padding.encode() + b'"'


def error_event(error: ApiError) -> bytes:
    """The end of a stream that failed: official clients raise it. No end mark follows."""
    return b"data: " + error.body() + b"\n\n"


def usage_fields(usages: list[generation_pb2.Usage]) -> dict[str, Any]:
    """The usage of all prompts together."""
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    output_tokens = sum(usage.output_tokens for usage in usages)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in usages)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(usage.reasoning_tokens for usage in usages)
        },
    }


def finish_reason(finished: generation_pb2.OutputFinished) -> str:
    """The API's word for why an output ended; any other clean end is a stop."""
    return FINISH_REASONS.get(finished.reason, "stop")
