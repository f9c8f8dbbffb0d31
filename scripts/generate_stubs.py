"""Generates the Python stubs of protos/ into client/tenon, or checks that they are current.

Usage: python scripts/generate_stubs.py [--check]. With --check nothing is written: the exit code
is 1 and the stale files are named when the committed stubs differ from a fresh generation.
"""

import argparse
import filecmp
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
TARGET = ROOT / "client"


def generate(target: Path) -> list[Path]:
    """Writes the stubs of every proto file under `target` and returns their relative paths."""
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    outputs = [
        f"--{kind}={prefix}{target}"
        for kind, prefix in (
            ("python_out", ""),
            ("grpc_python_out", ""),
            ("mypy_out", ""),
            ("mypy_grpc_out", ""),
        )
    ]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", *outputs, *sources]
    environment_path = str(Path(sys.executable).parent)
    subprocess.run(command, check=True, env={"PATH": environment_path + ":/usr/bin:/bin"})
    services = {name.removesuffix(".proto") for name in sources if name.endswith("_service.proto")}
    for grpc_stub in target.rglob("*_pb2_grpc.py*"):
        stem = str(grpc_stub.relative_to(target)).split("_pb2_grpc")[0]
        if stem not in services:
            grpc_stub.unlink()  # a file without a service has no stub worth shipping
    return sorted(path.relative_to(target) for path in target.rglob("*_pb2*.py*"))


def stale_stubs() -> list[str]:
    """Names of committed stubs that differ from, or are missing in, a fresh generation."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        generated = generate(fresh)
        stale = [
            str(path)
            for path in generated
            if not (TARGET / path).exists()
            or not filecmp.cmp(fresh / path, TARGET / path, shallow=False)
        ]
        committed = {p.relative_to(TARGET) for p in (TARGET / "tenon").rglob("*_pb2*.py*")}
        return stale + [str(extra) for extra in committed - set(generated)]


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    if not parser.parse_args().check:
        for path in generate(TARGET):
            print(f"wrote client/{path}")
        return 0
    stale = stale_stubs()
    for name in stale:
        print(f"stale: client/{name} (run `make protos`)")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
