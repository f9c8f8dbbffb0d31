"""The fold of an event stream into the unary answer: the one definition of what a stream means."""

from collections.abc import Iterable

from tenon.errors import InternalError
from tenon.v1 import generation_pb2, generation_service_pb2, prompt_pb2


class EventFold:
    """Takes events one by one and holds the answer so far. Unknown events are ignored."""

    def __init__(self) -> None:
        self._answer = generation_service_pb2.GenerateUnaryResponse()
        self._outputs: dict[int, generation_pb2.Output] = {}
        self._calls: dict[tuple[int, int], prompt_pb2.ToolCall] = {}

    def add(self, event: generation_pb2.GenerationEvent) -> None:
        """Takes the next event."""
        match event.WhichOneof("event"):
            case "started":
                self._answer.started.CopyFrom(event.started)
            case "prompt_processed":
                self._answer.prompt_processed.CopyFrom(event.prompt_processed)
            case "text":
                self._add_text(event.text)
            case "tool_call":
                self._add_tool_call(event.tool_call)
            case "tokens":
                self._add_tokens(event.tokens)
            case "output_finished":
                output = self._output(event.output_finished.output_index)
                output.finished.CopyFrom(event.output_finished)
            case "finished":
                self._answer.finished.CopyFrom(event.finished)

    def answer(self) -> generation_service_pb2.GenerateUnaryResponse:
        """The whole answer. Raises InternalError when the stream has not finished."""
        if not self._answer.HasField("finished"):
            raise InternalError("the stream ended before its Finished event")
        del self._answer.outputs[:]
        self._answer.outputs.extend(self._outputs[index] for index in sorted(self._outputs))
        return self._answer

    def _output(self, index: int) -> generation_pb2.Output:
        if index not in self._outputs:
            self._outputs[index] = generation_pb2.Output(output_index=index)
        return self._outputs[index]

    def _add_text(self, delta: generation_pb2.TextDelta) -> None:
        output = self._output(delta.output_index)
        if delta.channel == generation_pb2.CHANNEL_REASONING:
            output.reasoning += delta.text
        else:
            output.text += delta.text

    def _add_tool_call(self, delta: generation_pb2.ToolCallDelta) -> None:
        key = (delta.output_index, delta.call_index)
        if key not in self._calls:
            calls = self._output(delta.output_index).tool_calls
            self._calls[key] = calls.add(id=delta.id, name=delta.name)
        self._calls[key].arguments_json += delta.arguments_fragment

    def _add_tokens(self, delta: generation_pb2.TokensDelta) -> None:
        output = self._output(delta.output_index)
        if delta.token_ids:
            output.token_ids.ids.extend(delta.token_ids)
        if delta.HasField("logprobs"):
            output.logprobs.MergeFrom(delta.logprobs)


def fold_events(
    events: Iterable[generation_pb2.GenerationEvent],
) -> generation_service_pb2.GenerateUnaryResponse:
    """The unary answer of a whole event stream."""
    fold = EventFold()
    for event in events:
        fold.add(event)
    return fold.answer()
