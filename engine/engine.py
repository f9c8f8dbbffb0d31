"""The engine: takes requests, runs steps, hands out what each step did.

One thread owns it and calls `step`; `add`, `abort` and `end` may be called from any thread.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

import numpy as np

from engine.admission import Admission
from engine.batch import ScheduledStep
from engine.blocks import BlockPool
from engine.config import EngineConfig, EngineInfo
from engine.matcher import Matcher
from engine.outputs import OutputCollector
from engine.plan import PendingResult, Runner, StepResult
from engine.progress import Clock, Progress
from engine.request import (
    EngineLoad,
    FinishReason,
    RequestError,
    RequestOutput,
    RequestSpec,
)
from engine.scheduler import Scheduler
from engine.sequence import Sequence, SequenceTimes
from engine.waiting import DrainRate

_QUEUE_REPORT_INTERVAL = 1.0  # seconds of waiting between two reports of the queue position

_NO_SAMPLES = StepResult(token_ids=np.empty(0, dtype=np.int32), logprobs=())


class EngineStepError(Exception):
    """A step failed and ended all open requests. `outputs` holds what they get to hear."""

    def __init__(self, outputs: list[RequestOutput]) -> None:
        super().__init__("a step of the engine failed")
        self.outputs = outputs


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A step whose result is still to be applied. pending: None if it samples nothing."""

    step: ScheduledStep
    pending: PendingResult | None


