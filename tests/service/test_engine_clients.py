"""One suite that both engine clients pass: requests and what becomes of them."""

import asyncio
from collections.abc import Sequence

import pytest

from engine.config import EngineConfig
from engine.request import FinishReason, RequestOutput
from grammar.spec import ConstraintKind, ConstraintSpec
from service.engine_client import (
    EngineFactory,
    EngineNotReady,
    EngineState,
)
from service.engines import create_engine_client
from service.process_client import ProcessClient
from service.supervision import SupervisedClient
from service.thread_client import ThreadClient
from tests.service.engine_client_fixture import (
    PATIENCE,
    BuildClient,
    Recorder,
    build,
    client,
    request,
)
from tests.service.scripted_engine import REFUSE, TARGET

__all__ = ["build", "client"]  # fixtures


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
