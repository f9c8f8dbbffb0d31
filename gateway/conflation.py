"""Joins the events of one message: a few deltas per output, however many tokens it holds."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gateway.logprobs import without_end_token
from tenon.v1 import generation_pb2


@dataclass(slots=True)
class Delta:
    """What one message adds to one output in one channel."""

    output_index: int
    channel: int
    texts: list[str] = field(default_factory=list)
    logprobs: generation_pb2.Logprobs | None = None

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)


Item = (
    Delta
    | generation_pb2.Started
    | generation_pb2.ToolCallDelta
    | generation_pb2.OutputFinished
    | generation_pb2.Finished
)


def conflate(events: Iterable[generation_pb2.GenerationEvent]) -> Iterator[Item]:
    """Yields what an encoder writes, in order. An output's delta comes before its end."""
    open_deltas: dict[int, Delta] = {}
    for event in events:
        match event.WhichOneof("event"):
            case "started":
                yield event.started
            case "text":
                yield from _add_text(open_deltas, event.text)
            case "tokens":
                _add_tokens(open_deltas, event.tokens)
            case "tool_call":
                yield from _closed(open_deltas, event.tool_call.output_index)
                yield event.tool_call
            case "output_finished":
                yield from _ended(open_deltas, event.output_finished)
            case "finished":
                yield event.finished
    yield from open_deltas.values()


def _add_text(open_deltas: dict[int, Delta], text: generation_pb2.TextDelta) -> Iterator[Delta]:
    delta = open_deltas.get(text.output_index)
    if delta is not None and delta.texts and delta.channel != text.channel:
        yield from _closed(open_deltas, text.output_index)
        delta = None
    if delta is None:
        delta = open_deltas[text.output_index] = Delta(text.output_index, text.channel)
    delta.channel = text.channel
    delta.texts.append(text.text)


def _add_tokens(open_deltas: dict[int, Delta], tokens: generation_pb2.TokensDelta) -> None:
    if not tokens.HasField("logprobs"):
        return
    index = tokens.output_index
    delta = open_deltas.setdefault(index, Delta(index, generation_pb2.CHANNEL_CONTENT))
    if delta.logprobs is None:
        delta.logprobs = generation_pb2.Logprobs()
    delta.logprobs.MergeFrom(tokens.logprobs)


def _ended(
    open_deltas: dict[int, Delta], finished: generation_pb2.OutputFinished
) -> Iterator[Item]:
    for delta in _closed(open_deltas, finished.output_index):
        if delta.logprobs is not None:
            delta.logprobs = without_end_token(delta.logprobs, finished)
        if delta.texts or (delta.logprobs is not None and delta.logprobs.token_bytes):
            yield delta
    yield finished


def _closed(open_deltas: dict[int, Delta], output_index: int) -> Iterator[Delta]:
    delta = open_deltas.pop(output_index, None)
    if delta is not None:
        yield delta
