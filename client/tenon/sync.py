"""The synchronous client: the asynchronous one on a private event loop in its own thread."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from tenon.aio import DEFAULT_TARGET, AsyncClient, Event, GenerationStream, Spec
from tenon.v1 import (
    constraint_pb2,
    generation_service_pb2,
    model_pb2,
    prompt_pb2,
)

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


class _LoopThread:
    """An event loop in a daemon thread, for callers that have none."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tenon-client", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Runs a coroutine there and returns its result; an interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stops the loop and waits for its thread."""
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncGenerationStream:
    """One running generation: a context manager and an iterator of events.

    Leaving it in any way cancels the call.
    """

    def __init__(self, thread: _LoopThread, stream: GenerationStream) -> None:
        self._thread = thread
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Ends the generation; harmless when it has ended."""
        self._thread.run(_cancel(self._stream))

    def __iter__(self) -> Iterator[Event]:
        return self._drive(aiter(self._stream))

    def messages(self) -> Iterator[generation_service_pb2.GenerateResponse]:
        """Yields the messages as they arrive, each a list of events."""
        return self._drive(self._stream.messages())

    def text(self, output_index: int = 0) -> Iterator[str]:
        """Yields the text of one output's answer as it grows."""
        return self._drive(self._stream.text(output_index))

    def collect(self) -> generation_service_pb2.GenerateUnaryResponse:
        """Waits for the end; the same answer that generate_unary gives."""
        return self._thread.run(self._stream.collect())

    def _drive(self, items: AsyncIterator[_Item]) -> Iterator[_Item]:
        try:
            while True:
                try:
                    yield self._thread.run(_next(items))
                except StopAsyncIteration:
                    return
        finally:
            self.cancel()


class Client:
    """A client of one Tenon service for code without an event loop. See AsyncClient."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float | None = 600.0,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._client = AsyncClient(target, timeout=timeout, metadata=metadata)
        self._thread = _LoopThread()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the channel and cancels what still runs on it."""
        self._thread.run(self._client.close())
        self._thread.close()

    def generate(
        self, spec: Spec, *, request_id: str = "", timeout: float | None = None
    ) -> SyncGenerationStream:
        """Starts a generation. Errors surface when the stream is read."""
        start = _start(self._client, spec, request_id, timeout)
        return SyncGenerationStream(self._thread, self._thread.run(start))

    def generate_unary(
        self, spec: Spec, *, request_id: str = "", timeout: float | None = None
    ) -> generation_service_pb2.GenerateUnaryResponse:
        """Generates and returns everything at once."""
        call = self._client.generate_unary(spec, request_id=request_id, timeout=timeout)
        return self._thread.run(call)

    def end_generation(
        self, request_id: str, mode: generation_service_pb2.EndMode.ValueType
    ) -> None:
        """Closes or cancels a running generation of the same caller."""
        self._thread.run(self._client.end_generation(request_id, mode))

    def check_constraint(
        self, constraint: constraint_pb2.Constraint, *, model: str = ""
    ) -> constraint_pb2.ConstraintReport:
        """Says how a constraint would be enforced; raises ConstraintRefused if it would not."""
        return self._thread.run(self._client.check_constraint(constraint, model=model))

    def render_chat(
        self, conversation: prompt_pb2.Conversation, *, model: str = ""
    ) -> generation_service_pb2.RenderChatResponse:
        """Renders a conversation exactly as it would be fed to the model."""
        return self._thread.run(self._client.render_chat(conversation, model=model))

    def tokenize(
        self, texts: Sequence[str], *, model: str = "", add_special_tokens: bool | None = None
    ) -> list[generation_service_pb2.TokenizedText]:
        """Token ids of texts, in order."""
        call = self._client.tokenize(texts, model=model, add_special_tokens=add_special_tokens)
        return self._thread.run(call)

    def detokenize(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        model: str = "",
        skip_special_tokens: bool = False,
    ) -> list[str]:
        """Texts of token ids, in order."""
        call = self._client.detokenize(
            sequences, model=model, skip_special_tokens=skip_special_tokens
        )
        return self._thread.run(call)

    def get_model(self, name: str = "") -> model_pb2.Model:
        """One model; the only one if the name is empty."""
        return self._thread.run(self._client.get_model(name))

    def list_models(self) -> list[model_pb2.Model]:
        """All models."""
        return self._thread.run(self._client.list_models())


async def _next(items: AsyncIterator[_Item]) -> _Item:
    return await anext(items)


async def _cancel(stream: GenerationStream) -> None:
    stream.cancel()


async def _start(
    client: AsyncClient, spec: Spec, request_id: str, timeout: float | None
) -> GenerationStream:
    return client.generate(spec, request_id=request_id, timeout=timeout)
