"""Runs service and gateway as two child processes until one of them ends or a signal comes.

Each child writes events as JSON lines to the pipe whose number it finds in TENON_READY_FD. Nothing
is restarted silently: when one child ends, the other is stopped and the exit code says so.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from tenon.cli.banner import LoadingDisplay, show_banner
from tenon.cli.child import Child
from tenon.cli.failures import BAD_INPUT, FAILED
from tenon.cli.options import ServeOptions, to_arguments
from tenon.cli.values import join_address
from tenon.models.store import models_directory

# Beyond the children's own grace, for closing sockets and the engine.
STOP_MARGIN_SECONDS = 10.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Programs:
    """What is run: the beginning of each command line. Tests put fake children here."""

    service: Sequence[str] = (sys.executable, "-m", "tenon", "service")
    gateway: Sequence[str] = (sys.executable, "-m", "tenon", "gateway")
    chat: Sequence[str] = (sys.executable, "-m", "tenon", "chat")


def supervise(
    options: ServeOptions,
    model_path: str,
    name: str,
    *,
    with_chat: bool = False,
    programs: Programs | None = None,
) -> int:
    """Serves until the end; returns the exit code.

    0: stopped by a signal, or the chat was left. 1: a child ended by itself. 2: a child could not
    start because of its configuration.
    """
    console = Console(stderr=True)
    supervisor = Supervisor(options, model_path, name, with_chat, programs or Programs(), console)
    return asyncio.run(supervisor.run())


class Supervisor:
    """One run of service and gateway. Belongs to one event loop."""

    def __init__(
        self,
        options: ServeOptions,
        model_path: str,
        name: str,
        with_chat: bool,
        programs: Programs,
        console: Console,
    ) -> None:
        self._options = options
        self._model_path = model_path
        self._name = name
        self._with_chat = with_chat
        self._programs = programs
        self._console = console
        self._children: list[Child] = []
        self._facts: dict[str, Any] = {}
        self._service_listens = asyncio.Event()
        self._ready = {"service": asyncio.Event(), "gateway": asyncio.Event()}
        self._stop_requests = 0
        self._stop_requested = asyncio.Event()
        self._log_path = models_directory().parent / "run.log" if with_chat else None
        self._start_time = time.monotonic()
        self._display = LoadingDisplay(console, name)

    async def run(self) -> int:
        """Serves until the end; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        try:
            with self._display:
                session = asyncio.create_task(self._session())
                stopped = asyncio.create_task(self._stop_requested.wait())
                await asyncio.wait({session, stopped}, return_when=asyncio.FIRST_COMPLETED)
                exit_code = session.result() if session.done() else 0
                session.cancel()
                stopped.cancel()
        finally:
            await self._stop_children()
        return exit_code

    async def _session(self) -> int:
        """Starts both, waits until one ends or the chat is left; returns the exit code."""
        service = await self._start("service", self._service_command())
        ended = asyncio.create_task(self._first_end([service]))
        if self._options.grpc_port == 0:
            # The gateway must be told which port the service got.
            listens = asyncio.create_task(self._service_listens.wait())
            await asyncio.wait({ended, listens}, return_when=asyncio.FIRST_COMPLETED)
            listens.cancel()
            if ended.done():
                return ended.result()
        ended.cancel()
        gateway = await self._start("gateway", self._gateway_command())
        ended = asyncio.create_task(self._first_end([service, gateway]))
        ready = asyncio.create_task(self._all_ready())
        await asyncio.wait({ended, ready}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            return ended.result()
        self._display.close()
        show_banner(self._console, self._options.host, self._name, self._facts)
        if self._with_chat:
            return await self._chat_or(ended)
        return await ended

    async def _chat_or(self, ended: asyncio.Task[int]) -> int:
        """Gives the terminal to the chat; returns when it is left or a server ends."""
        loop = asyncio.get_running_loop()
        # The terminal sends Ctrl-C to both of us, and there it only stops an answer.
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        target = join_address(self._options.host, self._facts["grpc_port"])
        chat = await asyncio.create_subprocess_exec(*self._programs.chat, "--target", target)
        left = asyncio.create_task(chat.wait())
        try:
            await asyncio.wait({ended, left}, return_when=asyncio.FIRST_COMPLETED)
            return ended.result() if ended.done() else left.result()
        finally:
            loop.add_signal_handler(signal.SIGINT, self._on_signal)
            # It must not report the ends that we now ask for.
            ended.cancel()
            if chat.returncode is None:
                chat.terminate()

    async def _all_ready(self) -> None:
        for event in self._ready.values():
            await event.wait()

    async def _start(self, name: str, command: Sequence[str]) -> Child:
        child = await Child.start(name, command, self._on_event, self._log_path)
        self._children.append(child)
        return child

    async def _first_end(self, children: Sequence[Child]) -> int:
        """Waits until a child has ended, says so, and returns what that makes of the exit code."""
        tasks = {asyncio.create_task(child.wait()): child for child in children}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        child = tasks[done.pop()]
        self._display.close()
        # A child that could not start has said so on our stderr, but there a bar may hide it.
        if child.failure is None or self._log_path is not None or self._console.is_terminal:
            self._say(child.describe_end())
        if child.failure is None and self._log_path is not None:
            self._say(f"its log is {self._log_path}")
        return BAD_INPUT if child.exit_code == BAD_INPUT else FAILED

    def _on_event(self, child: Child, event: dict[str, Any]) -> None:
        self._facts.update({key: value for key, value in event.items() if key != "event"})
        match event.get("event"):
            case "listening":
                (self._service_listens if child.name == "service" else self._ready["gateway"]).set()
            case "progress":
                self._display.update(str(event.get("stage")), float(event.get("progress", 0.0)))
            case "ready":
                self._facts.setdefault("load_seconds", time.monotonic() - self._start_time)
                self._ready["service"].set()

    def _on_signal(self) -> None:
        self._stop_requests += 1
        self._stop_requested.set()
        if self._stop_requests > 1:
            for child in self._children:
                child.send(signal.SIGKILL)

    async def _stop_children(self) -> None:
        """Lets the children drain; kills what is left after the grace and its margin."""
        running = [child for child in self._children if child.is_running]
        for child in running:
            child.send(signal.SIGTERM)
        if not running:
            return
        if self._stop_requests:
            self._say("stopping; again kills what still runs")
        ends = [asyncio.create_task(child.wait()) for child in running]
        timeout = self._options.drain_grace + STOP_MARGIN_SECONDS
        _, pending = await asyncio.wait(ends, timeout=timeout)
        for child in running:
            if child.is_running:
                self._say(f"the {child.name} did not stop within {timeout:g} s and is killed")
                child.send(signal.SIGKILL)
        if pending:
            await asyncio.wait(pending)

    def _service_command(self) -> list[str]:
        options = self._options.service(model=self._model_path, served_model_name=self._name)
        return [*self._programs.service, *to_arguments(options)]

    def _gateway_command(self) -> list[str]:
        port = self._facts.get("grpc_port", self._options.grpc_port)
        target = join_address(self._options.host, port)
        options = self._options.gateway(service_target=target)
        return [*self._programs.gateway, *to_arguments(options)]

    def _say(self, message: str) -> None:
        self._console.print(f"tenon: {message}", style="bold", markup=False, soft_wrap=True)
