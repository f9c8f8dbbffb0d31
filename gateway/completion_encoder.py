"""Encodes generations as text completions, streamed or whole."""

from collections.abc import Sequence
from typing import Any

from gateway.chunks import Envelope, encode_json, finish_reason, usage_fields
from gateway.completion_request import CompletionRequest
from gateway.conflation import Delta, conflate
from gateway.logprobs import LegacyLogprobs, without_end_token
from tenon.v1 import generation_pb2, generation_service_pb2

OBJECT = "text_completion"


class CompletionStreamEncoder:
    """Chunks of all prompts; a choice's index is prompt index * n + output index.

    echoes: text of each prompt, which its outputs begin with; empty without echo.
    """

    def __init__(
        self, envelope: Envelope, request: CompletionRequest, echoes: Sequence[str] = ()
    ) -> None:
        self._envelope = envelope
        self._request = request
        self._echoes = echoes
        self._usages: list[generation_pb2.Usage] = []
        self._logprobs: dict[int, LegacyLogprobs] = {}

    def encode(self, prompt_index: int, message: generation_service_pb2.GenerateResponse) -> bytes:
        """The chunks of one message."""
        return b"".join(self._item(prompt_index, item) for item in conflate(message.events))

    def end(self) -> bytes:
        """Usage and end mark."""
        return self._envelope.end(usage_fields(self._usages))

    def _item(self, prompt_index: int, item: Any) -> bytes:
        first = prompt_index * self._request.num_outputs
        match item:
            case Delta():
                index = first + item.output_index
                return self._chunk(index, item.text, self._columns(index, item))
            case generation_pb2.Started():
                self._envelope.open(item)
                return self._echo(prompt_index, first)
            case generation_pb2.OutputFinished():
                return self._chunk(first + item.output_index, "", b"null", _reason(item))
            case generation_pb2.Finished():
                self._usages.append(item.usage)
        return b""

    def _echo(self, prompt_index: int, first: int) -> bytes:
        if not self._echoes:
            return b""
        text = self._echoes[prompt_index]
        indices = range(first, first + self._request.num_outputs)
        return b"".join(self._chunk(index, text, b"null") for index in indices)

    def _columns(self, index: int, delta: Delta) -> bytes:
        if delta.logprobs is None:
            return b"null"
        columns = self._logprobs.setdefault(index, _legacy(self._request))
        return encode_json(columns.part(delta.logprobs))

    def _chunk(self, index: int, text: str, logprobs: bytes, reason: str | None = None) -> bytes:
        return self._envelope.chunk(
            b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}'
            % (index, encode_json(text), logprobs, encode_json(reason))
        )


def encode_completion(
    answers: Sequence[generation_service_pb2.GenerateUnaryResponse],
    envelope: Envelope,
    request: CompletionRequest,
    echoes: Sequence[str] = (),
) -> bytes:
    """The whole answers of all prompts."""
    body = envelope.constants(answers[0].started, OBJECT)
    body["choices"] = [
        _choice(i, output, request, echoes[i] if echoes else "")
        for i, answer in enumerate(answers)
        for output in answer.outputs
    ]
    body["usage"] = usage_fields([answer.finished.usage for answer in answers])
    return encode_json(body)


def _choice(
    prompt_index: int, output: generation_pb2.Output, request: CompletionRequest, echo: str
) -> dict[str, Any]:
    logprobs = None
    if request.logprobs:
        shown = without_end_token(output.logprobs, output.finished)
        logprobs = _legacy(request).part(shown)
    return {
        "index": prompt_index * request.num_outputs + output.output_index,
        "text": echo + output.text,
        "logprobs": logprobs,
        "finish_reason": _reason(output.finished),
    }


def _legacy(request: CompletionRequest) -> LegacyLogprobs:
    return LegacyLogprobs(has_alternatives=request.specs[0].output.top_logprobs > 0)


def _reason(finished: generation_pb2.OutputFinished) -> str:
    reason = finish_reason(finished)
    return "stop" if reason == "tool_calls" else reason
