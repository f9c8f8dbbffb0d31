"""The streamed answers of both routes, chunk by chunk, and that they equal the whole ones."""

import asyncio
import json

from tests.gateway.gateways import CHAT, running_gateway, sse_events
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import text_script


async def test_a_chat_stream_is_role_content_finish_and_the_end_mark() -> None:
    async with running_gateway() as gateway:
        response = await gateway.chat(stream=True)
        events = sse_events(response.text)
        chunks = [json.loads(event) for event in events[:-1]]
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-length" not in response.headers
        assert "content-encoding" not in response.headers
    assert events[-1] == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert all(set(choice["delta"]) == {"content"} for choice in choices[1:-1])
    assert "".join(choice["delta"]["content"] for choice in choices[1:-1]) == "Hello, world!"
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    for name in ("id", "created", "model", "system_fingerprint", "object"):
        assert len({chunk[name] for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert all("usage" not in chunk for chunk in chunks)


async def test_the_usage_chunk_comes_last_and_earlier_ones_say_null() -> None:
    async with running_gateway() as gateway:
        response = await gateway.chat(stream=True, stream_options={"include_usage": True})
        whole = (await gateway.chat()).json()
    *chunks, last = [json.loads(event) for event in sse_events(response.text)[:-1]]
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert last["usage"]["completion_tokens"] == len("Hello, world!") + 1


async def test_several_outputs_begin_with_all_roles_in_order() -> None:
    async with running_gateway() as gateway:
        response = await gateway.chat(stream=True, n=3)
    chunks = [json.loads(event) for event in sse_events(response.text)[:-1]]
    indices = [chunk["choices"][0]["index"] for chunk in chunks]
    assert indices[:3] == [0, 1, 2]
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[3:])
    for index in range(3):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in own) == "Hello, world!"
        assert own[-1]["finish_reason"] == "stop"


async def test_characters_split_over_tokens_arrive_whole() -> None:
    text = "añ 漢字 👩‍👩‍👧‍👦 e\u0301"
    async with running_gateway(ScriptedEngineClient(text_script(text))) as gateway:
        response = await gateway.chat(stream=True)
    chunks = [json.loads(event) for event in sse_events(response.text)[:-1]]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == text


async def test_log_probabilities_of_a_stream_are_those_of_the_whole_answer() -> None:
    fields = {"logprobs": True, "top_logprobs": 2}
    async with running_gateway() as gateway:
        whole = (await gateway.chat(**fields)).json()
        response = await gateway.chat(stream=True, **fields)
    chunks = [json.loads(event) for event in sse_events(response.text)[:-1]]
    parts = [c["choices"][0]["logprobs"] for c in chunks]
    streamed = [entry for part in parts if part for entry in part["content"]]
    assert streamed == whole["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in streamed) == "Hello, world!"
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in streamed)
    assert bytes(b for entry in streamed for b in entry["bytes"]) == b"Hello, world!"


async def test_completion_streams_carry_text_and_their_four_columns() -> None:
    async with running_gateway() as gateway:
        whole = (await gateway.complete(logprobs=2)).json()["choices"][0]
        response = await gateway.complete(stream=True, logprobs=2)
    chunks = [json.loads(event)["choices"][0] for event in sse_events(response.text)[:-1]]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"] == "Hello, world!"
    for column in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [chunk["logprobs"][column] for chunk in chunks if chunk["logprobs"]]
        assert [item for part in parts for item in part] == whole["logprobs"][column]
    assert whole["logprobs"]["text_offset"] == list(range(len("Hello, world!")))
    assert chunks[-1]["finish_reason"] == "stop"


async def test_prompts_of_a_batch_have_their_own_indices_streamed_and_not() -> None:
    fields = {"prompt": ["a", "b", "c"], "n": 2, "echo": True}
    async with running_gateway() as gateway:
        whole = (await gateway.complete(**fields)).json()
        response = await gateway.complete(stream=True, **fields)
    texts = {choice["index"]: choice["text"] for choice in whole["choices"]}
    assert texts == {i: "aabbcc"[i] + "Hello, world!" for i in range(6)}
    streamed = dict.fromkeys(range(6), "")
    for event in sse_events(response.text)[:-1]:
        choice = json.loads(event)["choices"][0]
        streamed[choice["index"]] += choice["text"]
    assert streamed == texts
    assert sse_events(response.text)[-1] == "[DONE]"


async def test_padding_hides_the_length_of_deltas_on_request() -> None:
    async with running_gateway() as gateway:
        response = await gateway.chat(stream=True, stream_options={"include_obfuscation": True})
    chunks = [json.loads(event) for event in sse_events(response.text)[:-1]]
    assert all(chunk["obfuscation"] for chunk in chunks)


async def test_many_tokens_of_one_step_are_one_chunk() -> None:
    engine = ScriptedEngineClient(text_script("Hello, world!"), tokens_per_step=100)
    async with running_gateway(engine) as gateway:
        response = await gateway.chat(stream=True)
    deltas = [json.loads(e)["choices"][0]["delta"] for e in sse_events(response.text)[:-1]]
    assert [delta.get("content") for delta in deltas] == ["", "Hello, world!", None]


async def test_the_first_token_is_sent_before_the_second_exists() -> None:
    engine = ScriptedEngineClient(text_script("Hello"), auto_step=False)
    async with running_gateway(engine) as gateway:
        asking = asyncio.create_task(
            gateway.openai.chat.completions.create(**CHAT, stream=True, max_tokens=2)
        )
        await engine.wait_submitted(1)
        engine.step()
        stream = aiter(await asking)
        deltas = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
        assert deltas == ["", "H"]
        assert engine.num_steps == 1
        engine.step()
        assert [chunk.choices[0].finish_reason async for chunk in stream][-1] == "length"


async def test_stop_strings_across_chunks_do_not_leak() -> None:
    async with running_gateway() as gateway:
        response = await gateway.chat(stream=True, stop=["world"])
        whole = (await gateway.chat(stop=["world"])).json()
    chunks = [json.loads(event) for event in sse_events(response.text)[:-1]]
    streamed = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert streamed == whole["choices"][0]["message"]["content"] == "Hello, "
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
