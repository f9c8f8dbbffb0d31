"""What Generate streams and GenerateUnary returns, over a real socket and a scripted engine."""

import asyncio
from collections.abc import Sequence

import pytest

from engine.loading.source import SamplingDefaults
from engine.request import RequestSpec
from tenon.aio import AsyncClient
from tenon.fold import fold_events
from tenon.specs import chat, completion
from tenon.v1 import generation_pb2
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import running_service, scripted_assets, text_script

TEXT = "the naïve 😀 answer and you"


def ids_of(text: str) -> list[int]:
    return byte_tokenizer().encode(text, add_special_tokens=False, parse_special=False)


def without_times(answer):
    answer.finished.ClearField("timings")
    answer.started.ClearField("request_id")
    return answer


async def test_a_chat_is_answered_with_events_in_order() -> None:
    async with (
        running_service() as address,
        AsyncClient(address) as client,
        client.generate(chat("hi")) as stream,
    ):
        kinds = [event.WhichOneof("event") async for event in stream]
    assert kinds[:2] == ["started", "prompt_processed"]
    assert kinds[-2:] == ["output_finished", "finished"]
    assert set(kinds[2:-2]) == {"text"}


@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
@pytest.mark.parametrize("stop", [(), ("er and",), ("z", "😀 a"), ("nothing",)])
async def test_the_concatenated_stream_equals_the_unary_answer(
    tokens_per_step: int, stop: Sequence[str]
) -> None:
    engine = ScriptedEngineClient(text_script(TEXT), tokens_per_step=tokens_per_step)
    spec = completion("x", seed=5, num_outputs=3, stop=stop)
    spec.output.token_ids = True
    spec.output.logprobs = True
    spec.output.top_logprobs = 2
    async with running_service(engine) as address, AsyncClient(address) as client:
        async with client.generate(spec) as stream:
            folded = fold_events([event async for event in stream])
        unary = await client.generate_unary(spec)
    assert without_times(folded) == without_times(unary)
    assert [output.output_index for output in unary.outputs] == [0, 1, 2]
    end = min([TEXT.find(item) for item in stop if item in TEXT], default=len(TEXT))
    assert [output.text for output in unary.outputs] == [TEXT[:end]] * 3


async def test_usage_counts_to_the_token_that_completes_the_stop_string() -> None:
    engine = ScriptedEngineClient(text_script("abcdefgh"), tokens_per_step=6)
    spec = completion("x", stop=["cd"])
    spec.output.token_ids = True
    async with running_service(engine) as address, AsyncClient(address) as client:
        answer = await client.generate_unary(spec)
    output = answer.outputs[0]
    assert output.text == "ab"
    assert list(output.token_ids.ids) == ids_of("abcd")
    assert output.finished.stop_string == "cd"
    assert output.finished.output_tokens == answer.finished.usage.output_tokens == 4
    assert engine.open_ids == []
    assert len(engine.aborted) == 1


async def test_the_stop_string_is_kept_on_request() -> None:
    spec = completion("x", stop=["cd"])
    spec.stop.include_stop_string = True
    engine = ScriptedEngineClient(text_script("abcdefgh"))
    async with running_service(engine) as address, AsyncClient(address) as client:
        assert (await client.generate_unary(spec)).outputs[0].text == "abcd"


async def test_a_held_back_prefix_of_a_stop_string_is_released_at_the_end() -> None:
    spec = completion("x", stop=["lo!!"])
    engine = ScriptedEngineClient(text_script("hello"))
    async with running_service(engine) as address, AsyncClient(address) as client:
        assert (await client.generate_unary(spec)).outputs[0].text == "hello"


async def test_the_end_token_is_counted_but_not_shown() -> None:
    spec = completion("x")
    spec.output.token_ids = True
    engine = ScriptedEngineClient(text_script("ab"))
    async with running_service(engine) as address, AsyncClient(address) as client:
        shown = await client.generate_unary(spec)
        spec.output.special_tokens = True
        special = await client.generate_unary(spec)
    end = min(byte_tokenizer().end_ids)
    assert shown.outputs[0].text == "ab"
    assert list(shown.outputs[0].token_ids.ids) == [*ids_of("ab"), end]
    assert shown.outputs[0].finished.stop_token_id == end
    assert special.outputs[0].text == "ab" + byte_tokenizer().token_name(end)


async def test_the_output_limit_ends_with_length() -> None:
    async with running_service() as address, AsyncClient(address) as client:
        answer = await client.generate_unary(completion("x", max_tokens=3))
    finished = answer.outputs[0].finished
    assert (finished.reason, finished.output_tokens) == (generation_pb2.FINISH_REASON_LENGTH, 3)
    assert finished.WhichOneof("matched") is None


async def test_started_reports_what_the_request_runs_with() -> None:
    assets = scripted_assets(SamplingDefaults(temperature=0.5, top_k=7))
    spec = completion([5, 6, 7], top_p=0.25, seed=11)
    spec.output.prompt_token_ids = True
    async with running_service(assets=assets) as address, AsyncClient(address) as client:
        started = (await client.generate_unary(spec, request_id="mine")).started
    resolved = started.resolved
    assert started.request_id == "mine"
    assert (started.model, started.fingerprint) == ("scripted", "scripted")
    assert (resolved.temperature, resolved.top_k, resolved.top_p) == (0.5, 7, 0.25)
    assert (resolved.seed, resolved.min_p, resolved.repetition_penalty) == (11, 0, 1)
    assert resolved.HasField("min_p")
    assert started.max_tokens == 1024 - 3
    assert list(started.prompt_token_ids.ids) == [5, 6, 7]


