"""Errors that reach callers hold an incident id and nothing of the exception; logs no prompts."""

import json
from collections.abc import Iterator
from io import StringIO

import grpc
import pytest
import structlog
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from service.errors import STATUS_CODES, ServiceError, trailing_metadata
from service.logs import configure_logs
from tenon.aio import AsyncClient
from tenon.errors import InternalError
from tenon.specs import completion
from tenon.v1 import errors_pb2, generation_service_pb2, generation_service_pb2_grpc
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import started_service, text_script

SECRET = "a secret of the server"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even this fails")


@pytest.fixture
def log() -> Iterator[StringIO]:
    stream = StringIO()
    configure_logs("info", "json", stream)
    yield stream
    structlog.reset_defaults()


def lines(log: StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


@pytest.mark.parametrize("error", [RuntimeError(SECRET), KeyError(SECRET), Unprintable()])
@pytest.mark.parametrize("is_unary", [True, False])
async def test_a_failing_handler_shows_an_incident_id_only(
    error: Exception, is_unary: bool, log: StringIO
) -> None:
    def script(spec: object) -> list[int]:
        raise error

    engine = ScriptedEngineClient(script)
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        spec = completion("x")
        call = client.generate_unary(spec) if is_unary else client.generate(spec).collect()
        with pytest.raises(InternalError) as caught:
            await call
        assert running.service.registry.generations == []
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.metadata)
    incident = caught.value.metadata["incident_id"]
    logged = [line for line in lines(log) if line.get("incident_id") == incident]
    assert type(error).__name__ in str(logged[0]["traceback"])


async def test_a_call_is_logged_in_one_line_without_its_text(log: StringIO) -> None:
    engine = ScriptedEngineClient(text_script("the answer"))
    async with started_service(engine) as running, AsyncClient(running.address) as client:
        await client.generate_unary(completion("the question"), request_id="mine")
    (line,) = [line for line in lines(log) if line["event"] == "call"]
    assert line["request_id"] == "mine"
    assert line["method"] == "/tenon.v1.GenerationService/GenerateUnary"
    assert line["code"] == "OK"
    assert line["output_tokens"] == len(text_script("the answer")(None)) + 1  # type: ignore[arg-type]
    assert float(str(line["seconds"])) >= float(str(line["first_token_seconds"])) >= 0
    assert "question" not in log.getvalue()
    assert "answer" not in log.getvalue()


async def test_refusals_are_logged_and_counted_with_their_code(log: StringIO) -> None:
    async with started_service() as running, AsyncClient(running.address) as client:
        with pytest.raises(Exception, match="not served"):
            await client.generate_unary(completion("x", model="other"))
        value = running.service.metrics.registry.get_sample_value(
            "tenon_requests_total", {"method": "GenerateUnary", "code": "NOT_FOUND"}
        )
    (line,) = [line for line in lines(log) if line["event"] == "call"]
    assert (line["code"], line["reason"]) == ("NOT_FOUND", "MODEL_NOT_FOUND")
    assert value == 1


async def test_the_callers_request_id_is_kept_in_the_log(log: StringIO) -> None:
    async with (
        started_service() as running,
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        stub = generation_service_pb2_grpc.GenerationServiceStub(channel)
        request = generation_service_pb2.TokenizeRequest(texts=["a"])
        await stub.Tokenize(request, metadata=(("x-request-id", "from-outside"),))
    assert [line["request_id"] for line in lines(log) if line["event"] == "call"] == [
        "from-outside"
    ]


async def test_details_are_readable_with_grpc_status() -> None:
    async with (
        started_service() as running,
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        stub = generation_service_pb2_grpc.GenerationServiceStub(channel)
        call = stub.Tokenize(generation_service_pb2.TokenizeRequest())
        with pytest.raises(grpc.aio.AioRpcError):
            await call
        status = await rpc_status.aio.from_call(call)
    info, bad_request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(bad_request)
    assert (info.reason, info.domain) == ("INVALID_FIELD", "tenon.dev")
    assert bad_request.field_violations[0].field == "texts"


def test_every_reason_has_a_status_code() -> None:
    names = {value.name for value in errors_pb2.ErrorReason.DESCRIPTOR.values}
    names = {name.removeprefix("ERROR_REASON_") for name in names}
    assert set(STATUS_CODES) == names - {"UNSPECIFIED"}


def test_the_details_of_any_error_fit_a_header() -> None:
    error = ServiceError(
        "QUEUE_FULL",
        "é" * 10_000,
        field="f" * 10_000,
        metadata={f"key{index}": "v" * 10_000 for index in range(8)},
        failure=errors_pb2.GenerationFailure(request_id="r" * 128),
    )
    size = sum(len(key) + len(value) for key, value in trailing_metadata(error))
    assert size < 6 * 1024


async def test_probes_do_not_fill_the_log(log: StringIO) -> None:
    async with started_service() as running, AsyncClient(running.address) as client:
        await client.list_models()
        await client.get_model()
        await client.tokenize(["a"])
    methods = [line["method"] for line in lines(log) if line["event"] == "call"]
    assert [method.rpartition("/")[2] for method in methods] == ["Tokenize"]
