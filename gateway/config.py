"""The gateway's configuration: made once at the edge, checked there, then frozen."""

import ipaddress
from dataclasses import dataclass
from typing import Literal

UnknownFields = Literal["reject", "ignore"]
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
LOG_LEVELS = ("debug", "info", "warning", "error")


class ConfigError(ValueError):
    """A setting is out of range; the message names it and what is allowed."""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Settings of the REST gateway. Raises ConfigError.

    port, metrics_port: 0 picks a free one; no metrics are served when metrics_port is None.
    service_target: host:port or unix:path of the gRPC service.
    allowed_hosts: accepted Host headers besides loopback's, which stops DNS rebinding.
    max_body_bytes: longer request bodies are refused with 413.
    max_outputs: most outputs per prompt (n). max_prompts: most prompts of one completion.
    request_timeout, write_timeout, ping_interval, drain_timeout: seconds. A write times out when
    the client reads nothing for that long; pings are sent while a stream is silent.
    unknown_fields: what becomes of request fields that the API does not have.
    log_json: one JSON object per line instead of text for people.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    service_target: str = "127.0.0.1:50051"
    metrics_port: int | None = None
    allowed_hosts: tuple[str, ...] = ()
    max_body_bytes: int = 4 * 1024 * 1024
    max_outputs: int = 8
    max_prompts: int = 64
    request_timeout: float = 600.0
    write_timeout: float = 60.0
    ping_interval: float = 15.0
    drain_timeout: float = 30.0
    unknown_fields: UnknownFields = "reject"
    log_level: str = "info"
    log_json: bool = False

    def __post_init__(self) -> None:
        if not _is_loopback(self.host):
            raise ConfigError(
                f"host is {self.host!r}: without keys the gateway listens on loopback only"
            )
        for name in ("port", "metrics_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port <= 65535:
                raise ConfigError(f"{name} is {port}; allowed are 0 to 65535")
        if self.unknown_fields not in ("reject", "ignore"):
            raise ConfigError(f"unknown_fields is {self.unknown_fields!r}; allowed: reject, ignore")
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(f"log_level is {self.log_level!r}; allowed: {', '.join(LOG_LEVELS)}")
        self._check_positive()

    def _check_positive(self) -> None:
        for name in (
            "max_body_bytes",
            "max_outputs",
            "max_prompts",
            "request_timeout",
            "write_timeout",
            "ping_interval",
            "drain_timeout",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")

    def accepts_host(self, header: str) -> bool:
        """Whether a Host header names this server; HTTP/1.0 has none."""
        if not header:
            return True
        name = header.rsplit(":", 1)[0] if not header.endswith("]") else header
        return name.lower() in LOOPBACK_NAMES or name in self.allowed_hosts


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
