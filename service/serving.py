"""The server: ports, health, reflection, draining. One instance per process and event loop."""

import asyncio
import time
from dataclasses import dataclass

import grpc
import structlog
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from service.admin import AdminServicer
from service.admission import Admission
from service.channel_options import server_channel_options
from service.generation import STALL_SECONDS
from service.health import SERVICE_NAME, HealthMonitor, StatusListener
from service.interceptors import CallInterceptor
from service.metrics import MetricsServer, ServiceMetrics, serve_metrics
from service.registry import GenerationRegistry
from service.runtime import ModelRuntime, ServedModels
from service.servicer import GenerationServicer
from tenon.admin.v1 import admin_service_pb2_grpc
from tenon.v1 import generation_service_pb2_grpc

ADMIN_NAME = "tenon.admin.v1.AdminService"
HEALTH_NAME = "grpc.health.v1.Health"
# What is left of the grace for failing the requests that are still running then.
DRAIN_MARGIN_SECONDS = 2.0
STOP_SECONDS = 1.0

_log = structlog.get_logger("tenon.server")


class PortError(Exception):
    """A port cannot be bound. The message names the setting and the port."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where to listen. 0 picks a free port; metrics None serves none."""

    host: str = "127.0.0.1"
    grpc: int = 0
    admin: int = 0
    metrics: int | None = None


class Service:
    """Serves one runtime. Call `listen`, `load`, then `drain` and `close`.

    on_status: told the engine's status a few times a second.
    """

    def __init__(
        self,
        runtime: ModelRuntime,
        *,
        on_status: StatusListener | None = None,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self.runtime = runtime
        self.metrics = ServiceMetrics()
        self.registry = GenerationRegistry(time.monotonic)
        self.monitor = HealthMonitor(runtime, self.registry, self.metrics, on_status)
        models = ServedModels({runtime.name: runtime})
        admission = Admission(models, self.registry, self.metrics, stall_seconds=stall_seconds)
        self._data_plane = GenerationServicer(models, admission, self.registry, self.metrics)
        self._admin = AdminServicer(runtime, self.registry, self.drain)
        self._servers: list[grpc.aio.Server] = []
        self._metrics_server: MetricsServer | None = None

    async def listen(self, ports: Ports) -> Ports:
        """Binds all ports and serves; requests are refused until `load` is done.

        Returns the ports that were bound. Raises PortError.
        """
        data, admin = self._new_server(), self._new_server()
        generation_service_pb2_grpc.add_GenerationServiceServicer_to_server(self._data_plane, data)
        health_pb2_grpc.add_HealthServicer_to_server(self.monitor.servicer, data)
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(self._admin, admin)
        # Both listen on loopback only, where reflection tells nothing that is secret.
        reflection.enable_server_reflection((SERVICE_NAME, HEALTH_NAME), data)
        reflection.enable_server_reflection((ADMIN_NAME,), admin)
        bound_grpc = _bind(data, ports.host, ports.grpc, "grpc_port")
        bound_admin = _bind(admin, ports.host, ports.admin, "admin_port")
        bound_metrics = self._serve_metrics(ports)
        for server in (data, admin):
            await server.start()
            self._servers.append(server)
        await self.monitor.start()
        return Ports(ports.host, bound_grpc, bound_admin, bound_metrics)

    async def load(self) -> None:
        """Loads the model and reports ready. Raises what loading raised."""
        await self.runtime.start()
        await self.monitor.refresh()

    async def drain(self, grace: float) -> None:
        """Refuses new generations and lets the running ones finish, at most `grace` seconds.

        The ports stay open meanwhile: a refused caller is told to go elsewhere.
        """
        self.registry.is_draining = True
        await self.monitor.refresh()
        failed = await self.registry.drain(max(grace - DRAIN_MARGIN_SECONDS, grace / 2))
        _log.info("drained", unfinished=failed)

    async def close(self) -> None:
        """Stops serving and the engine, in this order."""
        await self.monitor.close()
        await asyncio.gather(*(server.stop(STOP_SECONDS) for server in self._servers))
        for generation in self.registry.generations:
            generation.close()
        await self.runtime.engine.close()
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.close)

    def _new_server(self) -> grpc.aio.Server:
        return grpc.aio.server(
            interceptors=[CallInterceptor(self.metrics)], options=server_channel_options()
        )

    def _serve_metrics(self, ports: Ports) -> int | None:
        if ports.metrics is None:
            return None
        try:
            self._metrics_server = serve_metrics(self.metrics, ports.host, ports.metrics)
        except OSError as error:
            raise _port_error(ports.host, ports.metrics, "metrics_port") from error
        return self._metrics_server.port


def _bind(server: grpc.aio.Server, host: str, port: int, setting: str) -> int:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise _port_error(host, port, setting) from error
    if bound == 0:
        raise _port_error(host, port, setting)
    return bound


def _port_error(host: str, port: int, setting: str) -> PortError:
    return PortError(
        f"{setting} {port} on {host} cannot be bound: another program listens there, or it is "
        "not allowed; choose another port, or 0 for a free one"
    )
