"""The distribution `tenon` in an environment that has nothing else."""

import asyncio
import shutil
import subprocess
import sys
import venv
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tenon.testing import FakeServer, text_events

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = """
import importlib.util, sys
import tenon
assert "site-packages" in tenon.__file__, tenon.__file__
assert importlib.util.find_spec("torch") is None
with tenon.Client(sys.argv[1]) as client:
    print("".join(client.generate(tenon.chat("capital of France?")).text()))
try:
    tenon.LLM("smollm2")
except ImportError as error:
    print(error)
"""


async def paris(request: Any, context: Any) -> AsyncIterator[Any]:
    yield text_events("Par", "is")


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment into which only `tenon` was installed, from a built wheel."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory / "venv", with_pip=True)
    python = directory / "venv" / "bin" / "python"
    source = directory / "source"  # a copy, since a build leaves files beside its sources
    leftovers = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "client", source, ignore=leftovers)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", directory, source], check=True, timeout=100)
    (wheel,) = directory.glob("tenon-*.whl")
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True, timeout=100)
    return python


@pytest.mark.network
@pytest.mark.timeout(240)
async def test_the_client_works_alone_and_says_what_the_offline_engine_needs(
    empty_environment: Path,
) -> None:
    async with FakeServer(paris) as server:
        command = [empty_environment, "-c", PROGRAM, server.address]
        result = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=False, timeout=60
        )
    assert result.returncode == 0, result.stderr
    answer, explanation = result.stdout.splitlines()
    assert answer == "Paris"
    assert "tenon-server" in explanation


@pytest.mark.network
@pytest.mark.timeout(240)
def test_the_command_line_helps_without_the_server(empty_environment: Path) -> None:
    tenon = empty_environment.parent / "tenon"
    result = subprocess.run([tenon, "--help"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "serve" in result.stdout
    refused = subprocess.run([tenon, "service"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "tenon-server" in refused.stderr
    assert "Traceback" not in refused.stderr
