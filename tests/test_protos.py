"""The protos: linted, stubs current, and the version floors that the generated code demands."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STUBS = ROOT / "client" / "tenon" / "v1"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def floor(distribution: str, package: str) -> tuple[int, ...]:
    project = tomllib.loads((ROOT / distribution / "pyproject.toml").read_text())["project"]
    (line,) = [d for d in project["dependencies"] if re.match(rf"{package}\b[>=]", d)]
    match = re.search(r">=([\d.]+)", line)
    assert match
    return tuple(int(part) for part in match[1].split("."))


def test_buf_lint_is_clean() -> None:
    result = run(str(Path(sys.executable).parent / "buf"), "lint", "protos")
    assert result.returncode == 0, result.stdout


def test_committed_stubs_equal_a_fresh_generation() -> None:
    result = run(sys.executable, "scripts/generate_stubs.py", "--check")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("distribution", [".", "client"])
def test_dependency_floors_are_what_the_generated_code_demands(distribution: str) -> None:
    grpc_stub = (STUBS / "generation_service_pb2_grpc.py").read_text()
    message_stub = (STUBS / "generation_pb2.py").read_text()
    grpc_version = re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", grpc_stub)
    protobuf_version = re.search(r"Protobuf Python Version: ([\d.]+)", message_stub)
    assert grpc_version
    assert protobuf_version
    assert floor(distribution, "grpcio") >= tuple(map(int, grpc_version[1].split(".")))
    assert floor(distribution, "protobuf") >= tuple(map(int, protobuf_version[1].split(".")))