class Engine:
    """Continuous batching over one runner.

    depth 0: a step's result is applied before the step returns. depth 1: it is applied during the
    next step, while that one's forward pass already runs.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        info: EngineInfo,
        *,
        depth: int = 0,
        clock: Clock = time.monotonic,
    ) -> None:
        assert depth in (0, 1)
        self._runner = runner
        self._info = info
        self._depth = depth
        self._clock = clock
        self._admission = Admission(config, info)
        self._scheduler = Scheduler(
            BlockPool(runner.num_blocks, config.block_size),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self._outputs = OutputCollector()
        self._progress = Progress(self._scheduler, self._outputs, runner.vocab_size, clock)
        self._rate = DrainRate()
        self._open: dict[str, Sequence] = {}
        self._numbers = count()
        self._commands: deque[Callable[[], None]] = deque()
        self._in_flight: deque[_InFlight] = deque()

    @property
    def info(self) -> EngineInfo:
        """Facts of the loaded model."""
        return self._info

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._open or self._commands or self._in_flight or len(self._outputs))

    def add(self, spec: RequestSpec, matcher: Matcher | None = None) -> None:
        """Takes a request. A refusal is an output of the next step.

        Raises ValueError if a request with this id is open: its outputs could not be told apart.
        """
        if spec.request_id in self._open:
            raise ValueError(f"request {spec.request_id} is already in the engine")
        now = self._clock()
        sequence = Sequence(
            spec=spec,
            matcher=matcher,
            limit=self._admission.output_limit(spec),
            number=next(self._numbers),
            times=SequenceTimes(spec.arrival or now, now + _QUEUE_REPORT_INTERVAL),
            tokens=list(spec.prompt_ids),
        )
        self._open[spec.request_id] = sequence
        self._commands.append(lambda: self._enqueue(sequence))

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drops requests without another output; unknown ids are ignored."""
        # Their ids are free for new requests from here on.
        dropped = [self._open.pop(request_id, None) for request_id in request_ids]
        self._commands.append(lambda: self._drop(dropped))

    def end(self, request_ids: Iterable[str]) -> None:
        """Ends requests with ENDED after what they produced; unknown ids are ignored."""
        ids = tuple(request_ids)
        self._commands.append(lambda: self._close(ids))

    def step(self) -> list[RequestOutput]:
        """Runs one step. Raises EngineStepError if the runner fails; no request is open then."""
        try:
            self._step()
        except Exception as error:
            self._fail_all()
            raise EngineStepError(self._collect()) from error
        return self._collect()

    def load(self) -> EngineLoad:
        """What the engine holds after the last step."""
        scheduler, counts = self._scheduler, self._scheduler.counts
        return EngineLoad(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            waiting_tokens=scheduler.waiting.num_tokens,
            kv_blocks_used=scheduler.pool.num_used,
            kv_blocks_total=scheduler.pool.num_total,
            steps=counts.steps,
            preemptions=counts.preemptions,
            recomputed_tokens=counts.recomputed_tokens,
            prompt_tokens=counts.prompt_tokens,
            cached_tokens=counts.cached_tokens,
            output_tokens=self._outputs.num_tokens,
        )

    def reset_prefix_cache(self) -> int:
        """Forgets cached blocks that no request holds; returns how many."""
        return self._scheduler.pool.reset()

    def check(self) -> None:
        """Asserts the scheduler's invariants. For tests, between steps."""
        self._scheduler.check()

    def _step(self) -> None:
        self._take_commands()
        self._apply_deadlines()
        self._report_queue()
        step = self._schedule()
        if step is not None:
            self._runner.forward(step.plan)
        # At depth 1 the step before is applied here, while the forward pass runs.
        self._settle(max_in_flight=0)
        if step is not None:
            self._in_flight.append(self._sample(step))
        self._settle(max_in_flight=self._depth)

    def _schedule(self) -> ScheduledStep | None:
        step, started, exhausted = self._scheduler.schedule()
        now = self._clock()
        for sequence in started:
            if sequence.times.started is None:
                sequence.times.started = now
                self._rate.record(now)
                self._outputs.report_start(sequence.request_id)
        for sequence in exhausted:
            self._progress.close(sequence, FinishReason.LENGTH)
        return step

    def _sample(self, step: ScheduledStep) -> _InFlight:
        self._take_commands()
        if not step.plan.sampling:
            return _InFlight(step, None)
        mask = self._progress.masks(step)
        current = step.with_known_outputs() if self._depth else step
        return _InFlight(current, self._runner.sample(current.plan, mask))

    def _settle(self, *, max_in_flight: int) -> None:
        """Applies the results of the oldest steps until at most `max_in_flight` are out."""
        while len(self._in_flight) > max_in_flight:
            oldest = self._in_flight.popleft()
            result = oldest.pending.wait() if oldest.pending is not None else _NO_SAMPLES
            self._take_commands()
            self._progress.apply(oldest.step, result)

    def _take_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _enqueue(self, sequence: Sequence) -> None:
        scheduler, now = self._scheduler, self._clock()
        error = self._admission.refuse(
            sequence.spec, scheduler.waiting, scheduler.num_free_slots, self._rate, now
        )
        if error is None:
            scheduler.add(sequence)
            return
        sequence.is_finished = True
        self._outputs.finish(
            sequence.request_id, FinishReason.ERROR, stats=sequence.stats(now), error=error
        )

    def _drop(self, sequences: list[Sequence | None]) -> None:
        for sequence in sequences:
            if sequence is not None:
                self._outputs.drop(sequence.request_id)
                if not sequence.is_finished:
                    self._scheduler.remove(sequence)

    def _close(self, request_ids: tuple[str, ...]) -> None:
        for sequence in self._find(request_ids):
            self._progress.close(sequence, FinishReason.ENDED)

    def _find(self, request_ids: tuple[str, ...]) -> list[Sequence]:
        """Requests that are still going; each at most once."""
        found = (self._open.get(request_id) for request_id in dict.fromkeys(request_ids))
        return [sequence for sequence in found if sequence and not sequence.is_finished]

    def _apply_deadlines(self) -> None:
        now = self._clock()
        for sequence in self._scheduler.sequences():
            spec = sequence.spec
            has_started = sequence.times.started is not None
            if spec.deadline is not None and now >= spec.deadline:
                error = RequestError("DEADLINE_EXCEEDED", "the request's deadline has passed")
                self._progress.fail(sequence, error)
            elif spec.start_by is not None and now >= spec.start_by and not has_started:
                error = RequestError("QUEUE_TIMEOUT", "the request waited too long to start")
                self._progress.fail(sequence, error)
            elif spec.close_at is not None and now >= spec.close_at:
                self._progress.close(sequence, FinishReason.TIME_LIMIT)

    def _report_queue(self) -> None:
        """Tells waiting requests their place, about once a second each."""
        now = self._clock()
        for position, sequence in enumerate(self._scheduler.waiting, start=1):
            times = sequence.times
            if times.started is None and now >= times.next_queue_report:
                times.next_queue_report = now + _QUEUE_REPORT_INTERVAL
                wait = self._rate.wait_for(position, now)
                self._outputs.report_queue(sequence.request_id, position, wait)

    def _collect(self) -> list[RequestOutput]:
        outputs = self._outputs.collect()
        for output in outputs:
            sequence = self._open.get(output.request_id)
            if sequence is not None and sequence.is_finished:
                del self._open[output.request_id]
        return outputs

    def _fail_all(self) -> None:
        """Ends every request; nothing that was computed is trusted any more."""
        self._take_commands()
        for sequence in self._scheduler.sequences():
            self._progress.fail(sequence, RequestError("INTERNAL", "the engine failed"))
        self._in_flight.clear()
        self._scheduler.discard_in_flight()
        self._scheduler.pool.reset()
