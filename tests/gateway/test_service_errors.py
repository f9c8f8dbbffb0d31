"""What becomes of the service's errors: before the answer, in the middle of it, and by table."""

import asyncio
import json

import grpc
import openai
import pytest

from gateway.config import GatewayConfig
from gateway.service_errors import api_error, param_of
from service.engine_client import EngineState
from tenon.errors import TenonError
from tenon.testing import FakeServer, text_events
from tenon.v1 import generation_pb2
from tests.gateway.gateways import CHAT, gateway_before, running_gateway, sse_events
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import text_script

STATUS = grpc.StatusCode

# code, reason, retry_after: status, type, code, x-should-retry
TABLE = [
    (STATUS.INVALID_ARGUMENT, "INVALID_FIELD", None, 400, "invalid_request_error", "invalid_value"),
    (STATUS.INVALID_ARGUMENT, "", None, 400, "invalid_request_error", "invalid_value"),
    (
        STATUS.INVALID_ARGUMENT,
        "CONTEXT_LENGTH_EXCEEDED",
        None,
        400,
        "invalid_request_error",
        "context_length_exceeded",
    ),
    (
        STATUS.INVALID_ARGUMENT,
        "CONSTRAINT_UNSUPPORTED",
        None,
        400,
        "invalid_request_error",
        "invalid_json_schema",
    ),
    (STATUS.UNAUTHENTICATED, "", None, 401, "invalid_request_error", "invalid_api_key"),
    (STATUS.PERMISSION_DENIED, "", None, 403, "permission_error", "insufficient_permissions"),
    (STATUS.NOT_FOUND, "MODEL_NOT_FOUND", None, 404, "invalid_request_error", "model_not_found"),
    (
        STATUS.ALREADY_EXISTS,
        "DUPLICATE_REQUEST_ID",
        None,
        409,
        "invalid_request_error",
        "conflict",
    ),
    (STATUS.ABORTED, "ABORTED_BY_OPERATOR", None, 409, "invalid_request_error", "conflict"),
    (
        STATUS.RESOURCE_EXHAUSTED,
        "QUEUE_FULL",
        2.0,
        503,
        "service_unavailable_error",
        "server_is_overloaded",
    ),
    (
        STATUS.RESOURCE_EXHAUSTED,
        "QUOTA_EXCEEDED",
        2.0,
        429,
        "rate_limit_error",
        "rate_limit_exceeded",
    ),
    (
        STATUS.RESOURCE_EXHAUSTED,
        "QUOTA_EXCEEDED",
        None,
        429,
        "insufficient_quota",
        "insufficient_quota",
    ),
    (
        STATUS.UNAVAILABLE,
        "DRAINING",
        1.0,
        503,
        "service_unavailable_error",
        "server_is_overloaded",
    ),
    (STATUS.DEADLINE_EXCEEDED, "", None, 504, "timeout_error", "deadline_exceeded"),
    (STATUS.UNIMPLEMENTED, "", None, 400, "invalid_request_error", "unsupported_parameter"),
    (STATUS.INTERNAL, "INTERNAL", None, 500, "server_error", "internal_error"),
    (STATUS.UNKNOWN, "", None, 500, "server_error", "internal_error"),
]


@pytest.mark.parametrize(("code", "reason", "retry", "status", "type_", "name"), TABLE)
def test_every_status_has_its_place_in_the_table(code, reason, retry, status, type_, name) -> None:
    error = TenonError("secret path /etc", code=code, reason=reason, retry_after=retry)
    mapped = api_error(error, prompt_param="messages")
    assert (mapped.status, mapped.type, mapped.code) == (status, type_, name)
    if status >= 500:
        assert "secret" not in mapped.message
    # The official clients retry these on their own, and it would not help.
    if status in (409, 504) or name == "insufficient_quota":
        assert mapped.response_headers()["x-should-retry"] == "false"
    if retry is not None:
        assert mapped.response_headers()["retry-after-ms"] == str(int(retry * 1000))


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("spec.sampling.temperature", "temperature"),
        ("spec.sampling.num_outputs", "n"),
        ("spec.sampling.logit_bias[7]", "logit_bias[7]"),
        ("spec.stop.stop_strings[1]", "stop[1]"),
        ("spec.stop.max_tokens", "max_tokens"),
        ("spec.prompt", "messages"),
        ("spec.prompt.token_ids.ids[4]", "messages"),
        ("spec.prompt.conversation", "messages"),
        ("spec.prompt.conversation.messages", "messages"),
        ("spec.prompt.conversation.messages[3].role", "messages[3].role"),
        ("spec.prompt.conversation.messages[3].parts[0].text", "messages[3].content"),
        ("spec.prompt.conversation.tools", "tools"),
        ("spec.prompt.conversation.tools[2].function.name", "tools[2]"),
        ("spec.prompt.conversation.tool_choice.named", "tool_choice"),
        ("spec.prompt.conversation.reasoning.effort", "reasoning_effort"),
        ("spec.constraint.json_schema", "response_format"),
        ("spec.scheduling.priority", "priority"),
        ("spec.cache.narrow", "cache_salt"),
        ("spec.model", "model"),
    ],
)
def test_fields_of_the_service_have_the_names_of_the_api(field: str, param: str) -> None:
    assert param_of(field, "messages") == param


