"""Both engine clients when loading, a step or the whole engine fails, and when they close."""

import asyncio
import threading
from pathlib import Path

import psutil
import pytest

from engine.loading.source import CheckpointError
from engine.request import FinishReason
from service.engine_client import (
    EngineNotReady,
    EngineState,
)
from service.load_errors import EngineStartError
from service.supervision import SupervisedClient
from tests.service.engine_client_fixture import (
    PATIENCE,
    BuildClient,
    Recorder,
    build,
    client,
    request,
    until_state,
)
from tests.service.scripted_engine import CRASH, FAIL_STEP

__all__ = ["build", "client"]  # fixtures


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
