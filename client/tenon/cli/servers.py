"""The commands that serve: serve, run, service, gateway."""

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from tenon.cli.commands import takes_options
from tenon.cli.failures import CommandError
from tenon.cli.options import (
    GatewayOptions,
    ServeOptions,
    ServiceOptions,
    port_or_none,
)
from tenon.cli.values import parse_size, why_port_is_refused
from tenon.models.progress import ConsoleProgress
from tenon.models.resolve import resolve_model

if TYPE_CHECKING:
    from gateway.config import GatewayConfig
    from service.config import ServiceConfig

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl
_PORT_FLAGS = ("http_port", "grpc_port", "admin_port", "metrics_port")


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    panel = "Serve"
    app.command(rich_help_panel=panel)(serve)
    app.command(rich_help_panel=panel)(run)
    app.command(rich_help_panel=panel)(service)
    app.command(rich_help_panel=panel)(gateway)


@takes_options(ServeOptions)
def serve(options: ServeOptions) -> None:
    """Serve a model over REST and gRPC; fetch it first if need be."""
    raise typer.Exit(_supervise(options, with_chat=False))


@takes_options(ServeOptions)
def run(options: ServeOptions) -> None:
    """Serve a model and chat with it here. Without a terminal the same as serve."""
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    raise typer.Exit(_supervise(options, with_chat=has_terminal))


@takes_options(ServiceOptions)
def service(options: ServiceOptions) -> None:
    """Run the gRPC service with the engine, without the gateway."""
    _end_with_parent()
    config = service_config(options)
    check_ports(options)
    _run_server("service.server", "run_service", config)


@takes_options(GatewayOptions)
def gateway(options: GatewayOptions) -> None:
    """Run the REST gateway in front of a gRPC service."""
    _end_with_parent()
    config = gateway_config(options)
    check_ports(options)
    _run_server("gateway.server", "run_gateway", config)


def service_config(options: ServiceOptions) -> "ServiceConfig":
    """The service's config of options. Fetches the model; raises CommandError."""
    config, engine_config = server_module("service.config"), server_module("engine.config")
    values = {
        "host": options.host,
        "grpc_port": options.grpc_port,
        "admin_port": options.admin_port,
        "metrics_port": port_or_none(options.metrics_port),
        "engine_isolation": options.engine_isolation,
        "chat_template": _existing_file("--chat-template", options.chat_template),
        "log_level": options.log_level,
        "log_format": options.log_format,
        "drain_grace": options.drain_grace,
    }
    engine_values = {
        "device": options.device,
        "dtype": options.dtype,
        "max_model_len": options.max_model_len,
        "kv_cache_bytes": parse_size(options.kv_cache_memory) if options.kv_cache_memory else None,
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "num_threads": options.num_threads,
    }
    try:
        # Once before the model is there: nobody should wait for a download to learn of a typo.
        engine = engine_config.EngineConfig(model_path=options.model, **engine_values)
        config.ServiceConfig(engine=engine, served_model_name="unknown yet", **values)
        model = resolve_model(options.model, ConsoleProgress(Console(stderr=True)))
        engine = engine_config.EngineConfig(model_path=str(model.path), **engine_values)
        name = options.served_model_name if options.served_model_name is not None else model.name
        made: ServiceConfig = config.ServiceConfig(engine=engine, served_model_name=name, **values)
    except ValueError as error:
        raise CommandError(str(error)) from None
    return made


def gateway_config(options: GatewayOptions) -> "GatewayConfig":
    """The gateway's config of options. Raises CommandError."""
    config = server_module("gateway.config")
    try:
        made: GatewayConfig = config.GatewayConfig(
            host=options.host,
            port=options.http_port,
            service_target=options.service_target,
            metrics_port=port_or_none(options.metrics_port),
            drain_timeout=max(options.drain_grace, 0.001),  # the gateway wants it above 0
            log_level=options.log_level,
            log_json=options.log_format == "json",
        )
    except ValueError as error:
        raise CommandError(str(error)) from None
    return made


def check_ports(options: ServeOptions | ServiceOptions | GatewayOptions) -> None:
    """Raises CommandError when a port is busy, or given twice."""
    seen: dict[int, str] = {}
    for name in _PORT_FLAGS:
        value = getattr(options, name, None)
        port = port_or_none(str(value)) if value is not None else None
        if not port:
            continue
        flag = "--" + name.replace("_", "-")
        if port in seen:
            raise CommandError(f"{flag} and {seen[port]} are both {port}")
        seen[port] = flag
        reason = why_port_is_refused(options.host, port)
        if reason is not None:
            raise CommandError(
                f"port {port} of {options.host} cannot be used: {reason}; "
                f"choose another with {flag} or TENON_{name.upper()} (0 picks a free one); "
                "tenon ps tells whether another Tenon runs here"
            )


def server_module(name: str) -> Any:
    """A module of tenon-server. Raises CommandError where it is not installed."""
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise CommandError(
            f"this needs tenon-server, which is not installed ({error.name} is missing): "
            "pip install tenon-server"
        ) from None


def _supervise(options: ServeOptions, *, with_chat: bool) -> int:
    from tenon.cli.supervisor import supervise

    check_ports(options)
    gateway_config(options.gateway())
    config = service_config(options.service())
    path, name = config.engine.model_path, config.served_model_name
    return supervise(options, path, name, with_chat=with_chat)


def _run_server(module: str, function: str, config: Any) -> None:
    result = getattr(server_module(module), function)(config)
    raise typer.Exit(result if isinstance(result, int) else 0)


def _existing_file(flag: str, path: str | None) -> str | None:
    if path is not None and not Path(path).is_file():
        raise CommandError(f"{flag} {path}: there is no such file")
    return path


def _end_with_parent() -> None:
    """Under a supervisor: get SIGTERM if it is killed, so that no server is left behind (Linux)."""
    if "TENON_READY_FD" not in os.environ or not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the call
        raise typer.Exit(1)
