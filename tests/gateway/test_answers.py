"""Whole answers, accepted fields, models, health, and the headers of every response."""

import asyncio

import pytest

from engine.request import RequestError
from gateway.config import ConfigError, GatewayConfig
from tests.gateway.gateways import running_gateway, running_gateway_loading
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import text_script

USER = {"role": "user", "content": "hi"}


async def test_a_chat_answer_has_every_required_field() -> None:
    async with running_gateway() as gateway:
        response = await gateway.chat()
    body = response.json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == "scripted"
    assert body["system_fingerprint"]
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, world!", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert response.headers["x-request-id"].startswith("req_")
    assert response.headers["request-id"] == response.headers["x-request-id"]
    assert int(response.headers["openai-processing-ms"]) >= 0
    assert response.headers["openai-version"] == "2020-10-01"


async def test_outputs_are_numbered_and_the_prompt_is_counted_once() -> None:
    async with running_gateway() as gateway:
        one = (await gateway.chat()).json()
        three = (await gateway.chat(n=3)).json()
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert three["usage"]["completion_tokens"] == 3 * one["usage"]["completion_tokens"]


# Everything here is legal, and answered like the request without it.
ACCEPTED = [
    {"temperature": 0, "top_p": 1},
    {"temperature": 2, "frequency_penalty": -2, "presence_penalty": 2},
    {"seed": -1, "n": 1, "stop": None},
    {"stop": [], "tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
    {"tool_choice": "none"},
    {"tool_choice": None, "response_format": {"type": "text"}},
    {"max_tokens": 50, "max_completion_tokens": 50},
    {"logit_bias": {"5": -100, "6": 100}},
    {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 1},
    {"stop_token_ids": [200], "priority": "batch", "cache_salt": "mine"},
    {"stream": False, "stream_options": None},
    {"stream_options": {}},
    {"store": True, "metadata": {"k": "v"}, "user": "u", "safety_identifier": "s"},
    {"service_tier": "auto", "prompt_cache_key": "k", "verbosity": "low"},
    {"prediction": {"type": "content", "content": "x"}, "modalities": ["text"]},
    {"reasoning_effort": "high"},
    {"reasoning_effort": "none"},
    {"logprobs": False, "audio": None, "functions": None},
    {"messages": [{"role": "developer", "content": "be kind"}, USER]},
    {"messages": [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, USER]},
    {"messages": [USER, {"role": "assistant", "content": "x", "annotations": []}, USER]},
    {"messages": [USER, {"role": "assistant", "content": [], "tool_calls": []}, USER]},
    {"messages": [{**USER, "name": "ann"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "h\u0000i"}]}]},
]


async def test_legal_fields_are_accepted() -> None:
    async with running_gateway() as gateway:
        for fields in ACCEPTED:
            response = await gateway.chat(**fields)
            assert response.status_code == 200, (fields, response.text)
            content = response.json()["choices"][0]["message"]["content"]
            assert content == "Hello, world!"


async def test_sampling_reaches_the_engine() -> None:
    engine = ScriptedEngineClient(text_script("x"))
    async with running_gateway(engine) as gateway:
        await gateway.chat(
            temperature=0.5, top_p=0.25, top_k=7, seed=11, stop_token_ids=[9], max_tokens=3
        )
        await gateway.complete(prompt=[[5, 6], [7]], temperature=0)
    chat, first, second = [request.spec for request in engine.submitted]
    assert (chat.sampling.temperature, chat.sampling.top_p, chat.sampling.top_k) == (0.5, 0.25, 7)
    assert chat.sampling.seed == 11
    assert chat.max_tokens == 3
    assert 9 in chat.stop_token_ids
    assert {tuple(first.prompt_ids), tuple(second.prompt_ids)} == {(5, 6), (7,)}
    assert first.max_tokens == 16