async def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error_and_no_end_mark() -> None:
    engine = ScriptedEngineClient(text_script("Hello"), auto_step=False)
    async with running_gateway(engine) as gateway:
        request = gateway.http.build_request(
            "POST", "/v1/chat/completions", json={**CHAT, "stream": True}
        )
        asking = asyncio.create_task(gateway.http.send(request, stream=True))
        await engine.wait_submitted(1)
        engine.step(2)
        response = await asking
        engine.die(EngineState.RESTARTING)
        await response.aread()
    assert response.status_code == 200
    *chunks, last = sse_events(response.text)
    assert chunks
    assert json.loads(last)["error"]["code"] == "server_is_overloaded"
    assert "[DONE]" not in response.text


async def test_the_official_client_raises_an_error_in_a_stream() -> None:
    engine = ScriptedEngineClient(text_script("Hello"), auto_step=False)
    async with running_gateway(engine) as gateway:
        asking = asyncio.create_task(gateway.openai.chat.completions.create(**CHAT, stream=True))
        await engine.wait_submitted(1)
        engine.step()
        stream = await asking
        engine.die(EngineState.RESTARTING)
        with pytest.raises(openai.APIError, match="not ready"):
            async for _ in stream:
                pass


async def test_a_stream_without_its_last_event_is_an_error_streamed_and_not() -> None:
    async def cut_short(request, context):
        yield text_events("half of it")[:-2]

    async with FakeServer(cut_short) as fake, gateway_before(fake.address) as gateway:
        streamed = await gateway.chat(model="fake", stream=True)
        whole = await gateway.chat(model="fake")
    assert json.loads(sse_events(streamed.text)[-1])["error"]["type"] == "server_error"
    assert whole.status_code == 500
    assert whole.json()["error"]["code"] == "internal_error"


async def test_a_service_that_is_not_there_is_unavailable() -> None:
    async with gateway_before("127.0.0.1:1") as gateway:
        response = await gateway.chat()
        ready = await gateway.http.get("/ready")
        alive = await gateway.http.get("/health")
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "The inference service cannot be reached."
    assert (ready.status_code, ready.json()["state"]) == (503, "unreachable")
    assert alive.status_code == 200


async def test_silence_is_filled_with_comments() -> None:
    released = asyncio.Event()

    async def silent(request, context):
        events = text_events("late")
        yield events[:1]
        await released.wait()
        yield events[1:]

    config = GatewayConfig(ping_interval=0.01)
    async with (
        FakeServer(silent) as fake,
        gateway_before(fake.address, config) as gateway,
        gateway.http.stream(
            "POST", "/v1/chat/completions", json={**CHAT, "stream": True}
        ) as response,
    ):
        body = ""
        async for text in response.aiter_text():
            body += text
            if body.count(": ping\n\n") >= 2:
                released.set()
    assert sse_events(body)[-1] == "[DONE]"


async def test_a_queued_request_has_its_headers_and_then_its_roles() -> None:
    async def queued(request, context):
        yield [generation_pb2.GenerationEvent(queued=generation_pb2.Queued(position=3))]
        yield text_events("at last")

    async with FakeServer(queued) as fake, gateway_before(fake.address) as gateway:
        streamed = await gateway.chat(stream=True)
        whole = await gateway.chat()
    chunks = [json.loads(event) for event in sse_events(streamed.text)[:-1]]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert whole.json()["choices"][0]["message"]["content"] == "at last"


async def test_tool_calls_and_reasoning_of_the_service_are_encoded() -> None:
    event = generation_pb2.GenerationEvent

    def delta(**fields):
        return event(tool_call=generation_pb2.ToolCallDelta(**fields))

    start, processed, *_, end = text_events()
    thought = generation_pb2.TextDelta(channel=generation_pb2.CHANNEL_REASONING, text="hm")
    tool_calls = generation_pb2.FINISH_REASON_TOOL_CALLS
    events = [
        start,
        processed,
        event(text=thought),
        delta(call_index=0, id="call_a", name="f", arguments_fragment='{"x":'),
        delta(call_index=0, arguments_fragment="1}"),
        delta(call_index=0, complete=True),
        delta(call_index=1, id="call_b", name="g", arguments_fragment="{}"),
        event(output_finished=generation_pb2.OutputFinished(reason=tool_calls)),
        end,
    ]

    async def script(request, context):
        for item in events:
            yield [item]

    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    async with FakeServer(script) as fake, gateway_before(fake.address) as gateway:
        completions = gateway.openai.chat.completions
        async with completions.stream(**CHAT, tools=tools) as stream:
            rebuilt = (await stream.get_final_completion()).choices[0]
        whole = (await completions.create(**CHAT, tools=tools)).choices[0]
        named = {"type": "function", "function": {"name": "f"}}
        ended = (await completions.create(**CHAT, tools=tools, tool_choice=named)).choices[0]
    expected = [("call_a", "f", '{"x":1}'), ("call_b", "g", "{}")]
    for choice in (rebuilt, whole):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.reasoning_content == "hm"
        calls = choice.message.tool_calls
        assert [(c.id, c.function.name, c.function.arguments) for c in calls] == expected
    assert whole.message.content is None
    assert ended.finish_reason == "stop"
    assert len(fake.requests[0].spec.prompt.conversation.tools) == 2