async def test_zero_is_a_value_and_beats_the_default() -> None:
    assets = scripted_assets(SamplingDefaults(temperature=0.5, top_k=7))
    engine = ScriptedEngineClient(text_script("a"))
    spec = completion("x", temperature=0.0, top_k=0)
    async with running_service(engine, assets=assets) as address, AsyncClient(address) as client:
        await client.generate_unary(spec)
    sampling = engine.submitted[0].spec.sampling
    assert (sampling.temperature, sampling.top_k) == (0.0, 0)


async def test_each_output_is_the_single_run_with_the_next_seed() -> None:
    def script(spec: RequestSpec) -> Sequence[int]:
        return [spec.sampling.seed % 200 + 3]

    engine = ScriptedEngineClient(script)
    spec = completion("x", seed=2**64 - 1, num_outputs=3)
    async with running_service(engine) as address, AsyncClient(address) as client:
        await client.generate_unary(spec)
    assert [item.spec.sampling.seed for item in engine.submitted] == [2**64 - 1, 0, 1]


async def test_log_probabilities_carry_the_bytes_of_their_tokens() -> None:
    spec = completion("x")
    spec.output.logprobs = True
    spec.output.top_logprobs = 2
    engine = ScriptedEngineClient(text_script("é!"))
    async with running_service(engine) as address, AsyncClient(address) as client:
        output = (await client.generate_unary(spec)).outputs[0]
    assert list(output.logprobs.token_ids[:-1]) == ids_of("é!")
    assert b"".join(output.logprobs.token_bytes[:-1]).decode() == "é!"
    assert [len(top.token_ids) for top in output.logprobs.top] == [2] * len(output.logprobs.values)
    assert not output.token_ids.ids


async def test_text_can_be_skipped() -> None:
    spec = completion("x")
    spec.output.skip_text = True
    spec.output.token_ids = True
    async with running_service() as address, AsyncClient(address) as client:
        output = (await client.generate_unary(spec)).outputs[0]
    assert output.text == ""
    assert output.token_ids.ids


async def test_cached_tokens_and_timings_are_reported() -> None:
    engine = ScriptedEngineClient(text_script("a"), cached_tokens=16)
    async with running_service(engine) as address, AsyncClient(address) as client:
        answer = await client.generate_unary(completion("x" * 20))
    assert answer.prompt_processed.cached_tokens == 16
    assert answer.finished.usage.cached_tokens == 16
    assert answer.finished.usage.prompt_tokens == len(engine.submitted[0].spec.prompt_ids)
    assert answer.finished.timings.queue.ToTimedelta().total_seconds() == 0.25


async def test_the_oldest_prompt_tokens_are_dropped_on_request() -> None:
    engine = ScriptedEngineClient(text_script("a"), max_model_len=32)
    spec = completion(list(range(3, 103)), max_tokens=8)
    spec.prompt.truncation = 2
    async with running_service(engine) as address, AsyncClient(address) as client:
        answer = await client.generate_unary(spec)
    assert engine.submitted[0].spec.prompt_ids == tuple(range(79, 103))
    assert answer.started.prompt_tokens == 24


async def test_a_slow_reader_gets_everything_in_few_messages() -> None:
    engine = ScriptedEngineClient(text_script("x" * 200), auto_step=False)
    async with running_service(engine) as address, AsyncClient(address) as client:
        stream = client.generate(completion("x"))
        messages = stream.messages()
        first = asyncio.ensure_future(anext(messages))
        await engine.wait_submitted(1)
        engine.step(300)
        sizes = [len((await first).events)] + [len(message.events) async for message in messages]
    assert len(sizes) <= 2
    assert sum(sizes) <= 6


async def test_requests_of_a_tenant_share_the_prefix_cache_unless_narrowed() -> None:
    engine = ScriptedEngineClient(text_script("a"))
    narrow = completion("x")
    narrow.cache.narrow = "mine"
    narrow.cache.bypass = True
    async with running_service(engine) as address, AsyncClient(address) as client:
        for spec in (completion("x"), completion("x"), narrow):
            await client.generate_unary(spec)
    salts = [item.spec.salt for item in engine.submitted]
    assert salts[0] == salts[1] != salts[2]
    assert [item.spec.bypass_prefix_cache for item in engine.submitted] == [False, False, True]


async def test_a_character_that_the_limit_cuts_in_two_is_dropped() -> None:
    cut = len(ids_of("a 😀")) - 1
    engine = ScriptedEngineClient(text_script("a 😀"))
    spec = completion("x", max_tokens=cut)
    async with running_service(engine) as address, AsyncClient(address) as client:
        output = (await client.generate_unary(spec)).outputs[0]
    assert output.finished.reason == generation_pb2.FINISH_REASON_LENGTH
    assert output.finished.output_tokens == cut
    assert output.text == "a "


async def test_a_raw_prompt_may_hold_control_tokens_and_a_message_may_not() -> None:
    async with running_service() as address, AsyncClient(address) as client:
        raw = completion("<|im_start|>user")
        message = chat("<|im_start|>user")
        for spec, counted in ((raw, 1), (message, 2)):
            spec.output.prompt_token_ids = True
            started = (await client.generate_unary(spec)).started
            ids = list(started.prompt_token_ids.ids)
            assert ids.count(1) == counted, ids


async def test_token_ids_are_absent_unless_asked_for() -> None:
    async with running_service() as address, AsyncClient(address) as client:
        spec = chat("hi")
        spec.output.logprobs = True
        output = (await client.generate_unary(spec)).outputs[0]
    assert output.HasField("logprobs")
    assert not output.HasField("token_ids")
