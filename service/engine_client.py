"""The seam between the service and the engine host: plain data only crosses it.

Two implementations pass the same tests: `ThreadClient` (service.thread_client) and `ProcessClient`
(service.process_client).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from engine.config import EngineConfig, EngineInfo
from engine.request import EngineLoad, RequestError, RequestOutput, RequestSpec
from grammar.spec import ConstraintSpec


class EngineState(StrEnum):
    """State of an engine as its client sees it."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate, with its constraint."""

    spec: RequestSpec
    constraint: ConstraintSpec | None = None


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What `EngineClient.status` says.

    progress: 0 to 1 while loading, with `stage` in words ("loading weights").
    step_age: seconds since the last step ended while there is work, else None.
    """

    state: EngineState
    progress: float = 0.0
    stage: str = ""
    load: EngineLoad = field(default_factory=EngineLoad)
    step_age: float | None = None
    restarts: int = 0
    failure: str = ""


class EngineNotReady(Exception):
    """The engine loads, restarts, failed or is closed. `state` says which."""

    def __init__(self, state: EngineState, message: str) -> None:
        super().__init__(message)
        self.state = state


# Called on the event loop, once per step that has something for this subscriber, with the outputs
# of its requests in order. Must not block.
OutputListener = Callable[[Sequence[RequestOutput]], None]

# Called on the event loop with the new status whenever the state changes. Must not block.
StateListener = Callable[[EngineStatus], None]


@dataclass(frozen=True, slots=True)
class EngineFactory:
    """How the host builds its engine.

    target: "module:function" of (EngineConfig, Progress) -> Engine, see engine.build. A name
    instead of a function, so that a spawned process can import it.
    """

    config: EngineConfig
    target: str = "engine.build:build_engine"


class EngineClient(Protocol):
    """An engine behind a thread or a process. All methods belong to one event loop."""

    @property
    def info(self) -> EngineInfo:
        """Facts of the loaded engine. Raises EngineNotReady before it is loaded."""

    def status(self) -> EngineStatus:
        """A snapshot from cached values; never waits for the engine."""

    def add_state_listener(self, listener: StateListener) -> None:
        """Tells `listener` each later change of the state."""

    async def start(self) -> None:
        """Starts the host and returns when it is READY; raises what loading raised."""

    def submit(self, requests: Sequence[EngineRequest], listener: OutputListener) -> None:
        """Hands sequences over. Their outputs reach `listener` until each has a finish_reason.

        Raises EngineNotReady, and ValueError if a request id is open. If the engine dies, each open
        request ends with FinishReason.ERROR and reason ENGINE_UNAVAILABLE.
        """

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drops requests at once and delivers nothing more; unknown ids are ignored."""

    def end(self, request_ids: Sequence[str]) -> None:
        """Ends requests with FinishReason.ENDED; what they produced is delivered."""

    async def prepare(self, constraint: ConstraintSpec) -> RequestError | None:
        """Compiles a constraint ahead of admission; returns the refusal, None if it is served."""

    async def reset_prefix_cache(self) -> int:
        """Drops cached blocks that no request holds; returns how many."""

    async def close(self) -> None:
        """Stops the host. Open requests end with FinishReason.ERROR."""
