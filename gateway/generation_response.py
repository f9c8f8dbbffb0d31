"""Answers an exchange with generations: as a stream of events, or whole, from the same messages."""

from collections.abc import Callable, Sequence

from gateway.chunks import StreamEncoder, error_event
from gateway.config import GatewayConfig
from gateway.errors import ApiError
from gateway.exchange import EventStream, Exchange
from gateway.generations import Generations, Message
from tenon.fold import EventFold
from tenon.v1 import generation_service_pb2

Answers = Sequence[generation_service_pb2.GenerateUnaryResponse]


async def stream_answer(
    exchange: Exchange, generations: Generations, encoder: StreamEncoder, config: GatewayConfig
) -> None:
    """Streams. Nothing is sent before every prompt is admitted, so refusals keep their status.

    What fails later ends the stream with an error event instead of the end mark.
    """
    first = await generations.first()
    async with EventStream(exchange, config.ping_interval, config.write_timeout) as events:
        await events.write(b"".join(encoder.encode(i, message) for i, message in enumerate(first)))
        try:
            async for prompt_index, message in generations.rest():
                await events.write(encoder.encode(prompt_index, message))
        except ApiError as error:
            exchange.error_code = error.code
            await events.end(error_event(error))
        else:
            await events.end(encoder.end())


async def whole_answer(
    exchange: Exchange, generations: Generations, encode: Callable[[Answers], bytes]
) -> None:
    """Answers when everything is generated: the fold of the same messages."""
    first = await generations.first()
    folds = [_folded(message) for message in first]
    async for prompt_index, message in generations.rest():
        _add(folds[prompt_index], message)
    await exchange.respond(200, encode([fold.answer() for fold in folds]))


def _folded(message: Message) -> EventFold:
    fold = EventFold()
    _add(fold, message)
    return fold


def _add(fold: EventFold, message: Message) -> None:
    for event in message.events:
        fold.add(event)
