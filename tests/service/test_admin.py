"""The operator surface, on its own port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from tenon.admin.v1 import admin_service_pb2 as pb
from tenon.admin.v1 import admin_service_pb2_grpc
from tenon.aio import AsyncClient
from tenon.errors import TenonError, Unavailable
from tenon.specs import completion
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import RunningService, started_service, text_script


@asynccontextmanager
async def admin_of(
    running: RunningService,
) -> AsyncIterator[admin_service_pb2_grpc.AdminServiceStub]:
    async with grpc.aio.insecure_channel(running.admin_address) as channel:
        yield admin_service_pb2_grpc.AdminServiceStub(channel)


def manual_engine() -> ScriptedEngineClient:
    return ScriptedEngineClient(text_script("xyz"), auto_step=False, max_running=1)


async def test_the_status_shows_running_requests_first() -> None:
    engine = manual_engine()
    engine.step_age = 1.5
    async with (
        started_service(engine) as running,
        AsyncClient(running.address) as client,
        admin_of(running) as admin,
    ):
        calls = [
            asyncio.create_task(client.generate(completion("x"), request_id=name).collect())
            for name in ("first", "second")
        ]
        await engine.wait_submitted(2)
        engine.step(2)
        await asyncio.sleep(0)
        status = await admin.GetStatus(pb.GetStatusRequest())
        engine.step(20)
        await asyncio.gather(*calls)
    assert status.state == pb.ENGINE_STATE_READY
    assert (status.running, status.waiting, status.kv_blocks_used) == (1, 1, 1)
    assert list(status.models) == ["scripted"]
    assert status.step_age.ToTimedelta().total_seconds() == 1.5
    assert [item.running for item in status.requests] == [True, False]
    assert {item.request_id for item in status.requests} == {"first", "second"}
    assert status.requests[0].output_tokens == 2
    assert status.requests[0].prompt_tokens > 0


async def test_an_aborted_request_fails_with_aborted() -> None:
    engine = manual_engine()
    async with (
        started_service(engine) as running,
        AsyncClient(running.address) as client,
        admin_of(running) as admin,
    ):
        call = asyncio.create_task(client.generate_unary(completion("x"), request_id="a"))
        await engine.wait_submitted(1)
        request = pb.AbortRequestsRequest(request_ids=["a", "unknown", "a"], reason="too long")
        response = await admin.AbortRequests(request)
        with pytest.raises(TenonError) as caught:
            await call
        await engine.wait_idle()
    assert list(response.aborted_request_ids) == ["a"]
    assert caught.value.reason == "ABORTED_BY_OPERATOR"
    assert caught.value.code is grpc.StatusCode.ABORTED


async def test_drain_answers_at_once_and_refuses_new_requests() -> None:
    engine = manual_engine()
    async with (
        started_service(engine) as running,
        AsyncClient(running.address) as client,
        admin_of(running) as admin,
    ):
        call = asyncio.create_task(client.generate_unary(completion("x")))
        await engine.wait_submitted(1)
        request = pb.DrainRequest()
        request.grace.FromSeconds(600)
        assert (await admin.Drain(request)).running == 1
        with pytest.raises(Unavailable):
            await client.generate_unary(completion("x"))
        status = await admin.GetStatus(pb.GetStatusRequest())
        engine.step(5)
        assert (await call).outputs[0].text == "xyz"
    assert status.state == pb.ENGINE_STATE_DRAINING


async def test_the_prefix_cache_is_reset() -> None:
    engine = manual_engine()
    async with started_service(engine) as running, admin_of(running) as admin:
        response = await admin.ResetPrefixCache(pb.ResetPrefixCacheRequest())
    assert (response.dropped_blocks, engine.num_resets) == (7, 1)


async def test_the_admin_surface_is_not_on_the_data_port_nor_the_other_way_round() -> None:
    async with started_service() as running:
        async with grpc.aio.insecure_channel(running.address) as channel:
            stub = admin_service_pb2_grpc.AdminServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetStatus(pb.GetStatusRequest())
        async with AsyncClient(running.admin_address) as client:
            with pytest.raises(TenonError):
                await client.list_models()
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("AbortRequests", pb.AbortRequestsRequest()),
        ("AbortRequests", pb.AbortRequestsRequest(request_ids=["a"], reason="r" * 300)),
        ("Drain", pb.DrainRequest(grace={"seconds": -1})),
        ("Drain", pb.DrainRequest(grace={"seconds": 2**62})),
    ],
)
async def test_malformed_requests_are_refused(method: str, request_: object) -> None:
    async with started_service() as running, admin_of(running) as admin:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(admin, method)(request_)
        assert not running.service.registry.is_draining
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
