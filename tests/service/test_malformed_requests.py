"""A hundred malformed requests: each gets its own clear error, and none disturbs its neighbour."""

import asyncio
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from service.errors import STATUS_CODES
from tenon.aio import AsyncClient
from tenon.errors import error_from_status
from tenon.specs import chat, completion
from tenon.v1 import generation_pb2, generation_service_pb2, prompt_pb2
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import started_service, text_script

METHOD = "/tenon.v1.GenerationService/"
Spec = generation_pb2.GenerationSpec
INVALID, UNSUPPORTED = "INVALID_FIELD", "UNSUPPORTED_FIELD"


class Malformed(NamedTuple):
    """A request and the error that it must get."""

    spec: Spec
    field: str
    reason: str = INVALID


def text_with(**groups: dict[str, Any]) -> Spec:
    """A good spec with one group of fields set."""
    spec = completion("x")
    for group, fields in groups.items():
        message = getattr(spec, group)
        message.SetInParent()
        for name, value in fields.items():
            target = getattr(message, name)
            if isinstance(value, list):
                target.extend(value)
            elif isinstance(value, dict):
                for key, item in value.items():
                    target[key] = item
            elif isinstance(value, Duration):
                target.CopyFrom(value)
            else:
                setattr(message, name, value)
    return spec


def talk_with(change: Callable[[prompt_pb2.Conversation], object]) -> Spec:
    """A good chat with one change."""
    spec = chat("hi")
    change(spec.prompt.conversation)
    return spec


def prompt_with(change: Callable[[prompt_pb2.Prompt], object], *, spec: Spec | None = None) -> Spec:
    """A good prompt with one change."""
    spec = spec or completion("x")
    change(spec.prompt)
    return spec


def constrained(change: Callable[[Any], object]) -> Spec:
    """A good prompt with a constraint."""
    spec = completion("x")
    spec.constraint.SetInParent()
    change(spec.constraint)
    return spec


def out_of_range(name: str, *values: float) -> list[Malformed]:
    field = f"spec.sampling.{name}"
    return [Malformed(text_with(sampling={name: value}), field) for value in values]


