"""What the suites of the engine clients share: a listener that records, requests, both clients."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from engine.config import EngineConfig
from engine.request import RequestOutput, RequestSpec, SamplingParams
from grammar.spec import ConstraintKind, ConstraintSpec
from service.engine_client import (
    EngineFactory,
    EngineRequest,
    EngineState,
    EngineStatus,
)
from service.process_client import ProcessClient
from service.supervision import RestartPolicy, SupervisedClient
from service.thread_client import ThreadClient
from tests.service.scripted_engine import TARGET

PATIENCE = 20.0  # seconds; a bound against hanging, not a measurement
FOREVER = 1 << 30
QUICK = RestartPolicy(first_delay=0.01, max_delay=0.02, max_quick_failures=3)

BuildClient = Callable[[str], SupervisedClient]


@dataclass
class Recorder:
    """A listener that keeps what it hears, and whom tests can wait for."""

    outputs: list[RequestOutput] = field(default_factory=list)
    num_calls: int = 0
    _heard: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, outputs: Sequence[RequestOutput]) -> None:
        self.num_calls += 1
        self.outputs += outputs
        self._heard.set()

    def of(self, request_id: str) -> list[RequestOutput]:
        return [output for output in self.outputs if output.request_id == request_id]

    def tokens(self, request_id: str) -> list[int]:
        return [token for output in self.of(request_id) for token in output.token_ids]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._heard.clear()
                await self._heard.wait()

    async def end_of(self, request_id: str) -> RequestOutput:
        await self.until(
            lambda: any(output.finish_reason is not None for output in self.of(request_id))
        )
        last = self.of(request_id)[-1]
        assert last.finish_reason is not None, "an output came after the end"
        return last


def request(
    request_id: str, order: int = 1, max_tokens: int = FOREVER, kind: ConstraintKind | None = None
) -> EngineRequest:
    spec = RequestSpec(request_id, (order, 2), SamplingParams(), max_tokens, salt=b"\xff\x00")
    return EngineRequest(spec, None if kind is None else ConstraintSpec(kind))


async def until_state(client: SupervisedClient, state: EngineState) -> EngineStatus:
    reached = asyncio.Event()
    client.add_state_listener(lambda status: reached.set() if status.state is state else None)
    if client.status().state is not state:
        await asyncio.wait_for(reached.wait(), PATIENCE)
    return client.status()


@pytest.fixture(params=[ThreadClient, ProcessClient])
async def build(request: pytest.FixtureRequest) -> AsyncIterator[BuildClient]:
    clients: list[SupervisedClient] = []

    def build_client(model_path: str) -> SupervisedClient:
        factory = EngineFactory(EngineConfig(model_path), TARGET)
        clients.append(request.param(factory, QUICK))
        return clients[-1]

    yield build_client
    for client in clients:
        await asyncio.wait_for(client.close(), PATIENCE)


@pytest.fixture
async def client(build: BuildClient) -> SupervisedClient:
    client = build("fake:")
    await asyncio.wait_for(client.start(), PATIENCE)
    return client
