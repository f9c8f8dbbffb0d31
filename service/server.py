"""One service process from its config to its exit code."""

import asyncio
import os
import signal
import sys

import structlog

from service.announcements import (
    Announce,
    ProgressReporter,
    announcer,
    listening_event,
    ready_event,
)
from service.assets import load_assets
from service.config import ServiceConfig
from service.engine_client import EngineFactory
from service.engines import create_engine_client
from service.logs import configure_logs
from service.runtime import ModelRuntime
from service.serving import PortError, Ports, Service

EXIT_OK = 0
EXIT_FAILED = 1
# What the user can set right: a port, a path, a model.
EXIT_USAGE = 2
SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = structlog.get_logger("tenon.server")


def run_service(config: ServiceConfig) -> int:
    """Serves until SIGTERM or SIGINT. Returns the exit code: 0, 1 if it failed, 2 for bad input."""
    configure_logs(config.log_level, config.log_format)
    announce = announcer(os.environ)
    if sys.platform == "win32":
        return asyncio.run(serve(config, announce))
    import uvloop  # not there on Windows

    return int(uvloop.run(serve(config, announce)))


async def serve(config: ServiceConfig, announce: Announce) -> int:
    """Serves until a signal comes; a second signal ends it at once.

    announce: told what happens, see service.announcements.
    """
    stop = _watch_signals()
    factory = EngineFactory(config.engine, config.engine_target)
    engine = create_engine_client(factory, config.engine_isolation)
    runtime = ModelRuntime(
        config.served_model_name,
        engine,
        lambda: load_assets(config.engine.model_path, config.chat_template),
    )
    service = Service(runtime, on_status=ProgressReporter(announce))
    try:
        return await _serve(service, config, announce, stop)
    finally:
        await service.close()


async def _serve(
    service: Service, config: ServiceConfig, announce: Announce, stop: "StopSignals"
) -> int:
    wanted = Ports(config.host, config.grpc_port, config.admin_port, config.metrics_port)
    try:
        ports = await service.listen(wanted)
        announce(listening_event(ports))
        _log.info("listening", host=ports.host, grpc=ports.grpc, admin=ports.admin)
        if not await _load(service, stop):
            return EXIT_OK
    except (PortError, ValueError, OSError) as error:
        return _fail(announce, str(error), EXIT_USAGE)
    except Exception as error:
        _log.exception("loading failed")
        return _fail(announce, f"the engine could not be started: {error}", EXIT_FAILED)
    announce(ready_event(service.runtime))
    _log.info("ready", model=service.runtime.name)
    await stop.first.wait()
    await _drain(service, config.drain_grace, stop)
    return EXIT_OK


async def _load(service: Service, stop: "StopSignals") -> bool:
    """Loads unless a signal comes before; returns whether it is loaded."""
    loading = asyncio.create_task(service.load())
    stopping = asyncio.create_task(stop.first.wait())
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not loading.done():
        loading.cancel()
        return False
    await loading
    return True


async def _drain(service: Service, grace: float, stop: "StopSignals") -> None:
    _log.info("draining", grace=grace, running=len(service.registry.generations))
    draining = asyncio.create_task(service.drain(grace))
    hurrying = asyncio.create_task(stop.second.wait())
    await asyncio.wait({draining, hurrying}, return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, hurrying):
        task.cancel()


def _fail(announce: Announce, message: str, code: int) -> int:
    announce({"event": "failed", "message": message})
    print(f"tenon service: {message}", file=sys.stderr)
    return code


class StopSignals:
    """Set when the first and when the second signal to stop has come."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def note(self) -> None:
        """Called for each signal."""
        if self.first.is_set():
            self.second.set()
        self.first.set()


def _watch_signals() -> StopSignals:
    stop = StopSignals()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.note)
    return stop
