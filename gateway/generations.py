"""The running generations of one HTTP request, one per prompt, read as one stream of messages."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from gateway.errors import ApiError
from tenon import AsyncClient
from tenon.errors import TenonError
from tenon.v1 import generation_pb2, generation_service_pb2

Message = generation_service_pb2.GenerateResponse
# Names the error of one prompt in the API's words. The second argument is the prompt's index.
Translate = Callable[[TenonError, int], ApiError]
# Messages that may wait between the calls of a batch and the one writer.
MERGE_QUEUE_SIZE = 64


class Generations:
    """An async context manager; leaving it in any way cancels every call.

    All errors of the service come out as ApiError.
    """

    def __init__(
        self,
        client: AsyncClient,
        specs: Sequence[generation_pb2.GenerationSpec],
        request_id: str,
        timeout: float,
        translate: Translate,
    ) -> None:
        self._client = client
        self._specs = specs
        self._request_id = request_id
        self._timeout = timeout
        self._translate = translate
        self._calls = AsyncExitStack()
        self._readers: list[AsyncIterator[Message]] = []
        self._pumps: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for i, spec in enumerate(self._specs):
            suffix = f"-{i}" if len(self._specs) > 1 else ""
            stream = self._client.generate(
                spec, request_id=self._request_id + suffix, timeout=self._timeout
            )
            await self._calls.enter_async_context(stream)
            self._readers.append(stream.messages())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for pump in self._pumps:
            pump.cancel()
        await self._calls.aclose()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def first(self) -> list[Message]:
        """The first message of every prompt: from then on all of them are admitted."""
        return await asyncio.gather(*(self._next(i) for i in range(len(self._readers))))

    async def rest(self) -> AsyncIterator[tuple[int, Message]]:
        """The messages after the first, each with the index of its prompt."""
        if len(self._readers) > 1:
            async for item in self._merged():
                yield item
            return
        try:
            async for message in self._readers[0]:
                yield 0, message
        except TenonError as error:
            raise self._translate(error, 0) from error

    async def _next(self, index: int) -> Message:
        try:
            return await anext(self._readers[index])
        except TenonError as error:
            raise self._translate(error, index) from error

    async def _merged(self) -> AsyncIterator[tuple[int, Message]]:
        queue: asyncio.Queue[tuple[int, Message] | ApiError | None] = asyncio.Queue(
            MERGE_QUEUE_SIZE
        )
        self._pumps = [asyncio.create_task(self._pump(i, queue)) for i in range(len(self._readers))]
        num_open = len(self._pumps)
        while num_open:
            item = await queue.get()
            if isinstance(item, ApiError):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield item

    async def _pump(
        self, index: int, queue: "asyncio.Queue[tuple[int, Message] | ApiError | None]"
    ) -> None:
        try:
            async for message in self._readers[index]:
                await queue.put((index, message))
            await queue.put(None)
        except TenonError as error:
            await queue.put(self._translate(error, index))
