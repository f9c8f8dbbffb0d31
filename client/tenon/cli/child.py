"""One server process under the supervisor, and the events that it writes to its pipe."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Self

from tenon.cli.options import option_variables

READY_FD_VARIABLE = "TENON_READY_FD"


class Child:
    """A running child. on_event is told each event of its pipe, in order."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        on_event: Callable[["Child", dict[str, Any]], None],
    ) -> None:
        self.name = name
        self.failure: str | None = None
        self._process = process
        self._on_event = on_event
        self._reader: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        on_event: Callable[["Child", dict[str, Any]], None],
        log_path: Path | None,
    ) -> Self:
        """Starts a child. log_path: where its output goes; None leaves it on this terminal."""
        read_fd, write_fd = os.pipe()
        log = _open_log(log_path)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(write_fd),
                pass_fds=(write_fd,),
                # A Ctrl-C of the terminal reaches the supervisor alone, which stops both in order.
                start_new_session=True,
            )
        finally:
            os.close(write_fd)
            if log is not None:
                log.close()
        child = cls(name, process, on_event)
        child._reader = asyncio.create_task(child._read_events(read_fd))
        return child

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, negative for the signal that ended it; None while it runs."""
        return self._process.returncode

    async def wait(self) -> None:
        """Returns when it has ended and its last event was handled."""
        await self._process.wait()
        if self._reader is not None:
            # Processes that the child left behind may hold the pipe open.
            await asyncio.wait({self._reader}, timeout=1.0)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; does nothing when it has ended."""
        if self.is_running:
            self._process.send_signal(number)

    def describe_end(self) -> str:
        """Why it ended, in one line."""
        if self.failure is not None:
            return f"the {self.name} could not start: {self.failure}"
        code = self.exit_code
        if code is not None and code < 0:
            return f"the {self.name} was ended by {signal.Signals(-code).name}"
        return f"the {self.name} ended with exit code {code}"

    async def _read_events(self, read_fd: int) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        pipe = os.fdopen(read_fd, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while line := await reader.readline():
                self._take(line)
        finally:
            transport.close()

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            return  # cut off by the end of the child, whose exit code tells more
        if event.get("event") == "failed":
            self.failure = " ".join(str(event.get("message")).split())
        self._on_event(self, event)


def _environment(write_fd: int) -> dict[str, str]:
    # All options are arguments: a variable must not come between them and the child.
    hidden = option_variables()
    inherited = {key: value for key, value in os.environ.items() if key not in hidden}
    return {**inherited, READY_FD_VARIABLE: str(write_fd)}


def _open_log(path: Path | None) -> IO[bytes] | None:
    if path is None:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")
