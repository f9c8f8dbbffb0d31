"""Ports, health, keepalive, metrics, reflection: what a server is beside its methods."""

import asyncio
import signal
import subprocess
import sys
import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from engine.config import EngineConfig
from service.channel_options import server_channel_options
from service.config import ServiceConfig
from service.engine_client import EngineState
from service.runtime import ModelRuntime
from service.serving import PortError, Ports, Service
from tenon.aio import AsyncClient
from tenon.errors import Unavailable
from tenon.specs import completion
from tenon.v1 import generation_service_pb2, generation_service_pb2_grpc
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import scripted_assets, started_service, text_script

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NAMES = ("", "tenon.v1.GenerationService")


async def health(address: str) -> set[int]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        requests = [health_pb2.HealthCheckRequest(service=name) for name in NAMES]
        return {(await stub.Check(request)).status for request in requests}


async def test_while_the_engine_loads_requests_are_told_how_far_it_is() -> None:
    engine = ScriptedEngineClient(text_script("a"), load_gate=asyncio.Event())
    async with started_service(engine, load=False) as running:
        engine.stage, engine.progress = "loading weights", 0.25
        loading = asyncio.create_task(running.service.load())
        await engine.wait_until(lambda _: engine.state is EngineState.LOADING)
        assert await health(running.address) == {NOT_SERVING}
        async with AsyncClient(running.address) as client:
            with pytest.raises(Unavailable) as caught:
                await client.generate_unary(completion("x"))
            engine.load_gate.set()
            await loading
            assert await health(running.address) == {SERVING}
            assert (await client.generate_unary(completion("x"))).outputs[0].text == "a"
    assert caught.value.reason == "ENGINE_UNAVAILABLE"
    assert caught.value.metadata == {
        "state": "loading",
        "stage": "loading weights",
        "progress": "0.250",
    }


async def test_a_client_that_retries_is_served_once_the_engine_is_ready() -> None:
    engine = ScriptedEngineClient(text_script("a"), state=EngineState.LOADING)
    async with (
        started_service(engine, load=False) as running,
        AsyncClient(running.address) as client,
    ):
        reading = asyncio.create_task(client.generate(completion("x")).collect())
        call_count = running.service.metrics.registry.get_sample_value
        labels = {"method": "Generate", "code": "UNAVAILABLE"}
        while not call_count("tenon_requests_total", labels):
            await asyncio.sleep(0.01)
        await running.service.load()
        assert (await reading).outputs[0].text == "a"


