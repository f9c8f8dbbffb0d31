"""A hundred malformed requests: each has its own clear error, and none disturbs a valid one."""

import asyncio
import json

import pytest

from gateway.config import GatewayConfig
from tests.gateway.gateways import CHAT, TEXT, running_gateway

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ABSENT = object()


def message(**fields: object) -> dict:
    return {"messages": [fields]}


# Changed fields of a chat request, and the code and param of the answer.
CHAT_CASES = [
    ({"model": ABSENT}, "missing_required_parameter", "model"),
    ({"model": None}, "missing_required_parameter", "model"),
    ({"model": 5}, "invalid_type", "model"),
    ({"model": "x" * 2000}, "string_above_max_length", "model"),
    ({"messages": ABSENT}, "missing_required_parameter", "messages"),
    ({"messages": {}}, "invalid_type", "messages"),
    ({"messages": "hi"}, "invalid_type", "messages"),
    ({"messages": []}, "empty_array", "messages"),
    ({"messages": [1]}, "invalid_type", "messages[0]"),
    ({"messages": [None]}, "invalid_type", "messages[0]"),
    ({"messages": [USER] * 2049}, "array_above_max_length", "messages"),
    (message(content="x"), "missing_required_parameter", "messages[0].role"),
    (message(role="robot", content="x"), "invalid_value", "messages[0].role"),
    (message(role=1, content="x"), "invalid_type", "messages[0].role"),
    (message(role="function", content="x"), "unsupported_value", "messages[0].role"),
    (message(role="user"), "missing_required_parameter", "messages[0].content"),
    (message(role="user", content=5), "invalid_type", "messages[0].content"),
    (message(role="user", content=[5]), "invalid_type", "messages[0].content[0]"),
    (
        message(role="user", content=[{"text": "x"}]),
        "missing_required_parameter",
        "messages[0].content[0].type",
    ),
    (
        message(role="user", content=[{"type": "banana"}]),
        "invalid_value",
        "messages[0].content[0].type",
    ),
    (
        message(role="user", content=[{"type": "image_url", "image_url": {"url": "x"}}]),
        "unsupported_value",
        "messages[0].content[0].type",
    ),
    (
        message(role="user", content=[{"type": "text"}]),
        "missing_required_parameter",
        "messages[0].content[0].text",
    ),
    (
        message(role="user", content=[{"type": "text", "text": 1}]),
        "invalid_type",
        "messages[0].content[0].text",
    ),
    (message(role="user", content="x", mood="sad"), "unknown_parameter", "messages[0].mood"),
    (message(role="assistant"), "missing_required_parameter", "messages[0].content"),
    (
        message(role="assistant", content="x", audio={"id": "a"}),
        "unsupported_parameter",
        "messages[0].audio",
    ),
    (
        message(role="assistant", tool_calls=[{}]),
        "missing_required_parameter",
        "messages[0].tool_calls[0].type",
    ),
    (
        message(role="tool", content="x"),
        "missing_required_parameter",
        "messages[0].tool_call_id",
    ),
    (
        message(role="tool", content="x", tool_call_id="nobody"),
        "invalid_value",
        "messages[0].tool_call_id",
    ),
    (
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]},
        "unsupported_parameter",
        "messages[1].tool_calls",
    ),
    ({"temperature": "hot"}, "invalid_type", "temperature"),
    ({"temperature": True}, "invalid_type", "temperature"),
    ({"temperature": -0.1}, "decimal_below_min_value", "temperature"),
    ({"temperature": 2.1}, "decimal_above_max_value", "temperature"),
    ({"temperature": 10**30}, "decimal_above_max_value", "temperature"),
    ({"top_p": 0}, "decimal_below_min_value", "top_p"),
    ({"top_p": -0.1}, "decimal_below_min_value", "top_p"),
    ({"top_p": 1.1}, "decimal_above_max_value", "top_p"),
    ({"top_p": []}, "invalid_type", "top_p"),
    ({"frequency_penalty": 2.1}, "decimal_above_max_value", "frequency_penalty"),
    ({"presence_penalty": -2.1}, "decimal_below_min_value", "presence_penalty"),
    ({"repetition_penalty": 0}, "decimal_below_min_value", "repetition_penalty"),
    ({"min_p": 1}, "invalid_value", "min_p"),
    ({"top_k": -1}, "integer_below_min_value", "top_k"),
    ({"top_k": 1.5}, "invalid_type", "top_k"),
    ({"n": 0}, "integer_below_min_value", "n"),
    ({"n": 129}, "integer_above_max_value", "n"),
    ({"n": 1.5}, "invalid_type", "n"),
    ({"n": True}, "invalid_type", "n"),
    ({"seed": "x"}, "invalid_type", "seed"),
    ({"seed": 2**63}, "integer_above_max_value", "seed"),
    ({"max_tokens": 0}, "integer_below_min_value", "max_tokens"),
    ({"max_tokens": -1}, "integer_below_min_value", "max_tokens"),
    ({"max_tokens": 2**40}, "integer_above_max_value", "max_tokens"),
    ({"max_completion_tokens": 0}, "integer_below_min_value", "max_completion_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "invalid_value", "max_tokens"),
    ({"max_tokens": 100_000}, "context_length_exceeded", "messages"),
    (message(role="user", content="x" * 2000), "context_length_exceeded", "messages"),
    ({"min_tokens": 5, "max_tokens": 2}, "invalid_value", "min_tokens"),
    ({"stop": {}}, "invalid_type", "stop"),
    ({"stop": ["a"] * 5}, "array_above_max_length", "stop"),
    ({"stop": ""}, "invalid_value", "stop"),
    ({"stop": ["a", ""]}, "invalid_value", "stop[1]"),
    ({"stop": [1]}, "invalid_type", "stop[0]"),
    ({"stop": "x" * 257}, "string_above_max_length", "stop"),
    ({"stop_token_ids": [-1]}, "integer_below_min_value", "stop_token_ids[0]"),
    ({"stop_token_ids": [100_000]}, "invalid_value", "stop_token_ids[0]"),
    ({"logit_bias": []}, "invalid_type", "logit_bias"),
    ({"logit_bias": {"five": 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"5": 101}}, "decimal_above_max_value", "logit_bias.5"),
    ({"logit_bias": {"100000": 1}}, "invalid_value", "logit_bias[100000]"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "object_above_max_properties", "logit_bias"),
    ({"logprobs": 1}, "invalid_type", "logprobs"),
    ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "integer_above_max_value", "top_logprobs"),
    ({"stream": "true"}, "invalid_type", "stream"),
    ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
    ({"stream": True, "stream_options": {"x": 1}}, "unknown_parameter", "stream_options.x"),
    ({"response_format": "json"}, "invalid_type", "response_format"),
    ({"response_format": {}}, "missing_required_parameter", "response_format.type"),
    ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
    (
        {"response_format": {"type": "json_schema"}},
        "missing_required_parameter",
        "response_format.json_schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
        "invalid_value",
        "response_format.json_schema.name",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 1}}},
        "invalid_type",
        "response_format.json_schema.schema",
    ),
    ({"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
    ({"structured_outputs": {}}, "invalid_value", "structured_outputs"),
    ({"structured_outputs": {"regex": "a+"}}, "unsupported_parameter", "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "empty_array", "structured_outputs.choice"),
    ({"tools": {}}, "invalid_type", "tools"),
    ({"tools": [{}]}, "missing_required_parameter", "tools[0].type"),
    ({"tools": [TOOL, TOOL]}, "invalid_value", "tools[1].function.name"),
    ({"tools": [TOOL]}, "unsupported_parameter", "tools"),
    ({"tool_choice": "banana"}, "invalid_value", "tool_choice"),
    ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
    (
        {"tool_choice": {"type": "function", "function": {"name": "g"}}},
        "invalid_value",
        "tool_choice.function.name",
    ),
    ({"functions": [{"name": "f"}]}, "unsupported_parameter", "functions"),
    ({"modalities": ["text", "audio"]}, "unsupported_value", "modalities"),
    ({"audio": {"voice": "x"}}, "unsupported_parameter", "audio"),
    ({"web_search_options": {}}, "unsupported_parameter", "web_search_options"),
    ({"metadata": {str(i): "x" for i in range(17)}}, "object_above_max_properties", "metadata"),
    ({"metadata": {"k": "x" * 513}}, "string_above_max_length", "metadata.k"),
    ({"reasoning_effort": "vast"}, "invalid_value", "reasoning_effort"),
    ({"service_tier": "gold"}, "invalid_value", "service_tier"),
    ({"priority": "urgent"}, "invalid_value", "priority"),
    ({"chat_template": "{{ 7*7 }}"}, "unknown_parameter", "chat_template"),
    ({"stream_response": True}, "unknown_parameter", "stream_response"),
]

COMPLETION_CASES = [
    ({"prompt": []}, "empty_array", "prompt"),
    ({"prompt": {}}, "invalid_type", "prompt"),
    ({"prompt": ["a", 1]}, "invalid_type", "prompt[1]"),
    ({"prompt": [1, "a"]}, "invalid_type", "prompt[1]"),
    ({"prompt": [[1], "a"]}, "invalid_type", "prompt[1]"),
    ({"prompt": [[]]}, "empty_array", "prompt[0]"),
    ({"prompt": [-1]}, "integer_below_min_value", "prompt[0]"),
    ({"prompt": [100_000]}, "invalid_value", "prompt"),
    ({"prompt": [[5], [100_000]]}, "invalid_value", "prompt[1]"),
    ({"prompt": ["a"] * 65}, "array_above_max_length", "prompt"),
    ({"prompt": ""}, "invalid_value", "prompt"),
    ({"prompt": ["a", "x" * 2000]}, "context_length_exceeded", "prompt[1]"),
    ({"max_tokens": 0}, "unsupported_value", "max_tokens"),
    ({"logprobs": 6}, "integer_above_max_value", "logprobs"),
    ({"logprobs": True}, "invalid_type", "logprobs"),
    ({"echo": True, "logprobs": 1}, "unsupported_parameter", "echo"),
    ({"suffix": "end"}, "unsupported_parameter", "suffix"),
    ({"best_of": 3}, "unsupported_value", "best_of"),
    ({"best_of": 1, "n": 2}, "invalid_value", "best_of"),
    ({"messages": []}, "unknown_parameter", "messages"),
]

# Bodies that are no JSON object, and a part of the answer's message.
BODIES = [
    (b"", "empty"),
    (b"{", "truncated"),
    (b"{}x", "trailing characters (line 1"),
    (b'{"a":1,\n}', "line 2"),
    (b"[]", "an array"),
    (b'"text"', "a string"),
    (b"5", "an integer"),
    (b"null", "null"),
    (b'{"a":NaN}', "invalid character"),
    (b'{"a":Infinity}', "invalid character"),
    (b'{"a":1e999}', "out of range"),
    (b'{"a":' + b"9" * 10_000 + b"}", "out of range"),
    (b'{"a":"\xff"}', "UTF-8"),
    (b'{"a":"\\ud800"}', ""),
    (b"\xef\xbb\xbf{}", "byte order mark"),
    ('{"a":1}'.encode("utf-16"), ""),
    (b'{"a":' + b"[" * 100_000, "deeper"),
    (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "deeper"),
    (b"{'a':1}", ""),
]


async def test_every_malformed_request_has_its_own_error_and_disturbs_nobody() -> None:
    async with running_gateway() as gateway:
        valid = asyncio.create_task(_valid_requests(gateway))
        failures = []
        for path, base, cases in (
            ("/v1/chat/completions", CHAT, CHAT_CASES),
            ("/v1/completions", TEXT, COMPLETION_CASES),
        ):
            for changes, code, param in cases:
                body = {k: v for k, v in {**base, **changes}.items() if v is not ABSENT}
                for streamed in ({}, {"stream": True}) if "stream" not in changes else ({},):
                    if streamed and "stream_options" in changes:
                        continue
                    response = await gateway.http.post(path, json={**body, **streamed})
                    error = response.json()["error"]
                    got = (response.status_code, error["code"], error["param"])
                    if got != (400, code, param) or set(error) != {
                        "message",
                        "type",
                        "param",
                        "code",
                    }:
                        failures.append(f"{str(changes)[:100]}: {got} {error['message'][:120]}")
        assert not failures, "\n".join(failures)
        await valid


async def _valid_requests(gateway) -> None:
    for _ in range(20):
        response = await gateway.chat()
        assert response.json()["choices"][0]["message"]["content"] == "Hello, world!"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_bodies_that_are_no_json_object_are_refused(path: str) -> None:
    async with running_gateway() as gateway:
        for body, part in BODIES:
            response = await gateway.http.post(
                path, content=body, headers={"content-type": "application/json"}
            )
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (400, "invalid_json"), body[:40]
            assert part in error["message"], (body[:40], error["message"])
        assert (await gateway.chat()).status_code == 200


async def test_bodies_over_the_limit_are_refused_announced_or_not() -> None:
    config = GatewayConfig(max_body_bytes=1000)

    async def unannounced():
        for _ in range(30):
            yield b" " * 100

    async with running_gateway(config=config) as gateway:
        announced = await gateway.chat(user="x" * 2000)
        streamed = await gateway.http.post(
            "/v1/chat/completions",
            content=unannounced(),
            headers={"content-type": "application/json"},
        )
        for response in (announced, streamed):
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "request_too_large"
        huge = await gateway.http.post(
            "/v1/chat/completions",
            content=b"x" * 20_000_000,
            headers={"content-type": "application/json"},
        )
        assert huge.status_code == 413
        assert (await gateway.chat()).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": ""},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {"content-type": "application/json", "content-encoding": "rot13"},
    ],
)
async def test_other_content_types_and_encodings_are_refused(headers: dict[str, str]) -> None:
    async with running_gateway() as gateway:
        body = json.dumps(CHAT).encode()
        response = await gateway.http.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 415
    assert response.json()["error"]["code"] == "unsupported_media_type"


async def test_an_unknown_model_is_not_found_before_the_headers_of_a_stream() -> None:
    async with running_gateway() as gateway:
        for stream in (False, True):
            for response in (
                await gateway.chat(model="nobody", stream=stream),
                await gateway.complete(model="nobody", stream=stream),
            ):
                error = response.json()["error"]
                assert response.status_code == 404
                assert (error["code"], error["param"]) == ("model_not_found", "model")


async def test_unknown_fields_pass_where_the_server_ignores_them() -> None:
    async with running_gateway(config=GatewayConfig(unknown_fields="ignore")) as gateway:
        response = await gateway.chat(stream_response=True, messages=[{**USER, "mood": "sad"}])
    assert response.status_code == 200


async def test_the_number_that_is_refused_is_shown_but_not_all_of_it() -> None:
    async with running_gateway() as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json={**CHAT, "n": 10**4000})
    told = answer.json()["error"]["message"]
    assert "but got 1000" in told
    assert len(told) < 200


@pytest.mark.parametrize("top_p", [-0.5, 0])
async def test_an_exclusive_bound_is_told_as_such(top_p: float) -> None:
    async with running_gateway() as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json={**CHAT, "top_p": top_p})
    assert "Expected a value > 0, but" in answer.json()["error"]["message"]
