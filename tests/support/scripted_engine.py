"""An EngineClient without an engine: the test decides what is generated and when.

Deterministic and without torch: a step is a method call (`step`), or with auto_step one per turn of
the event loop. Blocks, slots, the queue, stop ids, limits and deadlines behave as the engine's do.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.config import EngineInfo
from engine.request import (
    EngineLoad,
    FinishReason,
    RequestError,
    RequestOutput,
)
from grammar.spec import ConstraintSpec
from service.engine_client import (
    EngineNotReady,
    EngineRequest,
    EngineState,
    EngineStatus,
    OutputListener,
    StateListener,
)
from tests.support.scripted_request import BLOCK_SIZE, Script, ScriptedRequest


@dataclass(slots=True)
class ScriptedEngineClient:
    """Implements EngineClient under a test's control.

    script: what each request generates. auto_step: False to call `step` yourself.
    max_running, max_waiting: slots and queue. cached_tokens: reported for every prompt.
    refusals: the next requests end with these errors. constraint_refusal: what `prepare` says.
    """

    script: Script
    auto_step: bool = True
    vocab_size: int = 512
    max_model_len: int = 1024
    max_running: int = 64
    max_waiting: int = 1024
    cached_tokens: int = 0
    tokens_per_step: int = 1
    refusals: list[RequestError] = field(default_factory=list)
    constraint_refusal: RequestError | None = field(
        default_factory=lambda: RequestError("UNSUPPORTED_FIELD", "constraints are not built in")
    )
    state: EngineState = EngineState.READY
    stage: str = ""
    progress: float = 1.0
    step_age: float | None = None
    num_steps: int = 0
    submitted: list[EngineRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    num_resets: int = 0
    load_gate: asyncio.Event | None = None
    _requests: dict[str, ScriptedRequest] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _is_step_planned: bool = False
    _state_listeners: list[StateListener] = field(default_factory=list)

    @property
    def info(self) -> EngineInfo:
        """Facts of a small made-up model."""
        if self.state is not EngineState.READY:
            raise EngineNotReady(self.state, f"the engine is {self.state}")
        return EngineInfo(
            family="scripted",
            num_parameters=1000,
            device="cpu",
            dtype="float32",
            quantization="F32",
            max_model_len=self.max_model_len,
            vocab_size=self.vocab_size,
            num_blocks=1024,
            block_size=BLOCK_SIZE,
            fingerprint="scripted",
        )

    def status(self) -> EngineStatus:
        """What it holds now."""
        running = [item for item in self._requests.values() if item.is_running]
        load = EngineLoad(
            running=len(running),
            waiting=len(self._requests) - len(running),
            kv_blocks_used=sum(item.num_blocks for item in running),
            kv_blocks_total=1024,
            steps=self.num_steps,
        )
        return EngineStatus(self.state, self.progress, self.stage, load, self.step_age)

    def add_state_listener(self, listener: StateListener) -> None:
        """Told by `set_state`."""
        self._state_listeners.append(listener)

    def set_state(self, state: EngineState) -> None:
        """Changes the state and tells the listeners."""
        self.state = state
        for listener in self._state_listeners:
            listener(self.status())
        self._note_change()

    async def start(self) -> None:
        """Ready at once, or when the test opens `load_gate`."""
        if self.load_gate is not None:
            self.set_state(EngineState.LOADING)
            await self.load_gate.wait()
        self.set_state(EngineState.READY)

    def submit(self, requests: Sequence[EngineRequest], listener: OutputListener) -> None:
        """Takes requests into slots, the queue, or refuses them at the next turn of the loop."""
        if self.state is not EngineState.READY:
            raise EngineNotReady(self.state, f"the engine is {self.state}")
        for request in requests:
            self.submitted.append(request)
            error = self._refusal()
            if error is not None:
                output = _failed(request.spec.request_id, error)
                asyncio.get_running_loop().call_soon(listener, [output])
                continue
            spec = request.spec
            assert spec.request_id not in self._requests, "request ids are unique in the engine"
            self._requests[spec.request_id] = ScriptedRequest(spec, self.script(spec), listener)
        self._note_change()
        self._plan_step()

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drops requests at once."""
        for id_ in request_ids:
            if self._requests.pop(id_, None) is not None:
                self.aborted.append(id_)
        self._note_change()

    def end(self, request_ids: Sequence[str]) -> None:
        """Ends requests with ENDED at the next turn of the loop."""
        for id_ in request_ids:
            if id_ in self._requests:
                self.ended.append(id_)
                asyncio.get_running_loop().call_soon(self._finish_ended, id_)

    async def prepare(self, constraint: ConstraintSpec) -> RequestError | None:
        """What the test set."""
        return self.constraint_refusal

    async def reset_prefix_cache(self) -> int:
        """Counts calls."""
        self.num_resets += 1
        return 7

    async def close(self) -> None:
        """Ends open requests with an error."""
        self.die(EngineState.CLOSED)

    def step(self, count: int = 1) -> None:
        """Generates the next token of every running request, `count` times."""
        for _ in range(count):
            self.num_steps += 1
            self._fill_slots()
            for item in list(self._requests.values()):
                self._step_one(item)
        self._note_change()

    def die(self, state: EngineState = EngineState.RESTARTING) -> None:
        """Ends every open request as the death of the engine does."""
        self.set_state(state)
        requests, self._requests = self._requests, {}
        error = RequestError("ENGINE_UNAVAILABLE", "the engine stopped", (("state", str(state)),))
        for id_, item in requests.items():
            item.listener([_failed(id_, error)])
        self._note_change()

    @property
    def open_ids(self) -> list[str]:
        """Ids of requests that run or wait."""
        return list(self._requests)

    async def wait_until(self, condition: Callable[["ScriptedEngineClient"], bool]) -> None:
        """Returns once the condition holds; looks after every change of the engine."""
        while not condition(self):
            self._changed.clear()
            await self._changed.wait()

    async def wait_submitted(self, count: int) -> None:
        """Returns once `count` sequences have been submitted in all."""
        await self.wait_until(lambda engine: len(engine.submitted) >= count)

    async def wait_idle(self) -> None:
        """Returns once no request runs or waits."""
        await self.wait_until(lambda engine: not engine.open_ids)

    def _refusal(self) -> RequestError | None:
        if self.refusals:
            return self.refusals.pop(0)
        if len(self._requests) >= self.max_running + self.max_waiting:
            metadata = (("retry_after_seconds", "2.5"), ("waiting", str(self.max_waiting)))
            return RequestError("QUEUE_FULL", "the queue is full", metadata)
        return None

    def _fill_slots(self) -> None:
        items = list(self._requests.values())
        free = self.max_running - sum(item.is_running for item in items)
        waiting = [item for item in items if not item.is_running]
        for item in waiting[:free]:
            item.is_running = True
        for position, item in enumerate(waiting[max(free, 0) :], start=1):
            if item.reported_position != position:
                item.reported_position = position
                item.listener([RequestOutput(item.spec.request_id, queue_position=position)])

    def _step_one(self, item: ScriptedRequest) -> None:
        spec, now = item.spec, time.monotonic()
        if spec.deadline is not None and now > spec.deadline:
            error = RequestError("DEADLINE_EXCEEDED", "the deadline has passed")
            self._finish(item, _failed(spec.request_id, error))
        elif not item.is_running:
            if spec.start_by is not None and now > spec.start_by:
                error = RequestError("QUEUE_TIMEOUT", "it waited longer than max_queue_time")
                self._finish(item, _failed(spec.request_id, error))
        else:
            output = item.generate(self.tokens_per_step, self.cached_tokens, now)
            if output.finish_reason is not None:
                self._finish(item, output)
            else:
                item.listener([output])

    def _finish(self, item: ScriptedRequest, output: RequestOutput) -> None:
        del self._requests[item.spec.request_id]
        item.listener([output])

    def _finish_ended(self, request_id: str) -> None:
        item = self._requests.get(request_id)
        if item is not None:
            self._finish(item, RequestOutput(request_id, finish_reason=FinishReason.ENDED))
            self._note_change()

    def _plan_step(self) -> None:
        if self.auto_step and not self._is_step_planned and self._requests:
            self._is_step_planned = True
            asyncio.get_running_loop().call_soon(self._auto_step)

    def _auto_step(self) -> None:
        self._is_step_planned = False
        self.step()
        self._plan_step()

    def _note_change(self) -> None:
        self._changed.set()


def _failed(request_id: str, error: RequestError) -> RequestOutput:
    return RequestOutput(request_id, finish_reason=FinishReason.ERROR, error=error)
