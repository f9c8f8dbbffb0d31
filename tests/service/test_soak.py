"""Many short streams, half of them abandoned: nothing is left behind."""

import asyncio
import random

from tenon.aio import AsyncClient
from tenon.errors import Overloaded
from tenon.specs import completion
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import started_service, text_script

NUM_STREAMS = 600


async def one_stream(client: AsyncClient, seed: int) -> str:
    """Reads to the end, or leaves after some messages; returns which."""
    chance = random.Random(seed)
    leaves_after = chance.choice([0, 1, 3, None, None, None])
    spec = completion("x", num_outputs=chance.choice([1, 3]), seed=seed)
    async with client.generate(spec) as stream:
        if leaves_after == 0:
            return "left"
        text, num_messages = "", 0
        async for message in stream.messages():
            num_messages += 1
            text += "".join(e.text.text for e in message.events if e.text.output_index == 0)
            if num_messages == leaves_after:
                return "left"
    assert text == "the same answer for everybody"
    return "finished"


async def test_streams_that_come_and_go_leave_nothing_behind() -> None:
    engine = ScriptedEngineClient(text_script("the same answer for everybody"), max_running=16)
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        results = []
        for start in range(0, NUM_STREAMS, 100):
            seeds = range(start, start + 100)
            results += await asyncio.gather(*(one_stream(client, seed) for seed in seeds))
        await engine.wait_idle()
        await running.service.registry.wait_until_empty()
        assert engine.status().load.kv_blocks_used == 0
    assert results.count("finished") > 100
    assert results.count("left") > 100


async def test_two_waves_over_the_limit_are_refused_alike_and_the_rest_is_served() -> None:
    engine = ScriptedEngineClient(
        text_script("answer"), auto_step=False, max_running=2, max_waiting=3
    )
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        for wave in range(1, 3):
            calls = [
                asyncio.create_task(client.generate(completion("x")).collect()) for _ in range(9)
            ]
            await engine.wait_submitted(9 * wave)
            await engine.wait_until(lambda engine: len(engine.open_ids) == 5)
            engine.step(100)
            answers = await asyncio.gather(*calls, return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, Overloaded)]
            assert len(refused) == 4
            assert {(error.reason, error.retry_after) for error in refused} == {("QUEUE_FULL", 2.5)}
            served = [answer for answer in answers if not isinstance(answer, Exception)]
            assert [answer.outputs[0].text for answer in served] == ["answer"] * 5
