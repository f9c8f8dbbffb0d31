"""A service process: its announcements, its end on SIGTERM, and what it says if it cannot run."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tenon.aio import AsyncClient
from tenon.errors import Unavailable
from tenon.specs import completion
from tests.support.checkpoints import make_tiny_llama

PROGRAM = """
import json, sys
from engine.config import EngineConfig
from service.config import ServiceConfig
from service.server import run_service
options = json.loads(sys.argv[1])
config = ServiceConfig(engine=EngineConfig(options.pop("model_path"), device="cpu"), **options)
sys.exit(run_service(config))
"""
# Gives each request the tokens 0, 1, 2, ...
TARGET = "tests.service.scripted_engine:build_scripted_engine"


@dataclass(slots=True)
class ServiceProcess:
    """A running process and the lines that it announces."""

    process: asyncio.subprocess.Process
    lines: asyncio.StreamReader

    async def next_event(self, kind: str) -> dict[str, object]:
        """The next announcement of a kind; skips others."""
        while line := await self.lines.readline():
            event = json.loads(line)
            if event["event"] == kind:
                return dict(event)
        raise AssertionError(f"it ended without {kind}")

    async def end(self) -> tuple[int, str]:
        """Exit code and what it wrote to stderr."""
        _, errors = await self.process.communicate()
        return self.process.returncode or 0, errors.decode()


@asynccontextmanager
async def service_process(model_path: Path, **options: object) -> AsyncIterator[ServiceProcess]:
    settings = {
        "model_path": str(model_path),
        "served_model_name": "tiny",
        "grpc_port": 0,
        "admin_port": 0,
        "metrics_port": 0,
        "engine_target": TARGET,
        "engine_isolation": "thread",
        **options,
    }
    read_end, write_end = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        json.dumps(settings),
        stderr=subprocess.PIPE,
        pass_fds=(write_end,),
        env={**os.environ, "TENON_READY_FD": str(write_end)},
    )
    os.close(write_end)
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: protocol, os.fdopen(read_end, "rb")
    )
    try:
        yield ServiceProcess(process, reader)
    finally:
        transport.close()
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


async def test_a_process_announces_its_ports_then_its_model_and_ends_with_zero(
    model_path: Path,
) -> None:
    async with service_process(model_path) as service:
        ports = await service.next_event("listening")
        ready = await service.next_event("ready")
        async with AsyncClient(f"127.0.0.1:{ports['grpc_port']}") as client:
            answer = await client.generate_unary(completion([5], max_tokens=3))
        service.process.send_signal(signal.SIGTERM)
        code, errors = await service.end()
    assert answer.finished.usage.output_tokens == 3
    assert ready["model"] == "tiny"
    assert ready["kv_cache_tokens"] == 8 * 16
    assert all(isinstance(ports[name], int) for name in ("admin_port", "metrics_port"))
    assert code == 0, errors


async def test_sigterm_lets_running_requests_finish_and_refuses_new_ones(model_path: Path) -> None:
    async with service_process(model_path) as service:
        ports = await service.next_event("listening")
        await service.next_event("ready")
        address = f"127.0.0.1:{ports['grpc_port']}"
        async with AsyncClient(address) as client:
            stream = client.generate(completion([5], max_tokens=100))
            events = aiter(stream)
            await anext(events)
            service.process.send_signal(signal.SIGTERM)
            rest = [event async for event in events]
        code, errors = await service.end()
    assert rest[-1].HasField("finished")
    assert code == 0, errors


async def test_a_second_signal_ends_a_drain_at_once(model_path: Path) -> None:
    async with service_process(model_path, drain_grace=3600) as service:
        ports = await service.next_event("listening")
        await service.next_event("ready")
        async with AsyncClient(f"127.0.0.1:{ports['grpc_port']}") as client:
            stream = client.generate(completion([5]))
            await anext(aiter(stream))
            service.process.send_signal(signal.SIGTERM)
            assert await _refusal(client) == "DRAINING"
            service.process.send_signal(signal.SIGTERM)
            code, errors = await service.end()
    assert code == 0, errors


async def test_a_missing_model_ends_with_two_and_one_line(tmp_path: Path) -> None:
    async with service_process(tmp_path / "nothing.gguf") as service:
        failed = await service.next_event("failed")
        code, errors = await service.end()
    assert code == 2
    assert "nothing.gguf" in str(failed["message"])
    assert "Traceback" not in errors


async def test_a_busy_port_ends_with_two_and_names_it(model_path: Path) -> None:
    async with service_process(model_path) as first:
        port = (await first.next_event("listening"))["grpc_port"]
        async with service_process(model_path, grpc_port=port) as second:
            code, errors = await second.end()
    assert code == 2
    assert f"grpc_port {port} on 127.0.0.1" in errors
    assert "Traceback" not in errors


async def test_an_engine_that_cannot_be_built_ends_with_its_reason(model_path: Path) -> None:
    target = "tests.service.scripted_engine:no_such_function"
    async with service_process(model_path, engine_target=target) as service:
        failed = await service.next_event("failed")
        code, _ = await service.end()
    assert code in (1, 2)
    assert "no_such_function" in str(failed["message"])


async def _refusal(client: AsyncClient) -> str:
    """The reason of the first refusal; signals take a moment to arrive."""
    while True:
        try:
            await client.generate_unary(completion([5], max_tokens=1))
        except Unavailable as error:
            return error.reason
