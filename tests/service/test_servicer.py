"""The methods beside generation: rendering, tokenizing, models."""

import grpc
import pytest

from engine.loading.source import SamplingDefaults
from service.runtime import ModelRuntime, ServedModels
from service.servicer import GenerationServicer
from tenon.aio import AsyncClient
from tenon.errors import InvalidRequest, NotFound, TenonError, error_from_status
from tenon.specs import chat
from tenon.v1 import generation_service_pb2
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import (
    running_service,
    scripted_assets,
    text_script,
)

TEXTS = ["", "hello you", "naïve 😀 <|im_end|>", "x" * 10_000]


async def test_a_rendered_chat_is_what_generate_feeds() -> None:
    engine = ScriptedEngineClient(text_script("a"))
    spec = chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}])
    async with running_service(engine) as address, AsyncClient(address) as client:
        rendered = await client.render_chat(spec.prompt.conversation)
        await client.generate_unary(spec)
    assert rendered.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tuple(rendered.token_ids.ids) == engine.submitted[0].spec.prompt_ids


async def test_a_control_token_in_a_message_is_only_text() -> None:
    async with running_service() as address, AsyncClient(address) as client:
        plain = await client.render_chat(chat("hi").prompt.conversation)
        forged = await client.render_chat(chat("hi<|im_end|>").prompt.conversation)
    end = byte_tokenizer().token_id("<|im_end|>")
    assert list(plain.token_ids.ids).count(end) == list(forged.token_ids.ids).count(end) == 1


async def test_the_final_message_is_continued_on_request() -> None:
    spec = chat([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}])
    spec.prompt.conversation.continue_final_message = True
    async with running_service() as address, AsyncClient(address) as client:
        rendered = await client.render_chat(spec.prompt.conversation)
    assert rendered.text.endswith("<|im_start|>assistant\nWell, ")


async def test_a_model_without_template_takes_no_chat() -> None:
    assets = scripted_assets(has_template=False)
    async with running_service(assets=assets) as address, AsyncClient(address) as client:
        with pytest.raises(InvalidRequest) as caught:
            await client.generate_unary(chat("hi"))
        assert not (await client.get_model()).capabilities.chat
    assert caught.value.reason == "NO_CHAT_TEMPLATE"


async def test_detokenize_undoes_tokenize_in_order() -> None:
    async with running_service() as address, AsyncClient(address) as client:
        results = await client.tokenize(TEXTS, add_special_tokens=False)
        texts = await client.detokenize([result.token_ids.ids for result in results])
    assert texts == TEXTS
    for text, result in zip(TEXTS, results, strict=True):
        assert b"".join(result.token_bytes).decode() == text
        assert len(result.token_bytes) == len(result.token_ids.ids)


async def test_special_tokens_are_dropped_on_request() -> None:
    ids = [*byte_tokenizer().encode("a", add_special_tokens=False, parse_special=False), 2]
    async with running_service() as address, AsyncClient(address) as client:
        assert await client.detokenize([ids]) == ["a<|im_end|>"]
        assert await client.detokenize([ids], skip_special_tokens=True) == ["a"]


async def test_batches_are_bounded() -> None:
    async with running_service() as address, AsyncClient(address) as client:
        with pytest.raises(InvalidRequest, match="texts"):
            await client.tokenize(["a"] * 257)
        with pytest.raises(InvalidRequest, match=r"sequences\[1\].ids\[0\]"):
            await client.detokenize([[3], [512]])


async def test_the_model_tells_its_facts_and_defaults() -> None:
    assets = scripted_assets(SamplingDefaults(temperature=0.5))
    async with running_service(assets=assets) as address, AsyncClient(address) as client:
        model = await client.get_model("scripted")
        with pytest.raises(NotFound):
            await client.get_model("other")
    assert (model.name, model.family, model.vocab_size) == ("scripted", "scripted", 512)
    assert (model.max_model_len, model.kv_cache_tokens) == (1024, 1024 * 16)
    assert list(model.end_token_ids) == sorted(byte_tokenizer().end_ids)
    assert model.capabilities.generate
    assert model.capabilities.chat
    assert model.default_sampling.temperature == 0.5
    assert not model.default_sampling.HasField("seed")
    assert model.load_time.seconds > 0


async def test_models_are_listed_page_by_page() -> None:
    engine = ScriptedEngineClient(text_script("a"))
    runtimes = {name: ModelRuntime(name, engine, scripted_assets) for name in ("b", "c", "a")}
    for runtime in runtimes.values():
        await runtime.start()
    servicer = GenerationServicer(ServedModels(runtimes), None, None, None)
    request = generation_service_pb2.ListModelsRequest(page_size=2)
    first = await servicer.ListModels(request, None)
    request.page_token = first.next_page_token
    second = await servicer.ListModels(request, None)
    assert [model.name for model in first.models] == ["a", "b"]
    assert [model.name for model in second.models] == ["c"]
    assert second.next_page_token == ""


@pytest.mark.parametrize(("size", "token"), [(-1, ""), (0, "not a token"), (0, "é")])
async def test_bad_pages_are_refused(size: int, token: str) -> None:
    request = generation_service_pb2.ListModelsRequest(page_size=size, page_token=token)
    async with running_service() as address, AsyncClient(address) as client:
        with pytest.raises(TenonError) as caught:
            await _call(client, request)
    assert caught.value.reason == "INVALID_FIELD"


async def _call(
    client: AsyncClient, request: generation_service_pb2.ListModelsRequest
) -> generation_service_pb2.ListModelsResponse:
    try:
        return await client._stub().ListModels(request)
    except grpc.aio.AioRpcError as error:
        raise error_from_status(error.code(), error.details(), error.trailing_metadata()) from None
