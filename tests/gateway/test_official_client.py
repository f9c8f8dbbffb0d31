"""The official Python client, async and sync, against a real server."""

import asyncio
import json

import openai
import pytest
from openai import OpenAI

from tests.gateway.gateways import CHAT, TEXT, running_gateway


async def test_the_async_client_reads_answers_and_streams() -> None:
    async with running_gateway() as gateway:
        client = gateway.openai
        whole = await client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=1)
        assert whole.choices[0].message.content == "Hello, world!"
        assert whole._request_id.startswith("req_")
        stream = await client.chat.completions.create(
            **CHAT, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = await client.completions.create(**TEXT, logprobs=1)
        models = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("scripted")
        raw = await client.chat.completions.with_raw_response.create(**CHAT)
    assert chunks[-1].usage == whole.usage
    assert text.choices[0].text == "Hello, world!"
    assert text.choices[0].logprobs.text_offset[0] == 0
    assert models == [one.id] == ["scripted"]
    assert raw.headers["openai-version"]


async def test_the_clients_stream_helper_rebuilds_every_output() -> None:
    async with (
        running_gateway() as gateway,
        gateway.openai.chat.completions.stream(**CHAT, n=2) as stream,
    ):
        rebuilt = await stream.get_final_completion()
    assert [choice.message.content for choice in rebuilt.choices] == ["Hello, world!"] * 2
    assert [choice.finish_reason for choice in rebuilt.choices] == ["stop"] * 2


async def test_the_client_raises_its_typed_errors() -> None:
    async with running_gateway() as gateway:
        create = gateway.openai.chat.completions.create
        with pytest.raises(openai.NotFoundError) as missing:
            await create(**{**CHAT, "model": "nobody"})
        with pytest.raises(openai.BadRequestError) as hot:
            await create(**CHAT, temperature=3)
        with pytest.raises(openai.BadRequestError) as long:
            await create(**CHAT, max_tokens=100_000, stream=True)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    assert (hot.value.code, hot.value.param) == ("decimal_above_max_value", "temperature")
    assert long.value.code == "context_length_exceeded"
    assert hot.value.request_id.startswith("req_")


async def test_the_sync_client_reads_answers_and_streams() -> None:
    def ask(url: str) -> tuple[str, str]:
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(**CHAT)
            stream = client.chat.completions.create(**CHAT, stream=True)
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
            return whole.choices[0].message.content, "".join(pieces)

    async with running_gateway() as gateway:
        whole, streamed = await asyncio.to_thread(ask, gateway.url)
    assert whole == streamed == "Hello, world!"


async def test_many_streams_at_once_do_not_mix() -> None:
    async with running_gateway() as gateway:

        async def one(index: int) -> str:
            response = await gateway.complete(prompt=f"{index}:", echo=True, stream=True)
            events = response.text.split("\n\n")[:-2]
            chunks = [json.loads(event.removeprefix("data: ")) for event in events]
            return "".join(chunk["choices"][0]["text"] for chunk in chunks)

        texts = await asyncio.gather(*(one(index) for index in range(100)))
    assert texts == [f"{index}:Hello, world!" for index in range(100)]
