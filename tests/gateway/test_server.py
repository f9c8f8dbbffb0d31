"""The gateway as a process: it says where it listens, names a busy port, and drains on SIGTERM."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import structlog

from gateway.config import GatewayConfig
from gateway.server import run_gateway
from tests.gateway.gateways import CHAT, sse_events
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import running_service, text_script

PROJECT = Path(__file__).parents[2]
PROGRAM = """
import sys
from gateway.config import GatewayConfig
from gateway.server import run_gateway
sys.exit(run_gateway(GatewayConfig(
    port=0, service_target=sys.argv[1], metrics_port=0, log_json=True)))
"""
LIGHT = """
import sys, gateway.server
heavy = {"torch", "numpy", "tokenizers", "transformers", "service", "engine", "grammar"}
sys.exit(", ".join(sorted(heavy & set(sys.modules))))
"""


@asynccontextmanager
async def gateway_process(
    target: str,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, int]]]:
    """The process and the ports that it announced."""
    read_fd, write_fd = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        target,
        cwd=PROJECT,
        env={**os.environ, "TENON_READY_FD": str(write_fd)},
        pass_fds=(write_fd,),
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(write_fd)
    try:
        with os.fdopen(read_fd) as pipe:
            ports = json.loads(await asyncio.to_thread(pipe.readline))
        yield process, ports
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_sigterm_lets_a_stream_end_and_the_exit_code_is_zero() -> None:
    engine = ScriptedEngineClient(text_script("Hello"), auto_step=False)
    async with (
        running_service(engine) as address,
        gateway_process(address) as (process, ports),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports['http_port']}", timeout=60) as http,
    ):
        assert ports["event"] == "listening"
        request = http.build_request("POST", "/v1/chat/completions", json={**CHAT, "stream": True})
        asking = asyncio.create_task(http.send(request, stream=True))
        await engine.wait_submitted(1)
        engine.step()
        response = await asking
        metrics = (await http.get(f"http://127.0.0.1:{ports['gateway_metrics_port']}/metrics")).text
        assert "tenon_gateway_requests_in_flight 1.0" in metrics
        process.send_signal(signal.SIGTERM)
        await refused(ports["http_port"])
        engine.step(10)
        await response.aread()
        assert sse_events(response.text)[-1] == "[DONE]"
        _, log = await process.communicate()
    assert process.returncode == 0
    lines = [json.loads(line) for line in log.decode().splitlines()]
    entry = next(line for line in lines if line["event"] == "request")
    assert entry["status"] == 200
    assert entry["route"] == "/v1/chat/completions"
    assert entry["model"] == "scripted"
    assert "Hello" not in log.decode()
    assert '"hi"' not in log.decode()


async def refused(port: int) -> None:
    """Returns once nobody listens on the port any more."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await writer.wait_closed()
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            continue  # it was in the backlog when the listener closed


def test_a_busy_port_is_one_clear_line_and_exit_code_2(capsys: pytest.CaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        try:
            assert run_gateway(GatewayConfig(port=port)) == 2
        finally:
            structlog.reset_defaults()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert f"127.0.0.1:{port}" in lines[0]
    assert "--http-port" in lines[0]


async def test_the_gateway_loads_nothing_heavy() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LIGHT, cwd=PROJECT, stderr=asyncio.subprocess.PIPE
    )
    _, found = await process.communicate()
    assert process.returncode in (0, 1)
    assert found.decode().strip() == ""
