"""One suite that both engine clients pass."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from engine.config import EngineConfig
from engine.loading.source import CheckpointError
from engine.request import FinishReason, RequestOutput, RequestSpec, SamplingParams
from grammar.spec import ConstraintKind, ConstraintSpec
from service.engine_client import (
    EngineFactory,
    EngineNotReady,
    EngineRequest,
    EngineState,
    EngineStatus,
)
from service.engines import create_engine_client
from service.load_errors import EngineStartError
from service.process_client import ProcessClient
from service.supervision import RestartPolicy, SupervisedClient
from service.thread_client import ThreadClient
from tests.service.scripted_engine import CRASH, FAIL_STEP, REFUSE, TARGET

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


async def test_a_started_client_is_ready_and_knows_its_engine(client: SupervisedClient) -> None:
    assert client.status().state is EngineState.READY
    assert client.status().progress == 1.0
    assert client.info.family == "scripted"


async def test_many_requests_stream_all_their_tokens_in_order(client: SupervisedClient) -> None:
    heard = Recorder()
    names = [f"r{index}" for index in range(50)]
    client.submit([request(name, max_tokens=20) for name in names], heard)
    for name in names:
        assert (await heard.end_of(name)).finish_reason is FinishReason.LENGTH
        assert heard.tokens(name) == list(range(20))
        assert [output.started for output in heard.of(name)] == [True] + [False] * 19


async def test_a_listener_hears_once_a_step_and_only_of_its_requests(
    client: SupervisedClient,
) -> None:
    first, second = Recorder(), Recorder()
    client.submit([request("a", max_tokens=5), request("b", max_tokens=5)], first)
    client.submit([request("c", max_tokens=5)], second)
    await first.end_of("a")
    await second.end_of("c")
    assert {output.request_id for output in first.outputs} == {"a", "b"}
    assert {output.request_id for output in second.outputs} == {"c"}
    assert first.num_calls == 5


async def test_a_listener_that_raises_loses_only_its_own_requests(
    client: SupervisedClient,
) -> None:
    def broken(outputs: Sequence[RequestOutput]) -> None:
        raise ZeroDivisionError

    heard = Recorder()
    client.submit([request("a")], broken)
    client.submit([request("b", max_tokens=30)], heard)
    await heard.end_of("b")
    client.submit([request("c", max_tokens=1)], heard)
    await heard.end_of("c")
    assert client.status().load.running == 0


async def test_requests_are_refused_before_the_engine_is_ready(build: BuildClient) -> None:
    client = build("endless:")
    with pytest.raises(EngineNotReady):
        client.submit([request("a")], Recorder())
    with pytest.raises(EngineNotReady):
        _ = client.info
    starting = asyncio.create_task(client.start())
    await asyncio.sleep(0)
    with pytest.raises(EngineNotReady) as caught:
        await client.prepare(ConstraintSpec(ConstraintKind.REGEX, "a"))
    assert caught.value.state is EngineState.LOADING
    await client.close()
    with pytest.raises(EngineNotReady):
        await starting


async def test_an_engine_refusal_reaches_the_listener(client: SupervisedClient) -> None:
    heard = Recorder()
    client.submit([request("a", REFUSE), request("b", max_tokens=2)], heard)
    refused = await heard.end_of("a")
    assert refused.error is not None
    assert refused.error.reason == "QUEUE_FULL"
    assert (await heard.end_of("b")).finish_reason is FinishReason.LENGTH


async def test_an_abort_right_after_submit_delivers_nothing(client: SupervisedClient) -> None:
    heard, other = Recorder(), Recorder()
    client.submit([request("a")], heard)
    client.abort(["a"])
    client.submit([request("b", max_tokens=3)], other)
    await other.end_of("b")
    assert heard.outputs == []
    assert client.status().load.running == 0


async def test_an_abort_while_tokens_stream_delivers_nothing_more(
    client: SupervisedClient,
) -> None:
    heard, other = Recorder(), Recorder()
    client.submit([request("a")], heard)
    await heard.until(lambda: len(heard.outputs) >= 3)
    client.abort(["a"])
    num_calls = heard.num_calls
    client.submit([request("b", max_tokens=3)], other)
    await other.end_of("b")
    assert heard.num_calls == num_calls


async def test_aborts_of_unknown_ended_and_aborted_requests_do_nothing(
    client: SupervisedClient,
) -> None:
    heard = Recorder()
    client.submit([request("a", max_tokens=1), request("b")], heard)
    await heard.end_of("a")
    client.abort(["a", "b", "b", "nobody"])
    client.abort(["b"])
    client.end(["b", "nobody"])
    client.submit([request("c", max_tokens=1)], heard)
    await heard.end_of("c")
    assert len(heard.of("a")) == 1
    assert heard.of("b")[-1].finish_reason is None


async def test_an_open_id_is_refused_and_its_request_goes_on(client: SupervisedClient) -> None:
    heard = Recorder()
    client.submit([request("a", max_tokens=500)], heard)
    for ids in (["b", "a"], ["b", "b"]):
        with pytest.raises(ValueError, match="already open"):
            client.submit([request(name) for name in ids], heard)
    await heard.end_of("a")
    assert heard.of("b") == []


async def test_a_reused_id_hears_nothing_of_the_aborted_request(client: SupervisedClient) -> None:
    old, new = Recorder(), Recorder()
    client.submit([request("a")], old)
    await old.until(lambda: len(old.outputs) >= 3)
    client.abort(["a"])
    client.submit([request("a", max_tokens=4)], new)
    await new.end_of("a")
    assert new.tokens("a") == [0, 1, 2, 3]


async def test_end_delivers_what_was_produced_and_ends(client: SupervisedClient) -> None:
    heard = Recorder()
    client.submit([request("a")], heard)
    await heard.until(lambda: len(heard.outputs) >= 2)
    client.end(["a"])
    assert (await heard.end_of("a")).finish_reason is FinishReason.ENDED
    tokens = heard.tokens("a")
    assert tokens == list(range(len(tokens)))


async def test_constraints_are_refused_by_name_until_they_are_compiled(
    client: SupervisedClient,
) -> None:
    refusal = await client.prepare(ConstraintSpec(ConstraintKind.REGEX, "a+"))
    assert refusal is not None
    assert refusal.reason == "UNSUPPORTED_FIELD"
    assert dict(refusal.metadata) == {"field": "constraint.regex"}
    heard = Recorder()
    client.submit([request("a", kind=ConstraintKind.JSON_SCHEMA)], heard)
    error = (await heard.end_of("a")).error
    assert error is not None
    assert error.message == "constraint.json_schema is not supported yet"


async def test_the_prefix_cache_is_reset_over_the_border(client: SupervisedClient) -> None:
    assert await asyncio.wait_for(client.reset_prefix_cache(), PATIENCE) == 3


async def test_the_step_age_exists_only_while_there_is_work(client: SupervisedClient) -> None:
    assert client.status().step_age is None
    heard = Recorder()
    client.submit([request("a")], heard)
    age = client.status().step_age
    assert age is not None
    assert age >= 0.0
    client.abort(["a"])
    assert client.status().step_age is None


async def test_a_failed_step_ends_its_requests_with_an_incident_and_the_engine_goes_on(
    client: SupervisedClient,
) -> None:
    heard = Recorder()
    client.submit([request("a"), request("b", FAIL_STEP)], heard)
    for name in ("a", "b"):
        error = (await heard.end_of(name)).error
        assert error is not None
        assert error.reason == "INTERNAL"
        assert "secret" not in error.message
        assert dict(error.metadata)["incident_id"] in error.message
    client.submit([request("c", max_tokens=2)], heard)
    assert (await heard.end_of("c")).finish_reason is FinishReason.LENGTH
    assert client.status().restarts == 0


async def test_a_crash_ends_open_requests_and_the_engine_is_built_anew(
    client: SupervisedClient,
) -> None:
    states: list[EngineState] = []
    client.add_state_listener(lambda status: states.append(status.state))
    heard = Recorder()
    client.submit([request("a")], heard)
    client.submit([request("b", CRASH)], heard)
    error = (await heard.end_of("a")).error
    assert error is not None
    assert error.reason == "ENGINE_UNAVAILABLE"
    assert dict(error.metadata) == {"resumable": "true"}
    assert "secret" not in error.message
    await until_state(client, EngineState.READY)
    client.submit([request("c", max_tokens=2)], heard)
    assert (await heard.end_of("c")).finish_reason is FinishReason.LENGTH
    assert states == [EngineState.RESTARTING, EngineState.READY]
    assert client.status().restarts == 1


async def test_three_failed_steps_in_a_row_build_the_engine_anew(client: SupervisedClient) -> None:
    heard = Recorder()
    reasons = []
    for name in ("a", "b", "c"):
        client.submit([request(name, FAIL_STEP)], heard)
        error = (await heard.end_of(name)).error
        assert error is not None
        reasons.append(error.reason)
    assert reasons == ["INTERNAL", "INTERNAL", "ENGINE_UNAVAILABLE"]
    assert (await until_state(client, EngineState.READY)).restarts == 1


async def test_calls_that_wait_fail_when_the_engine_dies(client: SupervisedClient) -> None:
    client.submit([request("a", CRASH)], Recorder())
    await until_state(client, EngineState.RESTARTING)
    with pytest.raises(EngineNotReady):
        await client.reset_prefix_cache()


async def test_an_engine_that_cannot_be_rebuilt_is_given_up_with_its_reason(
    build: BuildClient, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.touch()
    client = build(f"once:{model}")
    await asyncio.wait_for(client.start(), PATIENCE)
    client.submit([request("a", CRASH)], Recorder())
    status = await until_state(client, EngineState.FAILED)
    assert status.failure == "model.gguf: it is gone"
    with pytest.raises(EngineNotReady):
        client.submit([request("b")], Recorder())


@pytest.mark.parametrize(
    ("model_path", "kind", "text"),
    [
        ("damaged:", CheckpointError, "model.gguf: tensor_count is 0"),
        ("odd:", EngineStartError, "no such backend"),
        ("exit:", EngineStartError, "died while loading"),
    ],
)
async def test_start_raises_what_loading_raised(
    build: BuildClient, model_path: str, kind: type[Exception], text: str
) -> None:
    client = build(model_path)
    with pytest.raises(kind, match=text):
        await asyncio.wait_for(client.start(), PATIENCE)
    assert client.status().state is EngineState.FAILED
    assert text in client.status().failure


async def test_close_ends_open_requests_and_may_be_called_again(client: SupervisedClient) -> None:
    heard = Recorder()
    client.submit([request("a")], heard)
    await asyncio.gather(client.close(), client.close())
    await client.close()
    error = (await heard.end_of("a")).error
    assert error is not None
    assert error.reason == "ENGINE_UNAVAILABLE"
    assert client.status().state is EngineState.CLOSED
    with pytest.raises(EngineNotReady):
        client.submit([request("b")], heard)
    client.abort(["a"])


async def test_close_while_loading_stops_the_load(build: BuildClient) -> None:
    client = build("endless:")
    starting = asyncio.create_task(client.start())
    while client.status().stage != "loading weights":
        await asyncio.sleep(0.005)
    await asyncio.wait_for(client.close(), PATIENCE)
    with pytest.raises(EngineNotReady):
        await starting


async def test_close_leaves_no_thread_no_task_no_process_and_no_descriptor(
    build: BuildClient,
) -> None:
    me = psutil.Process()
    before = (threading.active_count(), len(asyncio.all_tasks()), me.num_fds(), me.children())
    client = build("fake:")
    await asyncio.wait_for(client.start(), PATIENCE)
    client.submit([request("a")], Recorder())
    await client.close()
    await asyncio.sleep(0)
    after = (threading.active_count(), len(asyncio.all_tasks()), me.num_fds(), me.children())
    assert after == before


@pytest.mark.parametrize(
    ("device", "isolation", "kind"),
    [
        ("cpu", "auto", ThreadClient),
        ("cuda", "auto", ProcessClient),
        ("cpu", "process", ProcessClient),
        ("cuda", "thread", ThreadClient),
    ],
)
def test_the_isolation_follows_the_device_unless_it_is_named(
    device: str, isolation: str, kind: type[SupervisedClient]
) -> None:
    factory = EngineFactory(EngineConfig("fake:", device=device), TARGET)
    assert isinstance(create_engine_client(factory, isolation), kind)


def test_an_unknown_isolation_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed are auto, thread, process"):
        create_engine_client(EngineFactory(EngineConfig("fake:")), "container")
