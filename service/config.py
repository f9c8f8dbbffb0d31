"""Settings of one service process, validated when they are made."""

import ipaddress
from dataclasses import dataclass

from engine.config import EngineConfig

ENGINE_ISOLATIONS = ("auto", "thread", "process")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("console", "json")


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Settings of the service. A ValueError names the field.

    Ports: 0 picks a free one; metrics_port None serves no metrics.
    engine_isolation: auto takes a thread on CPU and a process on GPU.
    chat_template: path of a template that replaces the model's own.
    drain_grace: seconds that running requests may take after SIGTERM.
    engine_target: "module:function" that builds the engine, see EngineFactory.target.
    """

    engine: EngineConfig
    served_model_name: str
    host: str = "127.0.0.1"
    grpc_port: int = 50051
    admin_port: int = 50052
    metrics_port: int | None = 9464
    engine_isolation: str = "auto"
    chat_template: str | None = None
    log_level: str = "info"
    log_format: str = "console"
    drain_grace: float = 30.0
    engine_target: str = "engine.build:build_engine"

    def __post_init__(self) -> None:
        if not self.served_model_name:
            raise ValueError("served_model_name is empty; requests need a name to ask for")
        if not is_loopback(self.host):
            raise ValueError(
                f"host is {self.host!r}, which other machines can reach: "
                "keys are required to listen elsewhere than on loopback (127.0.0.1, ::1)"
            )
        for name in ("grpc_port", "admin_port", "metrics_port"):
            _check_port(name, getattr(self, name))
        _check_choice("engine_isolation", self.engine_isolation, ENGINE_ISOLATIONS)
        _check_choice("log_level", self.log_level, LOG_LEVELS)
        _check_choice("log_format", self.log_format, LOG_FORMATS)
        if not 0 <= self.drain_grace <= 3600:
            raise ValueError(f"drain_grace is {self.drain_grace}; allowed are 0 to 3600 seconds")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_port(name: str, port: int | None) -> None:
    if port is not None and not 0 <= port <= 65535:
        raise ValueError(f"{name} is {port}; allowed are 0 to 65535")


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")
