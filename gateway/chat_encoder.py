"""Encodes generations as chat completions, streamed or whole."""

from typing import Any

from gateway.chat_request import ChatRequest
from gateway.chunks import Envelope, encode_json, finish_reason, usage_fields
from gateway.conflation import Delta, conflate
from gateway.logprobs import chat_logprobs, without_end_token
from tenon.v1 import generation_pb2, generation_service_pb2, prompt_pb2

_NO_LOGPROBS = b'},"logprobs":null,"finish_reason":null}'


class ChatStreamEncoder:
    """Chunks in the order that the official clients rebuild answers from.

    The role chunks of all outputs in order, then per output deltas and a chunk with the finish
    reason, then the usage.
    """

    def __init__(self, envelope: Envelope, request: ChatRequest) -> None:
        self._envelope = envelope
        self._request = request
        self._usages: list[generation_pb2.Usage] = []
        self._opened_calls: set[tuple[int, int]] = set()

    def encode(self, prompt_index: int, message: generation_service_pb2.GenerateResponse) -> bytes:
        """The chunks of one message."""
        return b"".join(self._item(item) for item in conflate(message.events))

    def end(self) -> bytes:
        """Usage and end mark."""
        return self._envelope.end(usage_fields(self._usages))

    def _item(self, item: Any) -> bytes:
        match item:
            case Delta():
                return self._delta(item)
            case generation_pb2.Started():
                return self._roles(item)
            case generation_pb2.ToolCallDelta():
                return self._tool_call(item)
            case generation_pb2.OutputFinished():
                reason = _finish_reason(item, self._request)
                choice = f'{{"index":{item.output_index},"delta":{{}},"logprobs":null,'
                choice += f'"finish_reason":"{reason}"}}'
                return self._envelope.chunk(choice.encode())
        self._usages.append(item.usage)
        return b""

    def _roles(self, started: generation_pb2.Started) -> bytes:
        self._envelope.open(started)
        delta = b'{"role":"assistant","content":"","refusal":null'
        count = started.resolved.num_outputs or self._request.spec.sampling.num_outputs or 1
        return b"".join(
            self._envelope.chunk(b'{"index":%d,"delta":%b' % (i, delta) + _NO_LOGPROBS)
            for i in range(count)
        )

    def _delta(self, delta: Delta) -> bytes:
        is_reasoning = delta.channel == generation_pb2.CHANNEL_REASONING
        head = b'{"index":%d,"delta":{"%b":' % (
            delta.output_index,
            b"reasoning_content" if is_reasoning else b"content",
        )
        tail = _NO_LOGPROBS
        if delta.logprobs is not None:
            logprobs = {"content": chat_logprobs(delta.logprobs), "refusal": None}
            tail = b'},"logprobs":' + encode_json(logprobs) + b',"finish_reason":null}'
        return self._envelope.chunk(head + encode_json(delta.text) + tail)

    def _tool_call(self, call: generation_pb2.ToolCallDelta) -> bytes:
        """Identity and type on the first fragment only; later ones append to the arguments."""
        key = (call.output_index, call.call_index)
        fragment: dict[str, Any] = {"index": call.call_index}
        function: dict[str, str] = {"arguments": call.arguments_fragment}
        if key not in self._opened_calls:
            self._opened_calls.add(key)
            fragment |= {"id": call.id, "type": "function"}
            function = {"name": call.name, **function}
        elif not call.arguments_fragment:
            return b""
        fragment["function"] = function
        head = b'{"index":%d,"delta":{"tool_calls":[' % call.output_index
        return self._envelope.chunk(head + encode_json(fragment) + b"]" + _NO_LOGPROBS)


def encode_chat(
    answer: generation_service_pb2.GenerateUnaryResponse, envelope: Envelope, request: ChatRequest
) -> bytes:
    """A whole answer."""
    body = envelope.constants(answer.started, "chat.completion")
    body["choices"] = [_choice(output, request) for output in answer.outputs]
    body["usage"] = usage_fields([answer.finished.usage])
    return encode_json(body)


def _choice(output: generation_pb2.Output, request: ChatRequest) -> dict[str, Any]:
    logprobs = None
    if request.logprobs:
        shown = without_end_token(output.logprobs, output.finished)
        logprobs = {"content": chat_logprobs(shown), "refusal": None}
    return {
        "index": output.output_index,
        "message": _message(output),
        "logprobs": logprobs,
        "finish_reason": _finish_reason(output.finished, request),
    }


def _message(output: generation_pb2.Output) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if output.tool_calls and not output.text else output.text,
        "refusal": None,
    }
    if output.reasoning:
        message["reasoning_content"] = output.reasoning
    if output.tool_calls:
        message["tool_calls"] = [_tool_call(call) for call in output.tool_calls]
    return message


def _tool_call(call: prompt_pb2.ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments_json}
    return {"id": call.id, "type": "function", "function": function}


def _finish_reason(finished: generation_pb2.OutputFinished, request: ChatRequest) -> str:
    reason = finish_reason(finished)
    # OpenAI ends a call of a named function with "stop".
    return "stop" if reason == "tool_calls" and request.named_tool else reason
