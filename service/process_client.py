"""An engine in a process of its own: its crash ends requests, not the service.

The process is spawned, never forked: CUDA and gRPC both break in a forked child. It is started
with `subprocess` rather than `multiprocessing`, whose spawn imports the caller's main module (and
with it gRPC) in the child and fails for a main without a guard.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import cast

from service import frames
from service.engine_client import EngineFactory
from service.supervision import RestartPolicy, SupervisedClient

# How long a host may take to finish its step after Close.
STOP_TIMEOUT = 5.0
# How long a process may take to end once its stream has ended.
REAP_TIMEOUT = 2.0
REAP_INTERVAL = 0.01


class ProcessClient(SupervisedClient):
    """EngineClient over a spawned process and a socket pair."""

    def __init__(self, factory: EngineFactory, policy: RestartPolicy | None = None) -> None:
        super().__init__(factory, _launch_process, policy)

    @property
    def process_id(self) -> int | None:
        """Of the running host, None before there is one."""
        return self._link.process_id if isinstance(self._link, _ProcessLink) else None


async def _launch_process(
    factory: EngineFactory,
    generation: int,
    on_event: Callable[[frames.Event], None],
    on_end: Callable[[], None],
) -> "_ProcessLink":
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with theirs:
            process = _spawn(theirs)
        link = _ProcessLink(process, generation, on_event, on_end)
        await _connect(link, ours, process)
    except BaseException:
        ours.close()
        raise
    link.write(frames.Begin(factory))
    return link


async def _connect(
    link: "_ProcessLink", ours: socket.socket, process: subprocess.Popen[bytes]
) -> None:
    ours.setblocking(False)
    try:
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
    except BaseException:
        process.kill()
        process.wait()
        raise


def _spawn(connection: socket.socket) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "service.host_process", str(connection.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[connection.fileno()],
        env=environment,
        # Signals of the terminal's group are the service's to handle: it drains, then closes us.
        start_new_session=True,
    )


class _ProcessLink(asyncio.Protocol):
    def __init__(
        self,
        process: subprocess.Popen[bytes],
        generation: int,
        on_event: Callable[[frames.Event], None],
        on_end: Callable[[], None],
    ) -> None:
        self._process = process
        self._on_event = on_event
        self._on_end = on_end
        self._encoder = frames.FrameEncoder(generation)
        self._decoder: frames.FrameDecoder[frames.Event]
        self._decoder = frames.FrameDecoder(frames.Event, generation)
        self._transport: asyncio.WriteTransport | None = None
        self._ended = asyncio.Event()

    @property
    def process_id(self) -> int:
        return self._process.pid

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not instances of asyncio's classes.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        # A FrameError closes the transport, which ends the host like any other death.
        for event in self._decoder.feed(data):
            self._on_event(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()
        self._on_end()

    def send(self, command: frames.Command) -> None:
        self.write(command)

    async def _reap(self) -> int:
        """The exit code. Polls: that needs no signal handler, no thread and no second loop."""
        kill_at = time.monotonic() + REAP_TIMEOUT
        while (code := self._process.poll()) is None:
            if time.monotonic() > kill_at:
                self._process.kill()
            await asyncio.sleep(REAP_INTERVAL)
        return code

    def write(self, message: frames.Begin | frames.Command) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._encoder.encode(message))

    async def stop(self) -> str:
        self.send(frames.Close())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), STOP_TIMEOUT)
        if not self._ended.is_set():
            self._process.kill()
        await self._ended.wait()
        code = await self._reap()
        return f"signal {-code}" if code < 0 else f"exit code {code}"