NAN, INF = math.nan, math.inf
SAMPLING = [
    *out_of_range("temperature", -0.1, 2.1, NAN, INF, -INF, 3e38),
    *out_of_range("top_p", 0.0, -1.0, 1.001, NAN, INF),
    *out_of_range("min_p", -0.01, 1.0, NAN, INF),
    *out_of_range("frequency_penalty", -2.1, 2.1, NAN, INF),
    *out_of_range("presence_penalty", -2.1, 2.1, NAN, -INF),
    *out_of_range("repetition_penalty", 0.0, -1.0, 10.1, NAN, INF),
    *out_of_range("num_outputs", 0, 17, 2**32 - 1),
    Malformed(text_with(sampling={"logit_bias": {3: 100.5}}), "spec.sampling.logit_bias[3]"),
    Malformed(text_with(sampling={"logit_bias": {3: NAN}}), "spec.sampling.logit_bias[3]"),
    Malformed(text_with(sampling={"logit_bias": {512: 1.0}}), "spec.sampling.logit_bias[512]"),
    Malformed(
        text_with(sampling={"logit_bias": dict.fromkeys(range(1025), 0.0)}),
        "spec.sampling.logit_bias",
    ),
    Malformed(
        text_with(sampling={"deterministic": True}), "spec.sampling.deterministic", UNSUPPORTED
    ),
]
STOPS = [
    Malformed(text_with(stop={"max_tokens": 0}), "spec.stop.max_tokens"),
    Malformed(text_with(stop={"min_tokens": 4, "max_tokens": 3}), "spec.stop.min_tokens"),
    Malformed(text_with(stop={"min_tokens": 5000}), "spec.stop.min_tokens"),
    Malformed(text_with(stop={"stop_strings": ["a"] * 17}), "spec.stop.stop_strings"),
    Malformed(text_with(stop={"stop_strings": ["a", ""]}), "spec.stop.stop_strings[1]"),
    Malformed(text_with(stop={"stop_strings": ["a" * 257]}), "spec.stop.stop_strings[0]"),
    Malformed(text_with(stop={"stop_token_ids": [3] * 65}), "spec.stop.stop_token_ids"),
    Malformed(text_with(stop={"stop_token_ids": [3, 512]}), "spec.stop.stop_token_ids[1]"),
    Malformed(text_with(stop={"max_duration": Duration()}), "spec.stop.max_duration"),
    Malformed(text_with(stop={"max_duration": Duration(seconds=-1)}), "spec.stop.max_duration"),
    Malformed(
        text_with(stop={"max_duration": Duration(nanos=2**31 - 1)}), "spec.stop.max_duration"
    ),
    Malformed(
        text_with(stop={"max_duration": Duration(seconds=2**63 - 1)}), "spec.stop.max_duration"
    ),
]
OUTPUTS = [
    Malformed(text_with(output={"top_logprobs": 1}), "spec.output.top_logprobs"),
    Malformed(text_with(output={"logprobs": True, "top_logprobs": 21}), "spec.output.top_logprobs"),
    Malformed(text_with(output={"prompt_logprobs": 0}), "spec.output.prompt_logprobs", UNSUPPORTED),
]
SCHEDULING = [
    Malformed(text_with(scheduling={"priority": 9}), "spec.scheduling.priority"),
    Malformed(text_with(scheduling={"priority": -1}), "spec.scheduling.priority"),
    Malformed(
        text_with(scheduling={"max_queue_time": Duration()}), "spec.scheduling.max_queue_time"
    ),
    Malformed(text_with(scheduling={"session_id": "s" * 257}), "spec.scheduling.session_id"),
    Malformed(text_with(cache={"narrow": "n" * 257}), "spec.cache.narrow"),
]
LONG = completion([3] * 2000)
OVER = completion([3] * 1000, max_tokens=25)
CUT = completion([3] * 10, max_tokens=1024)
CUT.prompt.truncation = prompt_pb2.TRUNCATION_POLICY_DROP_OLDEST
PROMPTS = [
    Malformed(Spec(), "spec.prompt"),
    Malformed(Spec(prompt=prompt_pb2.Prompt()), "spec.prompt"),
    Malformed(completion([]), "spec.prompt.token_ids.ids"),
    Malformed(completion([3, 512]), "spec.prompt.token_ids.ids[1]"),
    Malformed(completion([2**32 - 1]), "spec.prompt.token_ids.ids[0]"),
    Malformed(
        prompt_with(lambda p: setattr(p, "add_special_tokens", False), spec=completion([3])),
        "spec.prompt.add_special_tokens",
    ),
    Malformed(
        prompt_with(lambda p: setattr(p, "add_special_tokens", True), spec=chat("hi")),
        "spec.prompt.add_special_tokens",
    ),
    Malformed(prompt_with(lambda p: setattr(p, "truncation", 7)), "spec.prompt.truncation"),
    Malformed(
        prompt_with(lambda p: p.delivered_output.ids.append(3)),
        "spec.prompt.delivered_output",
        UNSUPPORTED,
    ),
    Malformed(LONG, "spec.prompt", "CONTEXT_LENGTH_EXCEEDED"),
    Malformed(OVER, "spec.prompt", "CONTEXT_LENGTH_EXCEEDED"),
    Malformed(CUT, "spec.prompt", "CONTEXT_LENGTH_EXCEEDED"),
    Malformed(completion("x" * 1200), "spec.prompt", "CONTEXT_LENGTH_EXCEEDED"),
    Malformed(chat("x" * 9000), "spec.prompt", "CONTEXT_LENGTH_EXCEEDED"),
]
TALK = "spec.prompt.conversation"
TOOL = prompt_pb2.Tool(function=prompt_pb2.FunctionTool(name="f"))
CHATS = [
    Malformed(talk_with(lambda c: c.ClearField("messages")), f"{TALK}.messages"),
    Malformed(talk_with(lambda c: c.messages.extend([c.messages[0]] * 2048)), f"{TALK}.messages"),
    Malformed(talk_with(lambda c: c.messages.add()), f"{TALK}.messages[1].role"),
    Malformed(talk_with(lambda c: c.messages.add(role=99)), f"{TALK}.messages[1].role"),
    Malformed(
        talk_with(lambda c: c.messages.add(role=prompt_pb2.ROLE_TOOL)),
        f"{TALK}.messages[1].role",
        UNSUPPORTED,
    ),
    Malformed(
        talk_with(lambda c: c.messages[0].tool_calls.add(id="1", name="f")),
        f"{TALK}.messages[0].tool_calls",
        UNSUPPORTED,
    ),
    Malformed(
        talk_with(lambda c: setattr(c.messages[0], "tool_call_id", "1")),
        f"{TALK}.messages[0].tool_call_id",
    ),
    Malformed(
        talk_with(lambda c: setattr(c.messages[0], "reasoning", "hm")),
        f"{TALK}.messages[0].reasoning",
    ),
    Malformed(
        talk_with(lambda c: setattr(c.messages[0], "name", "n" * 257)),
        f"{TALK}.messages[0].name",
    ),
    Malformed(talk_with(lambda c: c.messages[0].parts.add()), f"{TALK}.messages[0].parts[1]"),
    Malformed(talk_with(lambda c: c.tools.append(TOOL)), f"{TALK}.tools", UNSUPPORTED),
    Malformed(talk_with(lambda c: c.tools.add()), f"{TALK}.tools[0]"),
    Malformed(talk_with(lambda c: c.tool_choice.SetInParent()), f"{TALK}.tool_choice"),
    *(
        Malformed(
            talk_with(lambda c, kind=kind: getattr(c.tool_choice, kind).SetInParent()),
            f"{TALK}.tool_choice.{kind}",
            UNSUPPORTED,
        )
        for kind in ("auto", "required", "named", "allowed")
    ),
    Malformed(
        talk_with(lambda c: setattr(c, "parallel_tool_calls", False)),
        f"{TALK}.parallel_tool_calls",
        UNSUPPORTED,
    ),
    Malformed(
        talk_with(lambda c: setattr(c.reasoning, "enabled", False)),
        f"{TALK}.reasoning.enabled",
        UNSUPPORTED,
    ),
    Malformed(
        talk_with(lambda c: setattr(c.reasoning, "max_tokens", 0)),
        f"{TALK}.reasoning.max_tokens",
        UNSUPPORTED,
    ),
    Malformed(
        talk_with(lambda c: setattr(c.reasoning, "effort", prompt_pb2.REASONING_EFFORT_LOW)),
        f"{TALK}.reasoning.effort",
        UNSUPPORTED,
    ),
    Malformed(talk_with(lambda c: setattr(c.reasoning, "effort", 44)), f"{TALK}.reasoning.effort"),
    Malformed(
        talk_with(lambda c: setattr(c, "continue_final_message", True)),
        f"{TALK}.continue_final_message",
    ),
    *(
        Malformed(
            talk_with(lambda c, text=text: setattr(c, "template_variables_json", text)),
            f"{TALK}.template_variables_json",
        )
        for text in ("{", "[1]", "null", "[" * 40_000, "x" * 70_000)
    ),
    Malformed(
        talk_with(lambda c: setattr(c, "template_variables_json", '{"messages": []}')),
        "spec.prompt",
        "TEMPLATE_REFUSED",
    ),
]
CONSTRAINTS = [
    Malformed(constrained(lambda c: None), "spec.constraint"),
    Malformed(constrained(lambda c: setattr(c, "must_close", True)), "spec.constraint"),
    Malformed(constrained(lambda c: setattr(c, "json_schema", "")), "spec.constraint.json_schema"),
    Malformed(
        constrained(lambda c: setattr(c, "json_schema", "x" * 262_145)),
        "spec.constraint.json_schema",
    ),
    Malformed(constrained(lambda c: setattr(c, "regex", "é" * 131_073)), "spec.constraint.regex"),
    Malformed(constrained(lambda c: c.choice.SetInParent()), "spec.constraint.choice.options"),
    *(
        Malformed(
            constrained(lambda c, kind=kind: setattr(c, kind, "a")),
            f"spec.constraint.{kind}",
            UNSUPPORTED,
        )
        for kind in ("json_schema", "regex", "ebnf", "lark", "structural_tag_json")
    ),
    Malformed(
        constrained(lambda c: c.json_object.SetInParent()),
        "spec.constraint.json_object",
        UNSUPPORTED,
    ),
    Malformed(
        constrained(lambda c: c.choice.options.append("a")), "spec.constraint.choice", UNSUPPORTED
    ),
    Malformed(
        constrained(lambda c: (setattr(c, "regex", "a"), setattr(c, "backend", 77))),
        "spec.constraint.backend",
    ),
    Malformed(
        constrained(lambda c: (setattr(c, "regex", "a"), setattr(c, "whitespace", 77))),
        "spec.constraint.whitespace",
    ),
    Malformed(
        constrained(lambda c: (setattr(c, "regex", "a"), setattr(c, "explain", True))),
        "spec.constraint.explain",
        UNSUPPORTED,
    ),
]
TABLE = [*SAMPLING, *STOPS, *OUTPUTS, *SCHEDULING, *PROMPTS, *CHATS, *CONSTRAINTS]

