"""One running generation: the engine's outputs in, the one stream of events out.

The engine never waits for a reader: its outputs go into a mailbox, and whoever reads the generation
takes all that is there at once.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.request import FinishReason, RequestOutput, RequestStats
from service import events
from service.engine_client import EngineClient, EngineRequest
from service.errors import RETRYABLE_REASONS, ServiceError, from_engine
from service.events import Event
from service.metrics import ServiceMetrics
from service.output_stream import OutputStream
from service.queue_reporter import QueueReporter
from tenon.v1 import errors_pb2, generation_pb2

# A peer that takes nothing for this long is stalled or gone.
STALL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Launch:
    """What a generation sends to its engine, and what it says when it has started.

    requests, streams: one per output, in order. started: the Started event.
    """

    engine: EngineClient
    requests: Sequence[EngineRequest]
    streams: Sequence[OutputStream]
    started: Event
    prompt_tokens: int


class Generation:
    """A generation from admission to its end. Belongs to one event loop.

    The reader calls `next_events` until it returns None, and `close` in any case.
    """

    def __init__(
        self,
        request_id: str,
        metrics: ServiceMetrics,
        clock: Callable[[], float],
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self.request_id = request_id
        self.arrival = clock()
        self.has_started = False
        self.cached_tokens: int | None = None
        self._metrics = metrics
        self._clock = clock
        self._stall_seconds = stall_seconds
        self._launch: Launch | None = None
        self._stream_of: dict[str, OutputStream] = {}
        self._mailbox: list[RequestOutput] = []
        self._oldest_mail = 0.0
        self._has_mail = asyncio.Event()
        self._queue = QueueReporter(self.arrival)
        self._failure: ServiceError | None = None
        self._has_sent = False
        self._is_done = False
        self._end_requested = False

    def launch(self, launch: Launch) -> None:
        """Submits to the engine. Raises EngineNotReady; does nothing after a failure."""
        if self._failure is not None:
            return
        self._launch = launch
        ids = [request.spec.request_id for request in launch.requests]
        self._stream_of = dict(zip(ids, launch.streams, strict=True))
        launch.engine.submit(launch.requests, self._on_outputs)
        if self._end_requested:
            self.end()

    async def next_events(self) -> list[Event] | None:
        """All events since the last call, at least one; None after Finished.

        Raises ServiceError when the generation failed; with a GenerationFailure if an event had
        been sent.
        """
        while not self._is_done:
            await self._wait_for_mail()
            outputs, self._mailbox = self._mailbox, []
            self._has_mail.clear()
            batch = self._fold(outputs)
            if self._failure is not None and not (batch and self._has_sent):
                raise self._with_progress(self._failure)
            if batch:
                self._has_sent = True
                return batch
        return None

    def fail(self, error: ServiceError) -> None:
        """Ends the generation with an error and drops it from the engine."""
        if self._is_done or self._failure is not None:
            return
        self._failure = error
        self._mailbox.clear()
        self._abort_open()
        self._has_mail.set()

    def end(self) -> None:
        """Ends all outputs cleanly; what they have is delivered."""
        self._end_requested = True
        if self._launch is not None:
            self._launch.engine.end(self._open_ids())

    def close(self) -> None:
        """Drops what still runs in the engine. Posts only, never waits."""
        if not self._is_done and self._failure is None:
            self._abort_open()
        self._is_done = True
        self._mailbox.clear()

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt; 0 before it is known."""
        return self._launch.prompt_tokens if self._launch is not None else 0

    @property
    def output_tokens(self) -> int:
        """Tokens of all outputs so far."""
        return sum(stream.num_tokens for stream in self._stream_of.values())

    @property
    def first_token_seconds(self) -> float | None:
        """From arrival to the first token of any output."""
        times = [stream.timeline.first_token for stream in self._stream_of.values()]
        known = [time for time in times if time is not None]
        return min(known) - self.arrival if known else None

    def usage(self) -> generation_pb2.Usage:
        """Token counts so far."""
        stats = [stream.stats for stream in self._stream_of.values() if stream.stats is not None]
        return generation_pb2.Usage(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens or 0,
            output_tokens=self.output_tokens,
            forced_tokens=sum(item.forced_tokens for item in stats),
            closing_tokens=sum(item.closing_tokens for item in stats),
        )

    def _on_outputs(self, outputs: Sequence[RequestOutput]) -> None:
        """The engine's listener."""
        if self._is_done or self._failure is not None:
            return
        now = self._clock()
        if not self._mailbox:
            self._oldest_mail = now
        elif now - self._oldest_mail > self._stall_seconds:
            message = f"the stream was not read for {self._stall_seconds:g} seconds"
            self.fail(ServiceError("SLOW_READER", message))
            return
        self._mailbox += outputs
        self._has_mail.set()

    async def _wait_for_mail(self) -> None:
        due = None if self.has_started else self._queue.due_at
        if self._has_mail.is_set() or due is None:
            await self._has_mail.wait()
            return
        try:
            async with asyncio.timeout(max(0.0, due - self._clock())):
                await self._has_mail.wait()
        except TimeoutError:
            return  # a Queued event is due

    def _fold(self, outputs: Sequence[RequestOutput]) -> list[Event]:
        batch: list[Event] = []
        now = self._clock()
        for output in outputs:
            self._fold_one(output, now, batch)
            if self._failure is not None:
                break
        if not self.has_started and (report := self._queue.report(now)) is not None:
            batch.append(report)
        for stream in self._stream_of.values():
            batch += stream.drain()
        if self._failure is None and self._all_finished():
            batch.append(events.finished(self.usage(), self._all_stats(), now - self.arrival))
            self._is_done = True
        return batch

    def _fold_one(self, output: RequestOutput, now: float, batch: list[Event]) -> None:
        stream = self._stream_of[output.request_id]
        if stream.is_finished:
            return
        if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORTED):
            self.fail(_engine_failure(output))
            return
        self._queue.note(output)
        if output.started or output.token_ids or output.finish_reason is not None:
            batch += self._start(stream, now)
        if output.cached_tokens is not None or output.token_ids or output.finish_reason is not None:
            batch += self._process_prompt(stream, output.cached_tokens, now)
        self._observe_tokens(stream, len(output.token_ids), now)
        stream.take(output, now)
        if stream.stop_string is not None:
            if output.finish_reason is None:
                self._abort([output.request_id])
            batch += stream.finish(FinishReason.STOP)
        elif output.finish_reason is not None:
            batch += stream.finish(output.finish_reason, output.stop_token_id)

    def _start(self, stream: OutputStream, now: float) -> list[Event]:
        if stream.timeline.started is None:
            stream.timeline.started = now
        if self.has_started or self._launch is None:
            return []
        self.has_started = True
        return [self._launch.started]

    def _process_prompt(
        self, stream: OutputStream, cached_tokens: int | None, now: float
    ) -> list[Event]:
        if stream.timeline.prompt_processed is None:
            stream.timeline.prompt_processed = now
        if self.cached_tokens is not None:
            return []
        self.cached_tokens = cached_tokens or 0
        return [events.prompt_processed(self.cached_tokens)]

    def _observe_tokens(self, stream: OutputStream, num_tokens: int, now: float) -> None:
        if not num_tokens:
            return
        if self.first_token_seconds is None:
            self._metrics.time_to_first_token.observe(now - self.arrival)
        if stream.timeline.last_token is not None:
            gap = (now - stream.timeline.last_token) / num_tokens
            self._metrics.inter_token_latency.observe(gap)

    def _all_finished(self) -> bool:
        streams = self._stream_of.values()
        return bool(streams) and all(stream.is_finished for stream in streams)

    def _all_stats(self) -> list[RequestStats]:
        return [
            stream.stats or stream.timeline.as_stats(self.arrival)
            for stream in self._stream_of.values()
        ]

    def _with_progress(self, error: ServiceError) -> ServiceError:
        if self._has_sent:
            error.failure = errors_pb2.GenerationFailure(
                request_id=self.request_id,
                usage=self.usage(),
                resumable=error.reason in RETRYABLE_REASONS,
            )
        return error

    def _open_ids(self) -> list[str]:
        return [id_ for id_, stream in self._stream_of.items() if not stream.is_finished]

    def _abort_open(self) -> None:
        self._abort(self._open_ids())

    def _abort(self, engine_ids: Sequence[str]) -> None:
        if self._launch is not None and engine_ids:
            self._launch.engine.abort(engine_ids)


def _engine_failure(output: RequestOutput) -> ServiceError:
    if output.finish_reason is FinishReason.ABORTED:
        return ServiceError("ABORTED_BY_OPERATOR", "the engine dropped the request")
    return from_engine(output.error)
