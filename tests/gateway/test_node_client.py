"""The official npm client against a real server; skips where it is not installed."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from tests.gateway.gateways import running_gateway

NODE = Path(__file__).parent / "node"


@pytest.mark.network
async def test_the_npm_client_reads_answers_streams_and_errors() -> None:
    node = shutil.which("node")
    if node is None or not (NODE / "node_modules" / "openai").exists():
        pytest.skip("node or tests/gateway/node/node_modules is not there")
    async with running_gateway() as gateway:
        process = await asyncio.create_subprocess_exec(
            node,
            str(NODE / "client.mjs"),
            f"{gateway.url}/v1",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    report = json.loads(output)
    assert report["whole"] == report["streamed"] == report["rebuilt"] == "Hello, world!"
    assert report["outputs"] == ["Hello, world!"] * 3
    assert report["legacy"] == "Hello, world!"
    assert report["models"] == ["scripted"]
    assert report["usage"] == report["streamedUsage"]
    assert report["missing"] == {"status": 404, "code": "model_not_found", "param": "model"}
    assert report["hot"]["code"] == "decimal_above_max_value"
    assert report["tokens"] == "Hello, world!"
