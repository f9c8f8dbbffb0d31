"""One HTTP exchange: what is known of the request, and the ways to answer it."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Receive, Scope, Send

from gateway.json_body import ClientGone

SCOPE_KEY = "tenon.exchange"
JSON_TYPE = "application/json"
EVENT_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


@dataclass(slots=True)
class Exchange:
    """One request and its answer.

    route: the path's pattern, for logs and metrics. times: of time.perf_counter. error_code: of the
    error object that was sent, also inside a stream.
    """

    request_id: str
    scope: Scope
    receive: Receive
    send: Send
    started_at: float = field(default_factory=time.perf_counter)
    first_byte_at: float | None = None
    route: str = "unknown"
    model: str = ""
    status: int | None = None
    error_code: str | None = None
    is_stream: bool = False

    @classmethod
    def of(cls, scope: Scope) -> "Exchange":
        """The exchange that the lifecycle put into the scope."""
        exchange = scope[SCOPE_KEY]
        assert isinstance(exchange, Exchange)
        return exchange

    async def respond(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        content_type: str = JSON_TYPE,
    ) -> None:
        """Sends a whole response."""
        fields = {
            "content-type": content_type,
            "content-length": str(len(body)),
            **(headers or {}),
        }
        await self.start_response(status, fields)
        await self.send({"type": "http.response.body", "body": body})

    async def start_response(self, status: int, headers: dict[str, str]) -> None:
        """Sends status and headers."""
        pairs = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": pairs})

    async def until_gone(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` and cancels it when the client goes away, which raises ClientGone.

        A watcher waits for the disconnect beside the work, so that nothing polls per message. The
        request's body must have been read.
        """
        worker = asyncio.ensure_future(work)
        watcher = asyncio.ensure_future(self._disconnect())
        try:
            await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
            if not worker.done():
                raise ClientGone
            await worker
        finally:
            worker.cancel()
            watcher.cancel()
            await asyncio.gather(worker, watcher, return_exceptions=True)

    async def _disconnect(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass


class EventStream:
    """Writes server-sent events; while nothing else is written, comments keep the line alive.

    An async context manager around the whole body. Raises ClientGone when the client has not read
    for `write_timeout` seconds.
    """

    def __init__(self, exchange: Exchange, ping_interval: float, write_timeout: float) -> None:
        self._exchange = exchange
        self._ping_interval = ping_interval
        self._write_timeout = write_timeout
        self._last_write = 0.0
        self._pinger: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "EventStream":
        self._exchange.is_stream = True
        await self._exchange.start_response(200, EVENT_STREAM_HEADERS)
        self._last_write = time.monotonic()
        self._pinger = asyncio.create_task(self._ping())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._pinger is not None
        self._pinger.cancel()
        await asyncio.gather(self._pinger, return_exceptions=True)

    async def write(self, data: bytes) -> None:
        """Sends events at once; nothing when there are none."""
        if data:
            self._last_write = time.monotonic()
            await self._send(data, more=True)

    async def end(self, data: bytes) -> None:
        """Sends the last events and ends the body."""
        assert self._pinger is not None
        self._pinger.cancel()
        await self._send(data, more=False)

    async def _send(self, data: bytes, more: bool) -> None:
        message = {"type": "http.response.body", "body": data, "more_body": more}
        try:
            async with asyncio.timeout(self._write_timeout):
                await self._exchange.send(message)
        except TimeoutError:
            raise ClientGone from None

    async def _ping(self) -> None:
        while True:
            silent = time.monotonic() - self._last_write
            if silent < self._ping_interval:
                await asyncio.sleep(self._ping_interval - silent)
            else:
                await self.write(b": ping\n\n")
