"""Runs the gateway in a process: binds its ports, serves, and drains streams on SIGTERM."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import structlog
import uvicorn
from prometheus_client import CollectorRegistry, start_http_server
from starlette.applications import Starlette
from structlog.typing import Processor

from gateway.app import build_app
from gateway.config import GatewayConfig
from gateway.http_protocol import BoundedHttpProtocol
from gateway.metrics import GatewayMetrics
from tenon import AsyncClient

READY_FD_VARIABLE = "TENON_READY_FD"
BACKLOG = 2048
EXIT_OK = 0
EXIT_USAGE = 2


def run_gateway(config: GatewayConfig) -> int:
    """Serves until SIGTERM or SIGINT and returns the exit code; 2 when a port cannot be had.

    When TENON_READY_FD names a file descriptor, one line of JSON with the ports is written to it.
    """
    configure_logs(config)
    metrics = GatewayMetrics(CollectorRegistry())
    try:
        listener = bind(config)
        metrics_port = _serve_metrics(config, metrics)
    except OSError as error:
        message = error.strerror or str(error)
        _report({"event": "failed", "message": message})
        print(f"tenon gateway: {message}", file=sys.stderr)
        return EXIT_USAGE
    client = AsyncClient(config.service_target, timeout=config.request_timeout)
    server = GatewayServer(config, build_app(config, client, metrics), listener, metrics_port)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listener]))
    return EXIT_OK


def bind(config: GatewayConfig) -> socket.socket:
    """The listening socket. Raises OSError that says which port and how to choose another."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _port_error(error, config.host, config.port, "--http-port") from None
    return listener


def configure_logs(config: GatewayConfig, stream: TextIO | None = None) -> None:
    """Sets up structlog for the process, to stderr. Prompts are never logged."""
    target = stream or sys.stderr
    renderers: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if config.log_json
        else [structlog.dev.ConsoleRenderer(colors=target.isatty())]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelName(config.log_level.upper())
        ),
        logger_factory=structlog.PrintLoggerFactory(target),
    )
    # Without a handler, logging would print uvicorn's warnings as bare lines between ours.
    uvicorn_log = logging.getLogger("uvicorn")
    uvicorn_log.handlers = [_LogOfUvicorn()]
    uvicorn_log.propagate = False


class _LogOfUvicorn(logging.Handler):
    """Writes what uvicorn logs into the gateway's own log."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger("tenon.gateway")
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info, source=record.name)


class GatewayServer(uvicorn.Server):
    """uvicorn with our sockets and signals: it says when it listens, and ends with an exit code."""

    def __init__(
        self,
        config: GatewayConfig,
        app: Starlette,
        listener: socket.socket,
        metrics_port: int | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedHttpProtocol,
                loop="auto",
                lifespan="on",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=max(1, round(config.drain_timeout)),
            )
        )
        self.http_port: int = listener.getsockname()[1]
        self._metrics_port = metrics_port

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts, then tells the supervisor and the log where."""
        await super().startup(sockets)
        event: dict[str, Any] = {"event": "listening", "http_port": self.http_port}
        if self._metrics_port is not None:
            event["gateway_metrics_port"] = self._metrics_port
        _report(event)
        structlog.get_logger("tenon.gateway").info(**event)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, without raising the signal again: a drained server has ended well."""
        signals = (signal.SIGTERM, signal.SIGINT)
        previous = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _serve_metrics(config: GatewayConfig, metrics: GatewayMetrics) -> int | None:
    if config.metrics_port is None:
        return None
    try:
        server, _ = start_http_server(config.metrics_port, config.host, metrics.registry)
    except OSError as error:
        raise _port_error(error, config.host, config.metrics_port, "--metrics-port") from None
    return int(server.server_port)


def _port_error(error: OSError, host: str, port: int, flag: str) -> OSError:
    reason = error.strerror or str(error)
    message = f"cannot listen on {host}:{port}: {reason}; choose another with {flag}"
    return OSError(error.errno, message)


def _report(event: dict[str, Any]) -> None:
    descriptor = os.environ.get(READY_FD_VARIABLE)
    if descriptor:
        os.write(int(descriptor), json.dumps(event).encode() + b"\n")
