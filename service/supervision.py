"""An EngineClient over any host: open requests, calls, state, restarts.

How a host runs (thread or process) is behind `Launch`; `service.thread_client` and
`service.process_client` provide one each.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from engine.config import EngineInfo
from engine.request import EngineLoad, RequestError
from grammar.spec import ConstraintSpec
from service import frames
from service.engine_client import (
    EngineFactory,
    EngineNotReady,
    EngineRequest,
    EngineState,
    EngineStatus,
    OutputListener,
    StateListener,
)
from service.load_errors import EngineStartError, rebuild_load_error
from service.mailboxes import Mailboxes

logger = logging.getLogger(__name__)

RESTARTING_ERROR = RequestError(
    "ENGINE_UNAVAILABLE",
    "the engine stopped while it worked on this request and restarts; send the request again",
    (("resumable", "true"),),
)
CLOSED_ERROR = RequestError("ENGINE_UNAVAILABLE", "the engine is closed")


class HostLink(Protocol):
    """A running host, seen from its client."""

    def send(self, command: frames.Command) -> None:
        """Hands a command over without waiting; a dead host swallows it."""

    async def stop(self) -> str:
        """Ends the host and releases what it held; returns how it ended, in words. Idempotent."""


# (factory, generation, on_event, on_end) -> link. Both callbacks run on the event loop; `on_end`
# once, when the host is gone for whatever reason.
Launch = Callable[
    [EngineFactory, int, Callable[[frames.Event], None], Callable[[], None]], Awaitable[HostLink]
]


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a host that died is started again. Times in seconds.

    A failure is quick when the host was not ready for `healthy_after`; after `max_quick_failures`
    of them in a row the client gives up.
    """

    first_delay: float = 1.0
    max_delay: float = 30.0
    healthy_after: float = 60.0
    max_quick_failures: int = 6

    def delay(self, quick_failures: int) -> float:
        """How long to wait after the n-th quick failure, n from 1."""
        return min(self.max_delay, self.first_delay * 2.0 ** (quick_failures - 1))


