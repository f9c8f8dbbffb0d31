"""A server that replays what a test wrote down, for tests of code that calls Tenon."""

from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Self

import grpc

from tenon.v1 import (
    generation_pb2,
    generation_service_pb2,
    generation_service_pb2_grpc,
    model_pb2,
)

Script = Callable[
    [generation_service_pb2.GenerateRequest, "FakeContext"],
    AsyncIterator[Sequence[generation_pb2.GenerationEvent]],
]
FakeContext = grpc.aio.ServicerContext[
    generation_service_pb2.GenerateRequest, generation_service_pb2.GenerateResponse
]


def text_events(*pieces: str, output_tokens: int = 0) -> list[generation_pb2.GenerationEvent]:
    """A whole answer of one output that says `pieces`."""
    event = generation_pb2.GenerationEvent
    finished = generation_pb2.OutputFinished(
        reason=generation_pb2.FINISH_REASON_STOP, output_tokens=output_tokens
    )
    usage = generation_pb2.Usage(prompt_tokens=1, output_tokens=output_tokens)
    return [
        event(started=generation_pb2.Started(request_id="fake", prompt_tokens=1)),
        event(prompt_processed=generation_pb2.PromptProcessed()),
        *(
            event(text=generation_pb2.TextDelta(channel=generation_pb2.CHANNEL_CONTENT, text=piece))
            for piece in pieces
        ),
        event(output_finished=finished),
        event(finished=generation_pb2.Finished(usage=usage)),
    ]


class FakeServer(generation_service_pb2_grpc.GenerationServiceServicer):
    """An async context manager that serves on a free loopback port.

    script: called with each Generate request and its context; yields the events of one message at a
    time. requests: what was received. cancelled: how many Generate calls the caller gave up.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._server: grpc.aio.Server | None = None
        self.address = ""
        self.requests: list[generation_service_pb2.GenerateRequest] = []
        self.cancelled = 0

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()
        generation_service_pb2_grpc.add_GenerationServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            await self._server.stop(grace=0)

    async def Generate(
        self, request: generation_service_pb2.GenerateRequest, context: FakeContext
    ) -> AsyncIterator[generation_service_pb2.GenerateResponse]:
        """Replays the script."""
        self.requests.append(request)
        sequence = 0
        ended = False
        try:
            async for events in self._script(request, context):
                sequence += 1
                yield generation_service_pb2.GenerateResponse(sequence=sequence, events=events)
            ended = True
        finally:
            self.cancelled += not ended

    async def ListModels(
        self, request: generation_service_pb2.ListModelsRequest, context: FakeContext
    ) -> generation_service_pb2.ListModelsResponse:
        """Lists one model named fake."""
        return generation_service_pb2.ListModelsResponse(models=[model_pb2.Model(name="fake")])
