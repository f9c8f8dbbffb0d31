"""Keeps standard health and the gauges true to the engine, from cached values only."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from grpc_health.v1 import health, health_pb2

from service.engine_client import EngineStatus
from service.metrics import ServiceMetrics
from service.registry import GenerationRegistry
from service.runtime import ModelRuntime

SERVICE_NAME = "tenon.v1.GenerationService"
INTERVAL_SECONDS = 0.25
# An engine with work that finishes no step for this long is wedged.
MAX_STEP_AGE_SECONDS = 30.0

StatusListener = Callable[[EngineStatus], None]


class HealthMonitor:
    """Looks at the engine a few times a second; `refresh` looks at once.

    on_status: told each status, for progress reports.
    """

    def __init__(
        self,
        runtime: ModelRuntime,
        registry: GenerationRegistry,
        metrics: ServiceMetrics,
        on_status: StatusListener | None = None,
    ) -> None:
        self.servicer = health.aio.HealthServicer()
        self._runtime = runtime
        self._registry = registry
        self._metrics = metrics
        self._on_status = on_status
        self._is_serving: bool | None = None
        self._task: asyncio.Task[None] | None = None
        self._state_changed = asyncio.Event()

    async def start(self) -> None:
        """Begins to look; a change of the engine's state wakes it."""
        self._runtime.engine.add_state_listener(lambda _status: self._state_changed.set())
        await self.refresh()
        self._task = asyncio.create_task(self._run())

    async def refresh(self) -> None:
        """Sets health and gauges from what is so now."""
        status = self._runtime.status()
        self._metrics.observe_engine(status)
        if self._on_status is not None:
            self._on_status(status)
        is_serving = self.is_serving()
        if is_serving != self._is_serving:
            self._is_serving = is_serving
            await self._publish(is_serving)

    def is_serving(self) -> bool:
        """Whether a new request would be served."""
        step_age = self._runtime.status().step_age
        is_wedged = step_age is not None and step_age > MAX_STEP_AGE_SECONDS
        return self._runtime.is_ready and not is_wedged and not self._registry.is_draining

    async def close(self) -> None:
        """Stops looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _publish(self, is_serving: bool) -> None:
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if is_serving
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", SERVICE_NAME):
            await self.servicer.set(name, status)

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_SECONDS):
                    await self._state_changed.wait()
            self._state_changed.clear()
            await self.refresh()
