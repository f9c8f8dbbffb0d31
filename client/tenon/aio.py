"""The asynchronous client: one channel, deadlines on all calls, typed errors, no leaked streams."""

from collections.abc import AsyncIterator, Awaitable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import grpc
from google.protobuf.message import Message

from tenon.channels import client_channel_options
from tenon.errors import InternalError, TenonError, error_from_status
from tenon.fold import fold_events
from tenon.v1 import (
    constraint_pb2,
    generation_pb2,
    generation_service_pb2,
    generation_service_pb2_grpc,
    model_pb2,
    prompt_pb2,
)

DEFAULT_TARGET = "127.0.0.1:50051"
READ_TIMEOUT = 30.0

Spec = generation_pb2.GenerationSpec
Event = generation_pb2.GenerationEvent
_Response = TypeVar("_Response", bound=Message)
_Call = grpc.aio.UnaryStreamCall[
    generation_service_pb2.GenerateRequest, generation_service_pb2.GenerateResponse
]


class GenerationStream:
    """One running generation: an async context manager and an async iterator of events.

    Leaving it in any way cancels the call, which frees what the server holds for it: since grpcio
    1.83 a stream that is merely dropped is never cancelled.
    """

    def __init__(self, call: _Call) -> None:
        self._call = call

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Ends the generation; harmless when it has ended."""
        self._call.cancel()

    async def messages(self) -> AsyncIterator[generation_service_pb2.GenerateResponse]:
        """Yields the messages as they arrive, each a list of events.

        Raises TenonError when the call fails, and InternalError when messages are missing.
        """
        sequence, finished = 0, False
        try:
            async for message in self._call:
                sequence += 1
                if message.sequence != sequence:
                    raise InternalError(f"message {sequence} of the stream is missing")
                finished = message.events[-1].WhichOneof("event") == "finished"
                yield message
            if not finished:
                raise InternalError("the stream ended before its Finished event")
        except grpc.aio.AioRpcError as error:
            raise await _stream_error(self._call, error) from None
        finally:
            self._call.cancel()

    async def __aiter__(self) -> AsyncIterator[Event]:
        messages = self.messages()
        try:
            async for message in messages:
                for event in message.events:
                    yield event
        finally:
            await messages.aclose()  # type: ignore[attr-defined]  # it is a generator

    async def text(self, output_index: int = 0) -> AsyncIterator[str]:
        """Yields the text of one output's answer as it grows."""
        async for event in self:
            if event.HasField("text") and event.text.output_index == output_index:
                yield event.text.text

    async def collect(self) -> generation_service_pb2.GenerateUnaryResponse:
        """Waits for the end; the same answer that generate_unary gives."""
        return fold_events([event async for event in self])


class AsyncClient:
    """A client of one Tenon service. Belongs to the event loop in which it is first used.

    target: host:port or unix:path. timeout: seconds for a whole generation unless a call says
    otherwise; None waits without limit. metadata: sent with every call, for example a key.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float | None = 600.0,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._target = target
        self._timeout = timeout
        self._metadata = tuple(metadata)
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the channel and cancels what still runs on it."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def generate(
        self, spec: Spec, *, request_id: str = "", timeout: float | None = None
    ) -> GenerationStream:
        """Starts a generation. Errors surface when the stream is read."""
        request = generation_service_pb2.GenerateRequest(request_id=request_id, spec=spec)
        call = self._stub().Generate(request, timeout=self._limit(timeout), metadata=self._metadata)
        return GenerationStream(call)

    async def generate_unary(
        self, spec: Spec, *, request_id: str = "", timeout: float | None = None
    ) -> generation_service_pb2.GenerateUnaryResponse:
        """Generates and returns everything at once."""
        request = generation_service_pb2.GenerateUnaryRequest(request_id=request_id, spec=spec)
        call = self._stub().GenerateUnary(
            request, timeout=self._limit(timeout), metadata=self._metadata
        )
        return await _unary(call)

    async def end_generation(
        self, request_id: str, mode: generation_service_pb2.EndMode.ValueType
    ) -> None:
        """Closes or cancels a running generation of the same caller."""
        request = generation_service_pb2.EndGenerationRequest(request_id=request_id, mode=mode)
        await _unary(
            self._stub().EndGeneration(request, timeout=READ_TIMEOUT, metadata=self._metadata)
        )

    async def check_constraint(
        self, constraint: constraint_pb2.Constraint, *, model: str = ""
    ) -> constraint_pb2.ConstraintReport:
        """Says how a constraint would be enforced; raises ConstraintRefused if it would not."""
        request = generation_service_pb2.CheckConstraintRequest(model=model, constraint=constraint)
        call = self._stub().CheckConstraint(request, timeout=READ_TIMEOUT, metadata=self._metadata)
        return (await _unary(call)).report

    async def render_chat(
        self, conversation: prompt_pb2.Conversation, *, model: str = ""
    ) -> generation_service_pb2.RenderChatResponse:
        """Renders a conversation exactly as it would be fed to the model."""
        request = generation_service_pb2.RenderChatRequest(model=model, conversation=conversation)
        return await _unary(
            self._stub().RenderChat(request, timeout=READ_TIMEOUT, metadata=self._metadata)
        )

    async def tokenize(
        self,
        texts: Sequence[str],
        *,
        model: str = "",
        add_special_tokens: bool | None = None,
    ) -> list[generation_service_pb2.TokenizedText]:
        """Token ids of texts, in order."""
        request = generation_service_pb2.TokenizeRequest(
            model=model, texts=texts, add_special_tokens=add_special_tokens
        )
        call = self._stub().Tokenize(request, timeout=READ_TIMEOUT, metadata=self._metadata)
        return list((await _unary(call)).results)

    async def detokenize(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        model: str = "",
        skip_special_tokens: bool = False,
    ) -> list[str]:
        """Texts of token ids, in order."""
        request = generation_service_pb2.DetokenizeRequest(
            model=model,
            sequences=[prompt_pb2.TokenIds(ids=ids) for ids in sequences],
            skip_special_tokens=skip_special_tokens,
        )
        call = self._stub().Detokenize(request, timeout=READ_TIMEOUT, metadata=self._metadata)
        return list((await _unary(call)).texts)

    async def get_model(self, name: str = "") -> model_pb2.Model:
        """One model; the only one if the name is empty."""
        request = generation_service_pb2.GetModelRequest(name=name)
        call = self._stub().GetModel(request, timeout=READ_TIMEOUT, metadata=self._metadata)
        return (await _unary(call)).model

    async def list_models(self) -> list[model_pb2.Model]:
        """All models, page after page."""
        models: list[model_pb2.Model] = []
        token = ""
        while True:
            request = generation_service_pb2.ListModelsRequest(page_token=token)
            call = self._stub().ListModels(request, timeout=READ_TIMEOUT, metadata=self._metadata)
            page = await _unary(call)
            models.extend(page.models)
            token = page.next_page_token
            if not token:
                return models

    def _stub(self) -> "generation_service_pb2_grpc.GenerationServiceAsyncStub":
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(
                self._target, options=client_channel_options()
            )
        return generation_service_pb2_grpc.GenerationServiceStub(self._channel)

    def _limit(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else timeout


async def _unary(call: Awaitable[_Response]) -> _Response:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise error_from_status(error.code(), error.details(), error.trailing_metadata()) from None


async def _stream_error(call: _Call, error: grpc.aio.AioRpcError) -> TenonError:
    # What the failing read raises may come before the trailers; the call itself waits for them.
    code = await call.code()
    details = await call.details()
    return error_from_status(code, details or error.details(), await call.trailing_metadata())
