"""The commands from outside: help, and errors in one line with exit code 2."""

import json
import socket
from pathlib import Path

import pytest

from tenon.cli.app import run

COMMANDS = (
    "serve",
    "run",
    "service",
    "gateway",
    "pull",
    "list",
    "show",
    "rm",
    "ps",
    "chat",
    "generate",
    "doctor",
    "version",
)
SERVER_VARIABLES = (
    "MODEL",
    "HOST",
    "HTTP_PORT",
    "GRPC_PORT",
    "ADMIN_PORT",
    "METRICS_PORT",
    "DEVICE",
    "DTYPE",
    "MAX_MODEL_LEN",
    "KV_CACHE_MEMORY",
    "MAX_NUM_SEQS",
    "MAX_NUM_BATCHED_TOKENS",
    "ENGINE_ISOLATION",
    "SERVED_MODEL_NAME",
    "CHAT_TEMPLATE",
    "CONFIG",
    "LOG_LEVEL",
)


@pytest.fixture(autouse=True)
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A models directory with nothing in it."""
    monkeypatch.setenv("TENON_MODEL_DIR", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert f"Usage: tenon {command}" in capsys.readouterr().out


def test_the_program_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert [command for command in COMMANDS if f" {command} " not in out] == []


def test_help_shows_the_variable_of_every_server_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    run(["serve", "--help"])
    out = capsys.readouterr().out
    for name in SERVER_VARIABLES:
        assert f"TENON_{name}" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("serve --nope", "--nope"),
        ("nope", "'nope'"),
        ("serve --http-port 70000", "--http-port"),
        ("serve --http-port x", "--http-port"),
        ("serve --metrics-port x", "'x' is neither a port"),
        ("serve --kv-cache-memory 2Q", "'2Q' is not a size"),
        ("serve --max-num-seqs 0", "--max-num-seqs"),
        ("serve --dtype int3", "dtype is 'int3'; allowed are"),
        ("serve --device tpu", "device is 'tpu'; allowed are"),
        ("serve --engine-isolation vm", "engine_isolation is 'vm'; allowed are"),
        ("serve --log-level loud", "log_level is 'loud'; allowed"),
        ("serve --host 0.0.0.0", "'0.0.0.0'"),
        ("serve --grpc-port 8123 --http-port 8123", "are both 8123"),
        (
            "serve --http-port 0 --grpc-port 0 --admin-port 0 --metrics-port off nomodel",
            "'nomodel'",
        ),
        (
            "serve --http-port 0 --grpc-port 0 --admin-port 0 --metrics-port off ./no.gguf",
            "no.gguf",
        ),
        ("serve --config /nonexistent", "/nonexistent"),
        ("service --chat-template /nonexistent --grpc-port 0", "/nonexistent"),
        ("pull nomodel", "'nomodel' cannot be fetched"),
        ("pull hf:nothing", "hf:owner/name[:file]"),
        ("rm nomodel", "no stored model"),
        ("show nomodel", "no model is named"),
        ("show smollm2", "tenon pull smollm2"),
        ("ps --admin-target 127.0.0.1:1", "no server answers at 127.0.0.1:1"),
        ("generate --target 127.0.0.1:1 hello", "no server answers at 127.0.0.1:1"),
        ("chat --target 127.0.0.1:1", "no server answers at 127.0.0.1:1"),
        ("generate --temperature 9 hello", "--temperature"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_2(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments.split()) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1, captured.err
    assert says in captured.err
    assert captured.out == ""


def test_a_busy_port_is_named_with_the_option_that_changes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["serve", "--http-port", str(port)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"port {port} of 127.0.0.1" in line
    assert "--http-port or TENON_HTTP_PORT" in line


def test_a_bad_variable_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENON_GRPC_PORT", "many")
    assert run(["serve"]) == 2
    assert "TENON_GRPC_PORT" in capsys.readouterr().err


def test_servers_say_what_they_need_where_only_the_client_is_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    for command in ("service", "gateway", "serve"):
        assert run([command, "--http-port", "0"] if command != "service" else [command]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "needs tenon-server" in line


def test_list_says_how_to_get_a_model_when_there_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["list"]) == 0
    assert "tenon pull smollm2" in capsys.readouterr().out


def test_list_and_rm_know_what_is_stored(
    empty_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty_store.mkdir()
    (empty_store / "tiny-Q8_0.gguf").write_bytes(b"GGUF" + b"0" * 2000)
    assert run(["list", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["name"], entry["size"], entry["quantization"]) == ("tiny-Q8_0", 2004, "Q8_0")
    assert run(["rm", "tiny-Q8_0"]) == 2  # nobody to ask
    assert "--yes" in capsys.readouterr().err
    assert run(["rm", "tiny-Q8_0", "--yes"]) == 0
    assert list(empty_store.iterdir()) == []


def test_doctor_fails_for_a_damaged_model_and_says_what_to_do(
    empty_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty_store.mkdir()
    (empty_store / "smollm2.gguf").write_bytes(b"GGUF, but not the right one")
    assert run(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if "model smollm2" in line]
    assert line.startswith("wrong")
    assert "tenon pull smollm2" in line


def test_doctor_gives_every_finding_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    run(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)
    subjects = {finding["subject"] for finding in findings}
    assert {"Python", "torch", "CPU", "disk", "packages"} <= subjects
    assert all(f["advice"] for f in findings if f["level"] == "wrong")


def test_version_names_tenon_and_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version", "--json"]) == 0
    versions = json.loads(capsys.readouterr().out)
    assert versions["tenon"]
    assert versions["torch"]