class SupervisedClient:
    """The EngineClient of both isolations. Belongs to one event loop."""

    def __init__(
        self, factory: EngineFactory, launch: Launch, policy: RestartPolicy | None = None
    ) -> None:
        self._factory = factory
        self._launch = launch
        self._policy = policy or RestartPolicy()
        self._status = EngineStatus(EngineState.LOADING)
        self._info: EngineInfo | None = None
        self._mailboxes = Mailboxes()
        self._state_listeners: list[StateListener] = []
        self._link: HostLink | None = None
        self._generation = 0
        self._num_sent = 0
        self._ready: asyncio.Future[None] | None = None
        self._ready_at = 0.0
        self._stepped_at = 0.0
        self._quick_failures = 0
        self._restart_task: asyncio.Task[None] | None = None
        self._call_ids = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}

    @property
    def info(self) -> EngineInfo:
        """See EngineClient."""
        if self._info is None:
            raise self._not_ready()
        return self._info

    def status(self) -> EngineStatus:
        """See EngineClient."""
        step_age = time.monotonic() - self._stepped_at if len(self._mailboxes) else None
        return replace(self._status, step_age=step_age)

    def add_state_listener(self, listener: StateListener) -> None:
        """See EngineClient."""
        self._state_listeners.append(listener)

    async def start(self) -> None:
        """See EngineClient."""
        if self._generation or self._status.state is EngineState.CLOSED:
            raise RuntimeError("an engine client starts once")
        try:
            await self._launch_host()
        except EngineNotReady:
            await self._stop_link()  # closed before `close` could see the link
            raise
        except Exception as error:
            self._change(EngineState.FAILED, failure=str(error))
            await self._stop_link()
            raise

    def submit(self, requests: Sequence[EngineRequest], listener: OutputListener) -> None:
        """See EngineClient."""
        if self._status.state is not EngineState.READY:
            raise self._not_ready()
        if not len(self._mailboxes):
            self._stepped_at = time.monotonic()
        request_ids = [request.spec.request_id for request in requests]
        if len(set(request_ids)) < len(request_ids) or self._mailboxes.known(request_ids):
            raise ValueError("a request id is already open")
        self._mailboxes.open(request_ids, listener, self._num_sent + 1)
        self._send(frames.Submit(tuple(requests)))

    def abort(self, request_ids: Sequence[str]) -> None:
        """See EngineClient."""
        if open_ids := self._mailboxes.drop(request_ids):
            self._send(frames.Abort(open_ids))

    def end(self, request_ids: Sequence[str]) -> None:
        """See EngineClient."""
        if open_ids := self._mailboxes.known(request_ids):
            self._send(frames.End(open_ids))

    async def prepare(self, constraint: ConstraintSpec) -> RequestError | None:
        """See EngineClient."""
        refusal: RequestError | None = await self._call(
            lambda call_id: frames.Prepare(call_id, constraint)
        )
        return refusal

    async def reset_prefix_cache(self) -> int:
        """See EngineClient."""
        num_blocks: int = await self._call(frames.ResetPrefixCache)
        return num_blocks

    async def close(self) -> None:
        """See EngineClient."""
        if self._status.state is not EngineState.CLOSED:
            self._change(EngineState.CLOSED)
            self._end_everything(CLOSED_ERROR)
            if self._ready is not None and not self._ready.done():
                self._ready.set_exception(self._not_ready())
        if self._restart_task is not None:
            self._restart_task.cancel()
            await asyncio.gather(self._restart_task, return_exceptions=True)
        await self._stop_link()

    def _send(self, command: frames.Command) -> None:
        assert self._link is not None, "a ready client has a link"
        self._num_sent += 1
        self._link.send(command)

    async def _call(self, command: Callable[[int], frames.Command]) -> Any:
        """Sends a command that is answered; raises EngineNotReady when the host dies before."""
        if self._status.state is not EngineState.READY:
            raise self._not_ready()
        call_id = next(self._call_ids)
        answer = self._calls[call_id] = asyncio.get_running_loop().create_future()
        try:
            self._send(command(call_id))
            return await answer
        finally:
            del self._calls[call_id]

    async def _launch_host(self) -> None:
        """Starts one host and returns when it is ready; raises what loading raised."""
        self._generation += 1
        self._num_sent = 0
        generation = self._generation
        self._ready = asyncio.get_running_loop().create_future()
        self._link = await self._launch(
            self._factory,
            generation,
            lambda event: self._receive(generation, event),
            lambda: self._lose(generation),
        )
        await self._ready

    async def _stop_link(self) -> None:
        if self._link is not None:
            how = await self._link.stop()
            logger.info("the engine host ended: %s", how)

    def _receive(self, generation: int, event: frames.Event) -> None:
        if generation != self._generation or self._status.state is EngineState.CLOSED:
            return
        match event:
            case frames.StepFrame(num_applied, outputs, load):
                self._take_step(num_applied, outputs, load)
            case frames.Loading(stage, progress):
                self._status = replace(self._status, stage=stage, progress=progress)
            case frames.Loaded(info):
                self._become_ready(info)
            case frames.LoadFailed():
                self._fail_launch(rebuild_load_error(event))
            case frames.Prepared(call_id, answer) | frames.PrefixCacheReset(call_id, answer):
                call = self._calls.get(call_id)
                if call is not None and not call.done():
                    call.set_result(answer)

    def _take_step(self, num_applied: int, outputs: Sequence[Any], load: EngineLoad) -> None:
        self._stepped_at = time.monotonic()
        self._status = replace(self._status, load=load)
        if broken := self._mailboxes.deliver(outputs, num_applied):
            self._send(frames.Abort(broken))

    def _become_ready(self, info: EngineInfo) -> None:
        self._info = info
        self._ready_at = time.monotonic()
        self._change(EngineState.READY, progress=1.0, stage="ready")
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    def _fail_launch(self, error: Exception) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)

    def _lose(self, generation: int) -> None:
        """The host of `generation` is gone."""
        if generation != self._generation or self._status.state is EngineState.CLOSED:
            return
        if self._status.state is not EngineState.READY:
            self._fail_launch(EngineStartError("the engine host died while loading"))
            return
        is_quick = time.monotonic() - self._ready_at < self._policy.healthy_after
        self._quick_failures = self._quick_failures + 1 if is_quick else 1
        logger.error("the engine host died with %d open requests", len(self._mailboxes))
        self._change(EngineState.RESTARTING, progress=0.0, stage="restarting", load=EngineLoad())
        self._end_everything(RESTARTING_ERROR)
        self._restart_task = asyncio.get_running_loop().create_task(self._restart())

    async def _restart(self) -> None:
        """Starts hosts until one is ready or too many failed in a row."""
        failure = "the engine died again and again"
        while self._quick_failures <= self._policy.max_quick_failures:
            await self._stop_link()
            await asyncio.sleep(self._policy.delay(self._quick_failures))
            self._status = replace(self._status, restarts=self._status.restarts + 1)
            try:
                await self._launch_host()
            except Exception as error:
                logger.exception("restart %d of the engine failed", self._status.restarts)
                failure = str(error)
                self._quick_failures += 1
            else:
                return
        self._change(EngineState.FAILED, failure=failure)
        await self._stop_link()

    def _end_everything(self, error: RequestError) -> None:
        self._mailboxes.end_all(error)
        for call in self._calls.values():
            if not call.done():
                call.set_exception(self._not_ready())

    def _change(self, state: EngineState, **fields: Any) -> None:
        if self._status.state is EngineState.CLOSED:
            return
        self._status = replace(self._status, state=state, **fields)
        for listener in tuple(self._state_listeners):
            listener(self._status)

    def _not_ready(self) -> EngineNotReady:
        return EngineNotReady(self._status.state, f"the engine is {self._status.state}")
