"""Draining: running generations finish, new ones are told to go elsewhere."""

import asyncio

import pytest

from tenon.aio import AsyncClient
from tenon.errors import Unavailable
from tenon.specs import completion
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import started_service, text_script


def manual_engine() -> ScriptedEngineClient:
    return ScriptedEngineClient(text_script("xyz"), auto_step=False)


async def test_running_requests_finish_and_new_ones_are_refused() -> None:
    engine = manual_engine()
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        answer = asyncio.create_task(client.generate_unary(completion("x")))
        await engine.wait_submitted(1)
        draining = asyncio.create_task(running.service.drain(grace=600))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable) as refused:
            await client.generate_unary(completion("x"))
        assert refused.value.reason == "DRAINING"
        assert refused.value.retry_after == 1.0
        assert not running.service.monitor.is_serving()
        engine.step(4)
        assert (await answer).outputs[0].text == "xyz"
        await draining


async def test_what_outlasts_the_grace_fails_with_what_it_has() -> None:
    engine = manual_engine()
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        stream = client.generate(completion("x"))
        events = aiter(stream)
        first = asyncio.ensure_future(anext(events))
        await engine.wait_submitted(1)
        engine.step(2)
        await first
        await running.service.drain(grace=0)
        with pytest.raises(Unavailable) as caught:
            await _read_all(events)
        assert caught.value.reason == "DRAINING"
        assert caught.value.resumable
        assert caught.value.usage is not None
        assert caught.value.usage.output_tokens == 2
        await engine.wait_idle()


async def test_an_idle_server_drains_at_once() -> None:
    async with started_service() as running:
        await asyncio.wait_for(running.service.drain(grace=3600), timeout=10)


async def _read_all(events: object) -> None:
    async for _ in events:
        pass