RAW = [
    b"\xff",
    b"\x08",
    b"\x12\x7f",
    b"\x0a\x02\xff\xfe",  # request_id that is not UTF-8
    b"\x12\x06\x12\x04\x0a\x02\xc3\x28",  # prompt text that is not UTF-8
    b"\x12\xff\xff\xff\xff\x0f",  # a length beyond the end
    b"\x0b" * 200,  # groups without end
    b"{}",
    b"GET / HTTP/1.1",
    bytes(range(256)),
]


def test_the_table_has_more_than_a_hundred_requests() -> None:
    assert len(TABLE) + len(RAW) > 100


async def test_each_malformed_request_gets_its_own_clear_error() -> None:
    engine = ScriptedEngineClient(text_script("fine"))
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        for number, case in enumerate(TABLE):
            error, valid = await asyncio.gather(
                _error_of(client, case.spec), client.generate_unary(completion("ok"))
            )
            where = f"case {number}: {case.spec!s:.200}"
            assert (error.reason, error.field) == (case.reason, case.field), where
            assert error.code == STATUS_CODES[case.reason], where
            assert error.message, where
            assert len(error.message) < 300, where
            assert valid.outputs[0].text == "fine"
        assert running.service.registry.generations == []
    assert {item.spec.prompt_ids for item in engine.submitted} == {
        engine.submitted[0].spec.prompt_ids
    }


