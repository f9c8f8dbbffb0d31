"""The chat loop of a terminal; works as well on a pipe, one message a line."""

import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from tenon.cli.session import ChatSession
from tenon.cli.terminal import printable
from tenon.errors import TenonError
from tenon.v1 import generation_pb2

HELP = """\
/system TEXT      set the system message; without TEXT show it, /system - removes it
/set NAME VALUE   temperature, top_p, top_k, seed or max_tokens; VALUE default resets it
/clear            forget the conversation
/regen            answer the last message again
/timings          show the timings of each answer, or stop showing them
/help             this text
/exit             leave; so does Ctrl-D
Ctrl-C stops an answer. A message of several lines stands between lines of \"\"\"."""
_FENCE = '"""'
_HISTORY_LINES = 1000


class Repl:
    """Reads messages and commands from standard input and writes answers to standard output.

    Hints and errors go to `console`.
    """

    def __init__(self, session: ChatSession, console: Console, history_path: Path | None) -> None:
        self._session = session
        self._console = console
        self._history_path = history_path
        self._is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._shows_timings = False
        self._has_failed = False
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: self._say(HELP),
            "/system": self._set_system,
            "/set": self._set,
            "/clear": lambda _: self._clear(),
            "/regen": lambda _: self._regenerate(),
            "/timings": lambda _: self._toggle_timings(),
        }

    def run(self) -> bool:
        """Chats until the input ends; returns whether every answer came."""
        if self._is_interactive:
            self._load_history()
            self._say(f"Chatting with {self._session.model}. /help shows what can be typed.")
        try:
            while (message := self._read_message()) is not None:
                if message.strip() in ("/exit", "/bye", "/quit"):
                    break
                self._take(message)
        finally:
            if self._is_interactive:
                self._save_history()
        return not self._has_failed

    def _take(self, message: str) -> None:
        word, _, rest = message.strip().partition(" ")
        if word.startswith("/") and "\n" not in message:
            command = self._commands.get(word)
            if command is None:
                self._say(f"{word} is not a command; /help lists them")
            else:
                command(rest.strip())
        elif message.strip():
            self._answer(message)

    def _answer(self, message: str) -> None:
        pieces = self._session.answer(message)
        try:
            for piece in pieces:
                print(printable(piece), end="", flush=True)
            print(flush=True)
        except KeyboardInterrupt:
            print(flush=True)
            self._say("stopped")
        except TenonError as error:
            self._has_failed = True
            print(flush=True)
            self._say(f"tenon: {error}")
        finally:
            pieces.close()  # type: ignore[attr-defined]  # it is a generator
        if self._shows_timings and self._session.finished is not None:
            self._say(describe_timings(self._session.finished))

    def _read_message(self) -> str | None:
        """The next line, or the lines between fences; None at the end of the input."""
        line = self._read_line(">>> ")
        if line is None or line.strip() != _FENCE:
            return line
        lines: list[str] = []
        while (line := self._read_line("... ")) is not None and line.strip() != _FENCE:
            lines.append(line)
        return "\n".join(lines)

    def _read_line(self, prompt: str) -> str | None:
        while True:
            try:
                return input(prompt if self._is_interactive else "")
            except EOFError:
                if self._is_interactive:
                    print()
                return None
            except KeyboardInterrupt:
                if not self._is_interactive:
                    raise
                print()
                self._say("Ctrl-D leaves")

    def _set_system(self, text: str) -> None:
        if text:
            self._session.system = None if text == "-" else text
        self._say(f"system message: {self._session.system or 'none'}")

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        try:
            self._session.settings = self._session.settings.changed(name, value.strip())
        except ValueError as error:
            self._say(str(error))
            return
        self._say(f"{name} is {value.strip()}")

    def _clear(self) -> None:
        self._session.clear()
        self._say("the conversation is forgotten")

    def _regenerate(self) -> None:
        question = self._session.drop_last_answer()
        if question is None:
            self._say("there is no answer yet")
        else:
            self._answer(question)

    def _toggle_timings(self) -> None:
        self._shows_timings = not self._shows_timings
        self._say(f"timings are {'shown' if self._shows_timings else 'not shown'}")

    def _say(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)

    def _load_history(self) -> None:
        try:
            import readline
        except ImportError:  # not on Windows: lines cannot be edited, the rest works
            return
        readline.set_history_length(_HISTORY_LINES)
        if self._history_path is not None and self._history_path.exists():
            readline.read_history_file(self._history_path)

    def _save_history(self) -> None:
        if self._history_path is None or "readline" not in sys.modules:
            return
        try:
            self._history_path.parent.mkdir(parents=True, exist_ok=True)
            sys.modules["readline"].write_history_file(self._history_path)
        except OSError as error:
            self._say(f"the history was not saved: {error}")


def describe_timings(finished: generation_pb2.Finished) -> str:
    """One line of numbers about an answer."""
    usage, timings = finished.usage, finished.timings
    decode = timings.decode.ToNanoseconds() / 1e9
    rate = f", {(usage.output_tokens - 1) / decode:.1f} tokens/s" if decode > 0 else ""
    first = timings.first_token.ToNanoseconds() / 1e6
    total = timings.total.ToNanoseconds() / 1e9
    return (
        f"[{usage.prompt_tokens} prompt tokens, {usage.cached_tokens} cached; "
        f"{usage.output_tokens} output tokens{rate}; "
        f"first after {first:.0f} ms, all in {total:.2f} s]"
    )
