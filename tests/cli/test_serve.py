"""`tenon serve` as a user starts it: real processes, a real model, every way to ask."""

import asyncio
import json
import os
import re
import signal
import sys
import urllib.request
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tenon import AsyncClient, chat
from tests.support.checkpoints import make_tiny_llama

QUESTION = "What is the capital of France?"


@dataclass
class RunningServer:
    """A started `tenon serve`. banner: what it printed until it was ready."""

    process: Process
    banner: str

    def address(self, label: str) -> str:
        match = re.search(rf"^{label}\s+(\S+)", self.banner, re.MULTILINE)
        assert match is not None, self.banner
        return match[1]

    @property
    def curl_line(self) -> str:
        (line,) = [line for line in self.banner.splitlines() if line.startswith("curl ")]
        return line


@asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[RunningServer]:
    """Serves on free ports until the end of the block."""
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "admin", "metrics")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tenon", "serve", *ports, *arguments),
        stderr=PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    try:
        banner = ""
        while "\ncurl " not in banner:
            line = await process.stderr.readline()
            assert line, f"it ended: {banner}"
            banner += line.decode()
        reading = asyncio.create_task(process.stderr.read())  # so that its pipe never fills up
        yield RunningServer(process, banner)
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()
        await reading
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ask(server: RunningServer, body: dict[str, Any]) -> str:
    request = urllib.request.Request(
        f"{server.address('REST')}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    response = await asyncio.to_thread(urllib.request.urlopen, request, timeout=60)
    answer = json.loads(response.read())
    return str(answer["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


async def test_serve_answers_over_rest_and_grpc_and_ends_with_0(tiny_model: Path) -> None:
    async with serving(str(tiny_model), "--num-threads=1", "--kv-cache-memory=16MiB") as server:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
        over_rest = await ask(server, {"model": "tiny", **body})
        async with AsyncClient(server.address("gRPC")) as client:
            spec = chat("Hi", temperature=0, max_tokens=4)
            over_grpc = (await client.generate_unary(spec)).outputs[0].text
        assert over_rest == over_grpc
        for fact in ("tiny (llama", "KV cache", "float32", "admin", "metrics"):
            assert fact in server.banner
    assert server.process.returncode == 0


async def test_the_curl_line_of_the_banner_works(tiny_model: Path) -> None:
    async with serving(str(tiny_model), "--num-threads=1", "--kv-cache-memory=16MiB") as server:
        curl = await asyncio.create_subprocess_shell(
            server.curl_line.replace("curl ", "curl -s ", 1), stdout=PIPE
        )
        out, _ = await curl.communicate()
    assert json.loads(out)["choices"][0]["message"]["role"] == "assistant"


async def test_the_servers_end_when_the_supervisor_is_killed(tiny_model: Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("needs Linux's signal on the death of a parent")
    async with serving(str(tiny_model), "--num-threads=1", "--kv-cache-memory=16MiB") as server:
        server.process.kill()
        await server.process.wait()
        async with AsyncClient(server.address("gRPC")) as client:
            while True:
                try:
                    await client.list_models()
                except Exception:
                    break


async def test_a_damaged_model_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tenon", "serve", "--http-port=0", "--grpc-port=0"),
        *("--admin-port=0", "--metrics-port=off", "--log-level=warning"),
        str(tmp_path / "broken.gguf"),
        stderr=PIPE,
    )
    _, err = await process.communicate()
    assert process.returncode == 2
    lines = [line for line in err.decode().splitlines() if "broken.gguf" in line]
    assert len(lines) == 1, err.decode()
    assert "Traceback" not in err.decode()


@pytest.mark.model
async def test_the_default_model_answers_paris_in_every_way(smollm2_path: Path) -> None:
    async with serving(str(smollm2_path), "--served-model-name=smollm2") as server:
        body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
        assert "Paris" in await ask(server, {"model": "smollm2", "max_tokens": 32, **body})
        async with AsyncClient(server.address("gRPC")) as client:
            spec = chat(QUESTION, temperature=0, max_tokens=32)
            async with client.generate(spec) as stream:
                assert "Paris" in "".join([text async for text in stream.text()])
    assert server.process.returncode == 0
