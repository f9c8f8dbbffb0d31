"""What only the process client can promise: the death of either side is the other's to survive."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import uvloop

from engine.config import EngineConfig
from engine.request import EngineLoad, FinishReason
from service import frames
from service.engine_client import EngineFactory, EngineState
from service.process_client import ProcessClient
from tests.service.engine_client_fixture import PATIENCE, QUICK, Recorder, request, until_state
from tests.service.scripted_engine import TARGET

ROOT = Path(__file__).resolve().parent.parent.parent
FACTORY = EngineFactory(EngineConfig("fake:"), TARGET)

PARENT = """
import asyncio
from tests.service.test_engine_clients_process import FACTORY, ProcessClient

async def main():
    client = ProcessClient(FACTORY)
    await client.start()
    print(client.process_id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
async def client() -> AsyncIterator[ProcessClient]:
    client = ProcessClient(FACTORY, QUICK)
    await asyncio.wait_for(client.start(), PATIENCE)
    yield client
    await asyncio.wait_for(client.close(), PATIENCE)


def kill(client: ProcessClient, number: signal.Signals) -> None:
    assert client.process_id is not None
    os.kill(client.process_id, number)


async def test_a_killed_engine_ends_open_requests_restarts_and_serves_again(
    client: ProcessClient,
) -> None:
    heard = Recorder()
    client.submit([request("a"), request("b")], heard)
    await heard.until(lambda: len(heard.outputs) >= 4)
    first_process = client.process_id
    kill(client, signal.SIGKILL)
    for name in ("a", "b"):
        end = await heard.end_of(name)
        assert end.finish_reason is FinishReason.ERROR
        assert end.error is not None
        assert end.error.reason == "ENGINE_UNAVAILABLE"
        assert "restarts" in end.error.message
    assert client.status().state is EngineState.RESTARTING
    await until_state(client, EngineState.READY)
    assert client.process_id != first_process
    client.submit([request("a", max_tokens=3)], heard)
    await heard.until(lambda: heard.tokens("a")[-3:] == [0, 1, 2])


async def test_the_engine_survives_an_interrupt_that_is_meant_for_the_service(
    client: ProcessClient,
) -> None:
    kill(client, signal.SIGINT)
    heard = Recorder()
    client.submit([request("a", max_tokens=2)], heard)
    assert (await heard.end_of("a")).finish_reason is FinishReason.LENGTH
    assert client.process_id is not None
    assert os.getpgid(client.process_id) != os.getpgid(0)


async def test_the_engine_inherits_no_descriptor_but_its_own(client: ProcessClient) -> None:
    ours = os.open(ROOT / "pyproject.toml", os.O_RDONLY)
    os.set_inheritable(ours, True)
    try:
        kill(client, signal.SIGKILL)
        await until_state(client, EngineState.RESTARTING)
        await until_state(client, EngineState.READY)
        opened = {file.path for file in psutil.Process(client.process_id).open_files()}
    finally:
        os.close(ours)
    assert str(ROOT / "pyproject.toml") not in opened


def test_the_engine_ends_when_its_service_is_killed() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=environment, text=True
    )
    with parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    _, alive = psutil.wait_procs([child], timeout=PATIENCE)
    assert not alive


async def test_frames_of_an_older_host_are_dropped(client: ProcessClient) -> None:
    heard = Recorder()
    client.submit([request("a")], heard)
    kill(client, signal.SIGKILL)
    await heard.end_of("a")
    await until_state(client, EngineState.READY)
    late = frames.StepFrame(99, (), EngineLoad(running=77))
    client._receive(1, late)
    assert client.status().load.running != 77
    client._receive(2, late)
    assert client.status().load.running == 77


async def test_a_damaged_stream_is_a_death_like_any_other(client: ProcessClient) -> None:
    heard = Recorder()
    client.submit([request("a")], heard)
    client._link._decoder.feed(b"\xff")  # all later frames are shifted by one byte
    end = await heard.end_of("a")
    assert end.error is not None
    assert end.error.reason == "ENGINE_UNAVAILABLE"
    await until_state(client, EngineState.READY)


def test_the_client_works_on_the_loop_of_the_server() -> None:
    async def serve() -> list[int]:
        client = ProcessClient(FACTORY, QUICK)
        heard = Recorder()
        await client.start()
        client.submit([request("a", max_tokens=3)], heard)
        await heard.end_of("a")
        await client.close()
        return heard.tokens("a")

    assert uvloop.run(asyncio.wait_for(serve(), PATIENCE)) == [0, 1, 2]