@pytest.mark.parametrize("method", ["Generate", "GenerateUnary", "Tokenize", "ListModels"])
async def test_bytes_that_are_no_message_get_invalid_argument(method: str) -> None:
    async with (
        started_service() as running,
        grpc.aio.insecure_channel(running.address) as channel,
        AsyncClient(running.address) as client,
    ):
        for data in RAW:
            # A string that is not UTF-8 is no string field of ListModelsRequest.
            if method == "ListModels" and data == RAW[3]:
                continue
            code, message = await _raw_call(channel, method, data)
            assert code is grpc.StatusCode.INVALID_ARGUMENT, (data, code, message)
            assert message
        assert (await client.generate_unary(completion("x"))).outputs[0].text


async def test_a_body_above_the_size_limit_is_refused() -> None:
    async with (
        started_service() as running,
        grpc.aio.insecure_channel(running.address) as channel,
        AsyncClient(running.address) as client,
    ):
        spec = completion("x" * (20 * 1024 * 1024))
        request = generation_service_pb2.GenerateUnaryRequest(spec=spec)
        code, _ = await _raw_call(channel, "GenerateUnary", request.SerializeToString())
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await client.generate_unary(completion("x"))).outputs[0].text


async def test_context_length_errors_carry_their_numbers() -> None:
    async with started_service() as running, AsyncClient(running.address) as client:
        error = await _error_of(client, OVER)
    assert error.metadata == {
        "max_model_len": "1024",
        "prompt_tokens": "1000",
        "requested_tokens": "1025",
    }


@pytest.mark.parametrize(
    ("request_id", "field"),
    [("x" * 129, "request_id"), ("a\nb", "request_id"), ("é", "request_id")],
)
async def test_bad_request_ids_are_refused(request_id: str, field: str) -> None:
    async with started_service() as running, AsyncClient(running.address) as client:
        error = await _error_of(client, completion("x"), request_id)
    assert (error.reason, error.field) == (INVALID, field)


async def test_an_unknown_model_is_named_but_not_at_length() -> None:
    async with started_service() as running, AsyncClient(running.address) as client:
        error = await _error_of(client, completion("x", model="m" * 100_000))
    assert error.reason == "MODEL_NOT_FOUND"
    assert "scripted" in error.message
    assert len(error.message) < 200


async def test_options_that_are_not_built_in_are_refused_by_name() -> None:
    request = generation_service_pb2.GenerateRequest(
        spec=completion("x"), idempotency_key="key"
    ).SerializeToString()
    async with (
        started_service() as running,
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        for method, data in (("Generate", request), ("Attach", b""), ("CheckConstraint", b"")):
            code, message = await _raw_call(channel, method, data)
            assert code is grpc.StatusCode.UNIMPLEMENTED, method
            assert message, method


async def test_an_empty_request_names_the_missing_field() -> None:
    async with (
        started_service() as running,
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        for method, field in (
            ("Generate", "spec"),
            ("GenerateUnary", "spec"),
            ("RenderChat", "conversation"),
            ("Tokenize", "texts"),
            ("Detokenize", "sequences"),
            ("EndGeneration", "mode"),
        ):
            code, message = await _raw_call(channel, method, b"")
            assert code is grpc.StatusCode.INVALID_ARGUMENT, method
            assert message.startswith(field), (method, message)


async def _error_of(client: AsyncClient, spec: Spec, request_id: str = "") -> Any:
    try:
        await client.generate_unary(spec, request_id=request_id)
    except Exception as error:
        return error
    raise AssertionError(f"was served: {spec!s:.200}")


async def _raw_call(
    channel: grpc.aio.Channel, method: str, data: bytes
) -> tuple[grpc.StatusCode, str]:
    is_stream = method in ("Generate", "Attach")
    open_call = channel.unary_stream if is_stream else channel.unary_unary
    call = open_call(METHOD + method)(data)
    try:
        if is_stream:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        typed = error_from_status(error.code(), error.details(), error.trailing_metadata())
        return error.code(), typed.message
    raise AssertionError(f"{method} answered {data!r:.100}")
