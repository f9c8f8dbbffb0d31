"""Both clients over the real engine on a fake runner: scheduler, blocks and host together."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.config import EngineConfig
from engine.request import FinishReason
from service.engine_client import EngineFactory
from service.process_client import ProcessClient
from service.supervision import SupervisedClient
from service.thread_client import ThreadClient
from tests.service.engine_client_fixture import PATIENCE, Recorder, request

TARGET = "tests.support.fake_runner:build_fake_engine"


@pytest.fixture(params=[ThreadClient, ProcessClient])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[SupervisedClient]:
    client = request.param(EngineFactory(EngineConfig("fake:steps=0.002"), TARGET))
    await asyncio.wait_for(client.start(), PATIENCE)
    yield client
    await client.close()


async def test_both_clients_deliver_the_tokens_that_were_asked_for(
    client: SupervisedClient,
) -> None:
    heard = Recorder()
    names = [f"r{index}" for index in range(8)]
    client.submit([request(name, max_tokens=12) for name in names], heard)
    for name in names:
        assert (await heard.end_of(name)).finish_reason is FinishReason.LENGTH
        assert len(heard.tokens(name)) == 12


async def test_aborts_free_all_blocks(client: SupervisedClient) -> None:
    heard = Recorder()
    client.submit([request("a"), request("b")], heard)
    await heard.until(lambda: bool(heard.tokens("a")) and bool(heard.tokens("b")))
    client.abort(["a", "b"])
    client.submit([request("a", max_tokens=2)], heard)
    await heard.end_of("a")
    load = client.status().load
    assert (load.running, load.waiting, load.kv_blocks_used) == (0, 0, 0)
