"""Whoever goes away, and whenever: slot and blocks are free within a step."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from service.engine_client import EngineState
from tenon.aio import AsyncClient, GenerationStream
from tenon.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    NotFound,
    TenonError,
    Unavailable,
)
from tenon.specs import completion
from tenon.v1 import generation_pb2, generation_service_pb2
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import started_service, text_script

CANCEL = generation_service_pb2.END_MODE_CANCEL
CLOSE = generation_service_pb2.END_MODE_CLOSE


def manual_engine(**options: int) -> ScriptedEngineClient:
    return ScriptedEngineClient(text_script("x" * 500), auto_step=False, **options)


async def queued(engine: ScriptedEngineClient, reading: asyncio.Task) -> None:
    """Submitted, and no step has happened."""


async def decoding(engine: ScriptedEngineClient, reading: asyncio.Task) -> None:
    """Some tokens have been generated."""
    engine.step(5)


async def by_cancel(client: AsyncClient, reading: asyncio.Task) -> None:
    reading.cancel()


async def by_closing_the_channel(client: AsyncClient, reading: asyncio.Task) -> None:
    await client.close()


Stage = Callable[[ScriptedEngineClient, asyncio.Task], Awaitable[None]]
Departure = Callable[[AsyncClient, asyncio.Task], Awaitable[None]]


async def read(client: AsyncClient, is_unary: bool, timeout: float | None = None) -> None:
    spec = completion("x", num_outputs=2, seed=1)
    if is_unary:
        await client.generate_unary(spec, timeout=timeout)
    else:
        async with client.generate(spec, timeout=timeout) as stream:
            async for _ in stream:
                pass


@pytest.mark.parametrize("is_unary", [False, True])
@pytest.mark.parametrize("departure", [by_cancel, by_closing_the_channel])
@pytest.mark.parametrize("stage", [queued, decoding])
async def test_a_gone_client_frees_what_it_held(
    stage: Stage, departure: Departure, is_unary: bool
) -> None:
    engine = manual_engine()
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        reading = asyncio.create_task(read(client, is_unary))
        await engine.wait_submitted(2)
        await stage(engine, reading)
        await departure(client, reading)
        await engine.wait_idle()
        await running.service.registry.wait_until_empty()
        assert engine.status().load.kv_blocks_used == 0
        assert len(engine.aborted) == 2
        await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize("is_unary", [False, True])
async def test_the_deadline_frees_a_request_even_if_no_step_is_made(is_unary: bool) -> None:
    engine = manual_engine()
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        with pytest.raises(DeadlineExceeded):
            await read(client, is_unary, timeout=0.3)
        await engine.wait_idle()
        deadline = engine.submitted[0].spec.deadline
        assert deadline is not None
        assert 0 < deadline - engine.submitted[0].spec.arrival <= 0.3


async def test_a_killed_client_process_frees_its_request() -> None:
    engine = manual_engine()
    code = (
        "import sys\n"
        "from tenon.sync import Client\n"
        "from tenon.specs import completion\n"
        "for _ in Client(sys.argv[1]).generate(completion('x')): pass\n"
    )
    async with started_service(engine) as running:
        with subprocess.Popen([sys.executable, "-c", code, running.address]) as process:
            await engine.wait_submitted(1)
            engine.step(3)
            process.kill()
            await engine.wait_idle()
        await running.service.registry.wait_until_empty()


async def test_breaking_out_of_a_stream_aborts_it() -> None:
    engine = ScriptedEngineClient(lambda spec: [70], max_model_len=100_000)
    spec = completion("x")
    spec.stop.ignore_eos = True
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        async with client.generate(spec) as stream:
            async for _ in stream:
                break
        await engine.wait_idle()


async def begin(client: AsyncClient, request_id: str) -> tuple[GenerationStream, asyncio.Task]:
    stream = client.generate(completion("x"), request_id=request_id)
    return stream, asyncio.create_task(stream.collect())


async def test_end_generation_with_close_delivers_what_there_is() -> None:
    engine = manual_engine()
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        _, reading = await begin(client, "a")
        await engine.wait_submitted(1)
        engine.step(3)
        await client.end_generation("a", CLOSE)
        answer = await reading
    assert answer.outputs[0].text == "xxx"
    assert answer.outputs[0].finished.reason == generation_pb2.FINISH_REASON_ENDED_BY_CALLER


async def test_closing_a_waiting_request_ends_it_with_an_empty_answer() -> None:
    engine = manual_engine()
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        _, reading = await begin(client, "a")
        await engine.wait_submitted(1)
        await client.end_generation("a", CLOSE)
        answer = await reading
    assert answer.HasField("started")
    assert answer.HasField("prompt_processed")
    assert answer.finished.usage.output_tokens == 0


async def test_end_generation_with_cancel_ends_the_stream_with_cancelled() -> None:
    engine = manual_engine()
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        _, reading = await begin(client, "a")
        await engine.wait_submitted(1)
        engine.step(3)
        await client.end_generation("a", CANCEL)
        with pytest.raises(Cancelled) as caught:
            await reading
        assert caught.value.reason == "CANCELLED_BY_CALLER"
        await engine.wait_idle()
        with pytest.raises(NotFound):
            await client.end_generation("a", CANCEL)


async def test_a_running_id_is_refused_and_a_finished_one_is_free() -> None:
    engine = manual_engine()
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        stream, reading = await begin(client, "a")
        await engine.wait_submitted(1)
        with pytest.raises(AlreadyExists):
            await client.generate_unary(completion("x"), request_id="a")
        stream.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await running.service.registry.wait_until_empty()
        _, again = await begin(client, "a")
        await engine.wait_submitted(2)
        engine.step(501)
        assert (await again).outputs[0].text == "x" * 500


async def read_all(events: AsyncIterator[generation_pb2.GenerationEvent]) -> None:
    async for _ in events:
        pass


async def test_the_death_of_the_engine_ends_a_begun_stream_with_its_usage() -> None:
    engine = manual_engine()
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        stream = client.generate(completion("x"))
        events = aiter(stream)
        first = asyncio.ensure_future(anext(events))
        await engine.wait_submitted(1)
        engine.step(4)
        await first
        engine.die()
        with pytest.raises(Unavailable) as caught:
            await read_all(events)
        assert caught.value.usage is not None
        assert caught.value.usage.output_tokens == 4
        assert caught.value.resumable
        assert caught.value.retry_after is not None
        with pytest.raises(Unavailable) as refused:
            await client.generate_unary(completion("x"))
    assert refused.value.metadata["state"] == EngineState.RESTARTING
    assert refused.value.usage is None


async def test_the_soft_time_limit_and_the_queue_limit_reach_the_engine() -> None:
    engine = ScriptedEngineClient(text_script("a"))
    spec = completion("x")
    spec.stop.max_duration.FromMilliseconds(1500)
    spec.scheduling.max_queue_time.FromSeconds(7)
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        await client.generate_unary(spec, timeout=100)
    seen = engine.submitted[0].spec
    assert seen.close_at == seen.arrival + 1.5
    assert seen.start_by == seen.arrival + 7
    assert seen.deadline is not None


async def test_one_failing_output_ends_its_siblings() -> None:
    engine = manual_engine(max_running=2, max_waiting=1)
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        with pytest.raises(TenonError) as caught:
            await client.generate_unary(completion("x", num_outputs=4, seed=1))
        assert caught.value.reason == "QUEUE_FULL"
        assert caught.value.retry_after == 2.5
        await engine.wait_idle()
        assert len(engine.aborted) == 3
