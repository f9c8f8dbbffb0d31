"""A connection's memory and waiting do not depend on the client's good will."""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator

import pytest
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gateway import http_protocol
from gateway.config import GatewayConfig
from gateway.server import GatewayServer, bind, configure_logs

MEBIBYTE = 1024 * 1024


async def _echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server of the gateway's kind that answers with the size of the body."""
    config = GatewayConfig(port=0)
    listener = bind(config)
    app = Starlette(routes=[Route("/", _echo, methods=["GET", "POST"])])
    server = GatewayServer(config, app, listener)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    yield server.http_port
    server.should_exit = True
    await serving


async def _pour(writer: asyncio.StreamWriter, filler: bytes, size: int) -> None:
    for _ in range(size // len(filler)):
        writer.write(filler)
        await writer.drain()


async def _exchange(port: int, data: bytes) -> bytes:
    """All that comes back on a new connection until the server closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("start", "filler"),
    [
        (b"GET /", b"a" * 65536),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: ", b"a" * 65536),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"a: b\r\n" * 10000),
        (
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            b"a: b\r\n" * 10000,
        ),
    ],
    ids=["url", "one header", "many headers", "trailers"],
)
async def test_a_head_without_end_ends_the_connection(
    port: int, start: bytes, filler: bytes
) -> None:
    _reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(start)
    with pytest.raises(ConnectionError):
        await _pour(writer, filler, 64 * MEBIBYTE)
    writer.close()


async def test_a_head_that_is_too_long_is_refused_as_such(port: int) -> None:
    # All of it is one write of what the server reads before it answers, so nothing resets the line.
    answer = await _exchange(port, b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 131_100)
    assert answer.startswith(b"HTTP/1.1 431 ")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "request_headers_too_large"


async def test_what_is_no_http_gets_the_error_object(port: int) -> None:
    answer = await _exchange(port, b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


async def test_the_log_has_one_json_object_per_line_whatever_is_sent(port: int) -> None:
    log = io.StringIO()
    configure_logs(GatewayConfig(log_json=True), log)
    upgrade = b"Connection: close, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n"
    try:
        await _exchange(port, b"\x16\x03\x01 hello\r\n\r\n")
        await _exchange(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"\r\n")
    finally:
        structlog.reset_defaults()
        logging.getLogger("uvicorn").handlers.clear()
        logging.getLogger("uvicorn").propagate = True
    events = [json.loads(line)["event"] for line in log.getvalue().splitlines()]
    assert [event for event in events if event != "listening"] == ["Invalid HTTP request received."]


async def test_a_large_body_in_small_chunks_is_no_long_head(port: int) -> None:
    start = (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    answer = await _exchange(port, start + b"1\r\na\r\n" * 100_000 + b"0\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n100000")


@pytest.mark.parametrize("start", [b"", b"GET / HTT", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
async def test_a_head_that_does_not_come_ends_the_connection(
    port: int, start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.05)
    assert await _exchange(port, start) == b""