@pytest.mark.parametrize("state", [EngineState.RESTARTING, EngineState.FAILED])
async def test_health_follows_the_engine(state: EngineState) -> None:
    engine = ScriptedEngineClient(text_script("a"))
    async with (
        started_service(engine) as running,
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        request = health_pb2.HealthCheckRequest(service=NAMES[1])
        watch = health_pb2_grpc.HealthStub(channel).Watch(request)
        assert (await watch.read()).status == SERVING
        engine.die(state)
        assert (await watch.read()).status == NOT_SERVING
        engine.set_state(EngineState.READY)
        assert (await watch.read()).status == SERVING
        watch.cancel()


async def test_an_engine_that_finishes_no_step_is_not_healthy() -> None:
    engine = ScriptedEngineClient(text_script("a"))
    async with started_service(engine) as running:
        engine.step_age = 30.1
        await running.service.monitor.refresh()
        assert await health(running.address) == {NOT_SERVING}
        engine.step_age = 29.9
        await running.service.monitor.refresh()
        assert await health(running.address) == {SERVING}


async def test_a_draining_server_is_not_healthy() -> None:
    async with started_service() as running:
        await running.service.drain(grace=0)
        assert await health(running.address) == {NOT_SERVING}


@pytest.mark.parametrize("setting", ["grpc", "admin", "metrics"])
async def test_a_busy_port_is_named(setting: str) -> None:
    async with started_service(metrics=True) as running:
        busy = getattr(running.ports, setting)
        runtime = ModelRuntime("other", ScriptedEngineClient(text_script("a")), scripted_assets)
        service = Service(runtime)
        with pytest.raises(PortError, match=rf"{setting}_port {busy} on 127.0.0.1"):
            await service.listen(Ports(**{setting: busy}))
        await service.close()


async def test_metrics_are_served_over_http() -> None:
    async with started_service(metrics=True) as running, AsyncClient(running.address) as client:
        await client.generate_unary(completion("x"))
        await running.service.monitor.refresh()
        url = f"http://127.0.0.1:{running.ports.metrics}/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
    for name in (
        "tenon_requests_running 0.0",
        "tenon_requests_waiting 0.0",
        "tenon_kv_blocks_used 0.0",
        "tenon_kv_blocks_total 1024.0",
        "tenon_step_age_seconds 0.0",
        "tenon_time_to_first_token_seconds_count 1.0",
        "tenon_inter_token_latency_seconds_count",
        "tenon_request_seconds_count 1.0",
        "tenon_prompt_tokens_total 1.0",
        "tenon_output_tokens_total",
        'tenon_requests_total{code="OK",method="GenerateUnary"} 1.0',
    ):
        assert name in text


async def test_reflection_lists_the_services_of_the_port_only() -> None:
    async with started_service() as running:
        listed = {}
        for address in (running.address, running.admin_address):
            async with grpc.aio.insecure_channel(address) as channel:
                stub = reflection_pb2_grpc.ServerReflectionStub(channel)
                call = stub.ServerReflectionInfo()
                await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
                response = await call.read()
                call.cancel()
                services = response.list_services_response.service
                listed[address] = {item.name for item in services}
    assert listed[running.address] == {"grpc.health.v1.Health", "tenon.v1.GenerationService"}
    assert listed[running.admin_address] == {"tenon.admin.v1.AdminService"}


@pytest.mark.parametrize(("min_interval_ms", "survives"), [(500, True), (10_000, False)])
async def test_pings_during_a_silent_call_are_allowed_from_the_minimum_interval_on(
    min_interval_ms: int, survives: bool
) -> None:
    options = [
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
    server = grpc.aio.server(options=server_channel_options(min_ping_interval_ms=min_interval_ms))
    generation_service_pb2_grpc.add_GenerationServiceServicer_to_server(_Silent(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        stub = generation_service_pb2_grpc.GenerationServiceStub(channel)
        call = stub.GenerateUnary(generation_service_pb2.GenerateUnaryRequest())
        if survives:
            await call
        else:
            with pytest.raises(grpc.aio.AioRpcError, match=r"[Pp]ings|closed|reset"):
                await call
    await server.stop(0)


async def test_a_frozen_client_is_noticed_by_the_keepalive() -> None:
    code = (
        "import grpc, sys\n"
        "from tenon.v1 import generation_service_pb2 as pb, generation_service_pb2_grpc as stubs\n"
        "channel = grpc.insecure_channel(sys.argv[1])\n"
        "list(stubs.GenerationServiceStub(channel).Generate(pb.GenerateRequest()))\n"
    )
    options = server_channel_options(keepalive_ms=1000, keepalive_timeout_ms=1000)
    server = grpc.aio.server(options=options)
    handler = _Endless()
    generation_service_pb2_grpc.add_GenerationServiceServicer_to_server(handler, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    process = subprocess.Popen([sys.executable, "-c", code, f"127.0.0.1:{port}"])
    try:
        await handler.begun.wait()
        process.send_signal(signal.SIGSTOP)
        await asyncio.wait_for(handler.cancelled.wait(), timeout=30)
    finally:
        process.kill()
        process.wait()
        await server.stop(0)


class _Endless(generation_service_pb2_grpc.GenerationServiceServicer):
    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def Generate(self, request: object, context: object) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


class _Silent(generation_service_pb2_grpc.GenerationServiceServicer):
    async def GenerateUnary(
        self, request: object, context: object
    ) -> generation_service_pb2.GenerateUnaryResponse:
        await asyncio.sleep(7)  # the silence is what is tested: it is longer than three strikes
        return generation_service_pb2.GenerateUnaryResponse()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", "0.0.0.0"),
        ("host", "::"),
        ("host", "example.com"),
        ("grpc_port", 70_000),
        ("admin_port", -1),
        ("metrics_port", 65_536),
        ("engine_isolation", "fork"),
        ("log_level", "loud"),
        ("log_format", "xml"),
        ("drain_grace", -1.0),
        ("served_model_name", ""),
    ],
)
def test_the_config_refuses_bad_values_by_name(field: str, value: object) -> None:
    values = {"engine": EngineConfig("m"), "served_model_name": "m", field: value}
    with pytest.raises(ValueError, match=field):
        ServiceConfig(**values)


def test_other_hosts_than_loopback_need_keys() -> None:
    with pytest.raises(ValueError, match="keys are required to listen elsewhere"):
        ServiceConfig(EngineConfig("m"), "m", host="192.168.1.5")
    for host in ("127.0.0.1", "::1", "localhost", "127.0.0.2"):
        assert ServiceConfig(EngineConfig("m"), "m", host=host).host == host
