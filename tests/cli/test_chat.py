"""generate, chat, ps and show against a real gRPC server with a scripted engine."""

import asyncio
import json
import os
import pty
import subprocess
import sys
import types
from pathlib import Path

import pytest
from rich.console import Console

from tenon.cli.repl import Repl
from tenon.cli.session import ChatSession, SamplingSettings
from tests.support.scripted_engine import ScriptedEngineClient
from tests.support.service_fixture import (
    MODEL_NAME,
    running_service,
    scripted_assets,
    started_service,
    text_script,
)


async def tenon(
    *arguments: str, stdin: str = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command line in its own process."""
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tenon", *arguments],
        input=stdin,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
        timeout=60,
    )


def prompts_of(engine: ScriptedEngineClient) -> list[str]:
    """The texts that the engine was given."""
    decode = scripted_assets().tokenizer.decode
    return [decode(request.spec.prompt_ids, skip_special=False) for request in engine.submitted]


async def test_what_is_no_text_is_refused_in_one_line() -> None:
    # A terminal's locale lets bytes that are no UTF-8 through, as lone surrogates.
    lenient = {"PYTHONIOENCODING": "utf-8:surrogateescape"}
    async with running_service() as address:
        for command, typed in (("generate", "Hi \udcff"), ("generate", None), ("chat", None)):
            arguments = [command, "--target", address, *([typed] if typed else [])]
            result = await tenon(*arguments, stdin="Hi \udcff\n", environment=lenient)
            assert result.returncode == 2
            assert result.stderr == "tenon: what was typed or piped in is not UTF-8 text\n"


async def test_an_answer_that_standard_output_cannot_write_is_one_line() -> None:
    async with running_service(ScriptedEngineClient(text_script("h\u00e9"))) as address:
        ascii_only = {"PYTHONIOENCODING": "ascii"}
        result = await tenon("generate", "Hi", "--target", address, environment=ascii_only)
    assert result.returncode == 2
    assert result.stderr == (
        "tenon: standard output cannot write all text in ascii; set PYTHONUTF8=1\n"
    )


async def test_the_wrong_port_of_a_server_is_named() -> None:
    async with started_service() as server:
        data, admin = server.address, server.admin_address
        wrong_data = await tenon("generate", "Hi", "--target", admin)
        wrong_admin = await tenon("ps", "--admin-target", data)
    assert (wrong_data.returncode, wrong_admin.returncode) == (2, 2)
    assert wrong_data.stderr.startswith(f"tenon: {admin} is not the gRPC port of a Tenon server")
    assert wrong_admin.stderr.startswith(f"tenon: {data} is not the admin port of a Tenon server")


async def test_generate_answers_from_an_argument_and_from_standard_input() -> None:
    async with running_service() as address:
        for arguments, stdin in (
            (("Hi",), ""),
            ((), "Hi\n"),
            (("-",), "Hi"),
            (("Hi", "--no-stream"), ""),
        ):
            result = await tenon("generate", *arguments, "--target", address, stdin=stdin)
            assert (result.returncode, result.stdout) == (0, "Hello, world!\n"), result.stderr


async def test_generate_tells_usage_and_timings_as_json() -> None:
    async with running_service() as address:
        result = await tenon("generate", "Hi", "--json", "--seed", "7", "--target", address)
    answer = json.loads(result.stdout)
    assert answer["text"] == "Hello, world!"
    assert (answer["finish_reason"], answer["seed"], answer["model"]) == ("stop", 7, MODEL_NAME)
    assert answer["usage"]["output_tokens"] > 1
    assert set(answer["timings"]) == {"queue", "prefill", "decode", "first_token", "total"}


async def test_generate_renders_the_template_unless_it_is_raw_or_there_is_none() -> None:
    engine = ScriptedEngineClient(text_script("x"))
    async with running_service(engine) as address:
        await tenon("generate", "Hi", "--system", "Be brief.", "--target", address)
        await tenon("generate", "Hi", "--raw", "--target", address)
        refused = await tenon("generate", "Hi", "--raw", "--system", "x", "--target", address)
    prompts = prompts_of(engine)
    assert prompts[0].startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi")
    assert prompts[1:] == ["Hi"]
    assert refused.returncode == 2
    assert "--system needs" in refused.stderr


async def test_a_server_that_refuses_is_quoted_in_one_line() -> None:
    async with running_service() as address:
        result = await tenon("generate", "Hi", "--model", "other", "--target", address)
        empty = await tenon("generate", "--target", address, stdin="\n")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "other" in line
    assert (empty.returncode, len(empty.stderr.splitlines())) == (2, 1)


async def test_a_piped_chat_keeps_the_conversation_and_obeys_commands() -> None:
    engine = ScriptedEngineClient(text_script("Yes."))
    lines = [
        "First",
        "/system Be brief.",
        "/set temperature 0",
        "/set nonsense 1",
        "Second",
        "/timings",
        "/clear",
        '"""',
        "Third",
        "of two lines",
        '"""',
        "/regen",
        "/nope",
        "/exit",
        "Never asked",
    ]
    async with running_service(engine) as address:
        result = await tenon("chat", "--target", address, stdin="\n".join(lines))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "Yes.\n" * 4
    prompts = prompts_of(engine)
    user, assistant = "<|im_start|>user\n", "<|im_start|>assistant\n"
    system = "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert prompts == [
        f"{user}First<|im_end|>\n{assistant}",
        f"{system}{user}First<|im_end|>\n{assistant}Yes.<|im_end|>\n"
        f"{user}Second<|im_end|>\n{assistant}",
        f"{system}{user}Third\nof two lines<|im_end|>\n{assistant}",
        f"{system}{user}Third\nof two lines<|im_end|>\n{assistant}",
    ]
    assert [request.spec.sampling.temperature for request in engine.submitted] == [1, 0, 0, 0]
    assert "nonsense cannot be set" in result.stderr
    assert "/nope is not a command" in result.stderr
    assert "prompt tokens" in result.stderr


