"""The supervisor over tiny fake children: order, failures, signals, what is shown."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tenon.cli.banner import banner_rows, curl_line

FAKE = Path(__file__).parent / "fake_child.py"
DRIVER = """
import sys
from tenon.cli.options import ServeOptions
from tenon.cli.supervisor import Programs, supervise
fake, record, service, gateway, grpc_port, chat = sys.argv[1:]
programs = Programs(
    service=(sys.executable, fake, service, record),
    gateway=(sys.executable, fake, gateway, record),
    chat=(sys.executable, "-c", chat),
)
options = ServeOptions(http_port=0, grpc_port=int(grpc_port), admin_port=0)
sys.exit(supervise(options, "/model.gguf", "tiny", with_chat=bool(chat), programs=programs))
"""


@dataclass
class Outcome:
    """What a supervised run left behind."""

    exit_code: int
    err: str
    record: list[str]


def supervised(
    directory: Path, service: str, gateway: str, grpc_port: int = 0, chat: str = ""
) -> Outcome:
    record = directory / "record"
    arguments = [str(FAKE), str(record), service, gateway, str(grpc_port), chat]
    environment = {
        **os.environ,
        "TENON_CONFIG": "/nonexistent",
        "TENON_HTTP_PORT": "1",
        "TENON_MODEL_DIR": str(directory / "models"),
    }
    result = subprocess.run(
        [sys.executable, "-c", DRIVER, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        start_new_session=True,
    )
    return Outcome(result.returncode, result.stderr, record.read_text().splitlines())


def test_a_signal_stops_both_and_the_banner_was_shown(tmp_path: Path) -> None:
    outcome = supervised(tmp_path, "service", "interrupting gateway")
    assert outcome.exit_code == 0, outcome.err
    assert "service: SIGTERM" in outcome.record
    assert "interrupting gateway: SIGTERM" in outcome.record


def test_the_gateway_is_told_the_port_that_the_service_got(tmp_path: Path) -> None:
    outcome = supervised(tmp_path, "service", "interrupting gateway")
    (line,) = [line for line in outcome.record if "--service-target" in line]
    assert "--service-target 127.0.0.1:1234" in line
    (line,) = [line for line in outcome.record if "--served-model-name tiny" in line]
    assert line.endswith("-- /model.gguf")


def test_children_see_arguments_and_not_the_variables_of_options(tmp_path: Path) -> None:
    outcome = supervised(tmp_path, "service", "interrupting gateway")
    assert [line for line in outcome.record if "inherited" in line] == [
        "service: inherited []",
        "interrupting gateway: inherited []",
    ]


@pytest.mark.parametrize(
    ("service", "gateway", "exit_code", "says"),
    [
        ("service", "crashing gateway", 1, "the gateway ended with exit code 7"),
        ("crashing service", "gateway", 1, "the service ended with exit code 7"),
        ("misconfigured service", "gateway", 2, ""),
        ("service", "misconfigured gateway", 2, ""),
    ],
)
def test_when_one_child_ends_the_other_is_stopped_and_the_exit_code_says_why(
    service: str, gateway: str, exit_code: int, says: str, tmp_path: Path
) -> None:
    outcome = supervised(tmp_path, service, gateway, grpc_port=50999)
    assert outcome.exit_code == exit_code, outcome.err
    assert says in outcome.err
    assert "Traceback" not in outcome.err


def test_a_child_that_ends_before_it_listens_is_not_waited_for(tmp_path: Path) -> None:
    outcome = supervised(tmp_path, "misconfigured service", "gateway", grpc_port=0)
    assert outcome.exit_code == 2
    assert not [line for line in outcome.record if line.startswith("gateway")]


def test_a_second_signal_kills_what_does_not_stop(tmp_path: Path) -> None:
    # The stubborn child answers its SIGTERM with a second signal to the supervisor.
    outcome = supervised(tmp_path, "stubborn service", "interrupting gateway")
    assert outcome.exit_code == 0
    assert "stubborn service: SIGTERM" in outcome.record
    assert "again kills" in outcome.err


def test_leaving_the_chat_stops_the_servers(tmp_path: Path) -> None:
    chat = "import sys; print(sys.argv[1:], file=sys.stderr)"
    outcome = supervised(tmp_path, "service", "gateway", chat=chat)
    assert outcome.exit_code == 0, outcome.err
    assert "['--target', '127.0.0.1:1234']" in outcome.err
    assert {"service: SIGTERM", "gateway: SIGTERM"} <= set(outcome.record)
    # Nothing ended by itself, so nothing is said of an end or of a log.
    assert "ended with" not in outcome.err


def test_a_chat_ends_with_the_server_and_the_log_is_named(tmp_path: Path) -> None:
    chat = "import signal; signal.pause()"
    outcome = supervised(tmp_path, "service", "crashing gateway", chat=chat)
    assert outcome.exit_code == 1
    assert "the gateway ended with exit code 7" in outcome.err
    assert str(tmp_path / "run.log") in outcome.err


def test_the_banner_has_what_a_stranger_needs() -> None:
    facts = {
        "family": "llama",
        "num_parameters": 134515008,
        "dtype": "bfloat16",
        "quantization": "Q4_1",
        "kv_cache_tokens": 65536,
        "http_port": 4321,
        "grpc_port": 1234,
        "admin_port": 1235,
        "metrics_port": None,
    }
    rows = dict(banner_rows("127.0.0.1", "tiny", facts))
    assert rows["model"] == "tiny (llama, 134.5M parameters)"
    assert rows["precision"] == "bfloat16, stored as Q4_1"
    assert rows["KV cache"] == "65,536 tokens"
    assert rows["REST"] == "http://127.0.0.1:4321/v1"
    assert rows["gRPC"] == "127.0.0.1:1234"
    assert "metrics" not in rows
    assert dict(banner_rows("::1", "tiny", facts))["gRPC"] == "[::1]:1234"


def test_the_curl_line_survives_a_shell_whatever_the_model_is_called() -> None:
    line = curl_line("127.0.0.1", 4321, 'it\'s "odd"')
    echoed = subprocess.run(
        ["sh", "-c", line.replace("curl", "printf '%s\\n'", 1)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert echoed[0] == "http://127.0.0.1:4321/v1/chat/completions"
    assert '"model": "it\'s \\"odd\\""' in echoed[-1]
