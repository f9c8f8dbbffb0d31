"""The README's code blocks, run as a reader would run them, against `tenon serve`."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
HTTP, GRPC = "127.0.0.1:8000", "127.0.0.1:50051"  # the addresses that the README names


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(process: subprocess.Popen[str], address: str) -> None:
    while process.poll() is None:
        try:
            if httpx.get(f"http://{address}/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    pytest.fail(f"tenon serve ended with {process.returncode}: {process.stdout}")


@pytest.fixture(scope="module")
def addresses(
    tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path
) -> Iterator[dict[str, str]]:
    """The README's addresses -> those of a server that runs for this module."""
    ports = {name: free_port() for name in ("http", "grpc", "admin", "metrics")}
    options = [f"--{name}-port={port}" for name, port in ports.items()]
    log = tmp_path_factory.mktemp("serve") / "log"
    command = [str(Path(sys.executable).parent / "tenon"), "serve", "smollm2", *options]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, text=True, cwd=ROOT)
    try:
        wait_until_ready(process, f"127.0.0.1:{ports['http']}")
        yield {HTTP: f"127.0.0.1:{ports['http']}", GRPC: f"127.0.0.1:{ports['grpc']}"}
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


def run_block(command: list[str], code: str, addresses: dict[str, str]) -> str:
    for written, real in addresses.items():
        code = code.replace(written, real)
    result = subprocess.run([*command, code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.model
@pytest.mark.parametrize("code", blocks("bash"))
def test_a_shell_block_answers_paris(code: str, addresses: dict[str, str]) -> None:
    assert "Paris" in run_block(["bash", "-ec"], code, addresses)


@pytest.mark.model
@pytest.mark.parametrize("code", blocks("python"))
def test_a_python_block_answers_paris(code: str, addresses: dict[str, str]) -> None:
    assert "Paris" in run_block([sys.executable, "-c"], code, addresses)


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"\bmake (?:TORCH=\w+ )?(\w+)", README)
    assert {"serve", "test"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_files_that_the_readme_links_exist() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link