async def test_chat_needs_a_model_with_a_template() -> None:
    async with running_service(assets=scripted_assets(has_template=False)) as address:
        result = await tenon("chat", "--target", address)
    assert result.returncode == 2
    assert "no chat template" in result.stderr


async def test_a_failed_answer_makes_a_piped_chat_fail_but_not_stop() -> None:
    from engine.request import RequestError

    engine = ScriptedEngineClient(text_script("Yes."))
    engine.refusals.append(RequestError("INVALID_FIELD", "not that"))
    async with running_service(engine) as address:
        result = await tenon("chat", "--target", address, stdin="First\nSecond\n")
    assert result.returncode == 1
    assert result.stdout.endswith("Yes.\n")
    assert len(result.stderr.splitlines()) == 1


# The pseudo terminal becomes the controlling one, so that Ctrl-C reaches the program. Not done with
# preexec_fn, which may deadlock in a process that has gRPC's threads.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "tenon", *sys.argv[1:]])
"""


class Terminal:
    """A program under a pseudo terminal."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        self._descriptor, child_end = pty.openpty()
        self._text = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *arguments],
            stdin=child_end,
            stdout=child_end,
            stderr=child_end,
            env={**os.environ, "TERM": "xterm", **environment},
            start_new_session=True,
        )
        os.close(child_end)

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    async def expect(self, text: str) -> None:
        """Waits until `text` is shown, and forgets what came before its end."""
        while text not in self._text:
            data = await self._read()
            self._text += data.decode(errors="replace")
        self._text = self._text.partition(text)[2]

    async def _read(self) -> bytes:
        # Not in a thread: one that waits for a silent program would outlive a failed test.
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, ready.set)
        try:
            async with asyncio.timeout(30):
                await ready.wait()
        except TimeoutError:
            self.process.kill()
            raise AssertionError(f"nothing more came after {self._text!r}") from None
        finally:
            loop.remove_reader(self._descriptor)
        return os.read(self._descriptor, 4096)

    async def close(self) -> int:
        """Waits for the end; returns the exit code."""
        try:
            while await self._read():
                pass
        except OSError:  # how a pseudo terminal tells that nobody holds its other end
            pass
        os.close(self._descriptor)
        return await asyncio.to_thread(self.process.wait, 30)


async def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves(tmp_path: Path) -> None:
    engine = ScriptedEngineClient(text_script("endless " * 100), auto_step=False)
    async with running_service(engine) as address:
        terminal = Terminal(
            ["chat", "--target", address], {"TENON_MODEL_DIR": str(tmp_path / "models")}
        )
        await terminal.expect(">>> ")
        terminal.type("Go\n")
        while not engine.submitted:
            await asyncio.sleep(0)
        engine.step(9)
        await terminal.expect("endless")
        terminal.type("\x03")
        await terminal.expect("stopped")
        await terminal.expect(">>> ")
        terminal.type("\x04")
        assert await terminal.close() == 0
        assert len(engine.aborted) == 1
    assert "Go" in (tmp_path / "chat_history").read_text()


def test_ctrl_c_at_the_prompt_leaves_the_program_running(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Not on a pseudo terminal: readline may see a Ctrl-C only with the next key.
    replies = iter([KeyboardInterrupt(), "/help", EOFError()])

    def fake_input(_prompt: str) -> str:
        reply = next(replies)
        if isinstance(reply, BaseException):
            raise reply
        return reply

    monkeypatch.setattr("builtins.input", fake_input)
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    session = ChatSession(None, "tiny", None, SamplingSettings())  # nothing is asked
    assert Repl(session, Console(stderr=True), history_path=None).run()
    err = capsys.readouterr().err
    assert "Ctrl-D leaves" in err
    assert "/regen" in err


async def test_ps_shows_the_state_and_the_requests() -> None:
    engine = ScriptedEngineClient(text_script("endless " * 100), auto_step=False)
    async with started_service(engine) as running:
        from tenon import AsyncClient, chat

        async with (
            AsyncClient(running.address) as client,
            client.generate(chat("Go"), request_id="mine") as stream,
        ):
            reading = asyncio.create_task(anext(aiter(stream)))
            while not engine.submitted:
                await asyncio.sleep(0)
            engine.step(3)
            await reading
            as_json = await tenon("ps", "--json", "--admin-target", running.admin_address)
            as_text = await tenon("ps", "--admin-target", running.admin_address)
    status = json.loads(as_json.stdout)
    assert (status["models"], status["state"], status["running"]) == ([MODEL_NAME], "ready", 1)
    assert status["requests"][0]["id"] == "mine"
    assert status["kv_blocks_used"] > 0
    assert MODEL_NAME in as_text.stdout
    assert "mine" in as_text.stdout


async def test_show_asks_the_server_that_it_is_told() -> None:
    async with running_service() as address:
        result = await tenon("show", MODEL_NAME, "--json", "--target", address)
    assert json.loads(result.stdout)["family"] == "scripted"


async def test_generate_stops_quietly_when_its_reader_has_gone() -> None:
    async with running_service() as address:
        command = f"{sys.executable} -m tenon generate Hi --target {address} | true"
        result = await asyncio.to_thread(
            subprocess.run,
            ["sh", "-c", command],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert "Traceback" not in result.stderr