async def test_length_is_the_reason_when_the_budget_ends_the_answer() -> None:
    async with running_gateway() as gateway:
        for name in ("max_tokens", "max_completion_tokens"):
            choice = (await gateway.chat(**{name: 3})).json()["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == ("Hel", "length")


async def test_echo_of_token_ids_is_their_text() -> None:
    async with running_gateway() as gateway:
        tokens = [3 + byte for byte in b"abc"]
        body = (await gateway.complete(prompt=tokens, echo=True, max_tokens=1)).json()
    assert body["object"] == "text_completion"
    assert body["choices"][0]["text"] == "abcH"


async def test_models_are_listed_and_found_by_name() -> None:
    async with running_gateway() as gateway:
        listed = (await gateway.http.get("/v1/models")).json()
        one = (await gateway.http.get("/v1/models/scripted")).json()
        missing = await gateway.http.get("/v1/models/a%2Fb")
        bare = await gateway.http.get("/v1/models/a/b")
    assert listed["object"] == "list"
    assert listed["data"] == [one]
    assert one["id"] == "scripted"
    assert one["object"] == "model"
    for response in (missing, bare):
        assert response.status_code == 404
        assert "'a/b'" in response.json()["error"]["message"]


async def test_unknown_paths_and_methods_have_json_errors() -> None:
    async with running_gateway() as gateway:
        unknown = await gateway.http.get("/v2/nothing")
        stored = await gateway.http.get("/v1/chat/completions")
        deleted = await gateway.http.delete("/v1/models/scripted")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["code"] == "unknown_url"
    assert unknown.headers["x-request-id"]
    for response, allowed in ((stored, "POST"), (deleted, "GET")):
        assert response.status_code == 405
        assert allowed in response.headers["allow"]
        assert response.json()["error"]["code"] == "method_not_supported"


@pytest.mark.parametrize("path", ["/v1/models/", "/v1//models", "//v1/models//"])
async def test_extra_slashes_do_not_matter(path: str) -> None:
    async with running_gateway() as gateway:
        response = await gateway.http.get(gateway.url + path)
    assert response.status_code == 200


async def test_other_hosts_are_refused() -> None:
    async with running_gateway() as gateway:
        for host in ("evil.example", "127.0.0.1/?x", "evil.example:8000"):
            response = await gateway.http.get("/v1/models", headers={"host": host})
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "invalid_host"
        assert (await gateway.http.get("/health", headers={"host": "localhost"})).status_code == 200


async def test_too_many_headers_are_refused() -> None:
    async with running_gateway() as gateway:
        many = await gateway.http.get("/health", headers={f"x-{i}": "1" for i in range(101)})
        large = await gateway.http.get("/health", headers={"x-large": "1" * 70_000})
    assert many.status_code == 431
    assert large.status_code in (400, 431)


async def test_readiness_reports_progress_until_the_engine_is_loaded() -> None:
    engine = ScriptedEngineClient(text_script("x"))
    engine.load_gate = asyncio.Event()
    engine.stage, engine.progress = "loading weights", 0.25
    async with running_gateway_loading(engine) as (gateway, loading):
        waiting = await gateway.http.get("/ready")
        assert waiting.status_code == 503
        body = waiting.json()
        assert body["state"] == "loading"
        assert body["stage"] == "loading weights"
        assert body["progress"] == 0.25
        refused = await gateway.chat()
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_is_overloaded"
        assert refused.headers["retry-after"]
        assert (await gateway.http.get("/health")).status_code == 200
        engine.load_gate.set()
        await loading
        assert (await gateway.http.get("/ready")).json() == {
            "status": "ready",
            "models": ["scripted"],
        }


async def test_a_full_queue_is_503_with_the_time_to_wait() -> None:
    metadata = (("retry_after_seconds", "2.5"),)
    engine = ScriptedEngineClient(text_script("x"))
    engine.refusals = [RequestError("QUEUE_FULL", "the queue is full", metadata)] * 2
    async with running_gateway(engine) as gateway:
        for stream in (False, True):
            response = await gateway.chat(stream=stream)
            assert response.status_code == 503
            assert response.headers["retry-after-ms"] == "2500"
            assert response.headers["retry-after"] == "2"
            assert response.json()["error"]["type"] == "service_unavailable_error"


async def test_the_gateway_listens_on_loopback_only() -> None:
    for host in ("0.0.0.0", "192.168.1.1", "::", "example.com"):
        with pytest.raises(ConfigError, match="loopback"):
            GatewayConfig(host=host)
    GatewayConfig(host="::1")
