"""A client that goes away frees its sequences: the engine sees the abort."""

import asyncio
import json

import pytest

from tests.gateway.gateways import CHAT, TEXT, RunningGateway, running_gateway
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import text_script


def stepped_engine(**options: int) -> ScriptedEngineClient:
    return ScriptedEngineClient(text_script("Hello, world!"), auto_step=False, **options)


async def connect_and_post(gateway: RunningGateway, path: str, body: dict) -> tuple:
    """A raw connection on which a request has been sent."""
    port = int(gateway.url.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    await writer.drain()
    return reader, writer


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("stream", [False, True])
async def test_hanging_up_before_the_first_token_aborts(stream: bool) -> None:
    engine = stepped_engine()
    async with running_gateway(engine) as gateway:
        body = {**CHAT, "stream": stream}
        _, writer = await connect_and_post(gateway, "/v1/chat/completions", body)
        await engine.wait_submitted(1)
        await hang_up(writer)
        await engine.wait_idle()
        assert len(engine.aborted) == 1
        assert engine.num_steps == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_hanging_up_in_the_middle_aborts_every_output(stream: bool) -> None:
    engine = stepped_engine()
    async with running_gateway(engine) as gateway:
        body = {**CHAT, "stream": stream, "n": 2}
        reader, writer = await connect_and_post(gateway, "/v1/chat/completions", body)
        await engine.wait_submitted(2)
        engine.step(3)
        if stream:
            await reader.readuntil(b'"content":"H')
        await hang_up(writer)
        await engine.wait_idle()
        assert len(engine.aborted) == 2


async def test_hanging_up_aborts_all_prompts_of_a_batch() -> None:
    engine = stepped_engine()
    async with running_gateway(engine) as gateway:
        body = {**TEXT, "prompt": ["a", "b", "c"], "stream": True}
        reader, writer = await connect_and_post(gateway, "/v1/completions", body)
        await engine.wait_submitted(3)
        engine.step(2)
        await reader.readuntil(b'"text":"H')
        await hang_up(writer)
        await engine.wait_idle()
        assert len(engine.aborted) == 3


async def test_hanging_up_in_the_queue_aborts_what_waits() -> None:
    engine = stepped_engine(max_running=1)
    async with running_gateway(engine) as gateway:
        running = asyncio.create_task(gateway.chat())
        await engine.wait_submitted(1)
        engine.step()
        _, writer = await connect_and_post(gateway, "/v1/chat/completions", CHAT)
        await engine.wait_submitted(2)
        await hang_up(writer)
        await engine.wait_until(lambda engine: len(engine.open_ids) == 1)
        engine.step(20)
        assert (await running).json()["choices"][0]["message"]["content"] == "Hello, world!"
        assert len(engine.aborted) == 1


async def test_closing_the_official_clients_stream_aborts() -> None:
    engine = stepped_engine()
    async with running_gateway(engine) as gateway:
        asking = asyncio.create_task(gateway.openai.chat.completions.create(**CHAT, stream=True))
        await engine.wait_submitted(1)
        engine.step()
        stream = await asking
        await anext(aiter(stream))
        await stream.close()
        await engine.wait_idle()
        assert len(engine.aborted) == 1


async def test_a_failed_prompt_ends_the_others_of_its_batch() -> None:
    engine = stepped_engine()
    async with running_gateway(engine) as gateway:
        response = await gateway.complete(prompt=["a", "x" * 3000, "b"])
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "prompt[1]"
        await engine.wait_idle()
