"""Every option of the servers, once: its name, variable, help and default.

A command takes a dataclass of options; its fields become the command's flags. For each, a flag
beats the environment variable, which beats the file of --config, which beats the default.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer

from tenon.cli.values import parse_size

_Options = TypeVar("_Options")

DEVICES = "auto, cpu or cuda"
DTYPES = "auto, bfloat16, float16 or float32"


def _option(flag: str, help_text: str, panel: str, **settings: Any) -> Any:
    variable = "TENON_" + flag.removeprefix("--").replace("-", "_").upper()
    return typer.Option(flag, envvar=variable, help=help_text, rich_help_panel=panel, **settings)


def _size(text: str) -> str:
    """Checks a size where it is typed; it travels on as text."""
    try:
        return str(parse_size(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _metrics_port(text: str) -> str:
    """Checks the port where it is typed; it travels on as text."""
    if text != "off" and not (text.isdecimal() and int(text) <= 65535):
        raise typer.BadParameter(f"{text!r} is neither a port from 0 to 65535 nor off")
    return text


def port_or_none(metrics_port: str) -> int | None:
    """The number of a checked --metrics-port, None for off."""
    return None if metrics_port == "off" else int(metrics_port)


MODEL_HELP = "smollm2, a stored model, a .gguf file, a model directory, or hf:owner/name[:file]."
_NETWORK, _MODEL, _ENGINE, _LOGS = "Network", "Model", "Engine", "Process"
_port: dict[str, Any] = {"min": 0, "max": 65535, "metavar": "PORT"}
_count: dict[str, Any] = {"min": 1, "metavar": "N"}

Model = Annotated[str, typer.Argument(metavar="[MODEL]", envvar="TENON_MODEL", help=MODEL_HELP)]
Host = Annotated[
    str, _option("--host", "Address to listen on; loopback only until there are keys.", _NETWORK)
]
HttpPort = Annotated[
    int, _option("--http-port", "REST port; 0 picks a free one.", _NETWORK, **_port)
]
GrpcPort = Annotated[
    int, _option("--grpc-port", "gRPC port; 0 picks a free one.", _NETWORK, **_port)
]
AdminPort = Annotated[
    int, _option("--admin-port", "Admin gRPC port; 0 picks a free one.", _NETWORK, **_port)
]
MetricsPort = Annotated[
    str,
    _option(
        "--metrics-port",
        "Prometheus port; 0 picks a free one, off serves no metrics.",
        _NETWORK,
        metavar="PORT|off",
        callback=lambda value: _metrics_port(value),
    ),
]
ServiceTarget = Annotated[
    str,
    _option("--service-target", "Where the gRPC service listens.", _NETWORK, metavar="HOST:PORT"),
]
ServedName = Annotated[
    str | None, _option("--served-model-name", "Name that requests use for the model.", _MODEL)
]
ChatTemplate = Annotated[
    str | None,
    _option("--chat-template", "A Jinja file that replaces the model's template.", _MODEL),
]
MaxModelLen = Annotated[
    int | None,
    _option(
        "--max-model-len",
        "Prompt plus output in tokens; the model's own if unset.",
        _MODEL,
        **_count,
    ),
]
Device = Annotated[str, _option("--device", f"{DEVICES}.", _ENGINE)]
Dtype = Annotated[str, _option("--dtype", f"Element type: {DTYPES}.", _ENGINE)]
KvCacheMemory = Annotated[
    str | None,
    _option(
        "--kv-cache-memory",
        "Memory of the KV cache, for example 2GiB; a share of what is free if unset.",
        _ENGINE,
        metavar="SIZE",
        callback=lambda value: None if value is None else _size(value),
    ),
]
MaxNumSeqs = Annotated[
    int, _option("--max-num-seqs", "Requests that run at the same time.", _ENGINE, **_count)
]
MaxNumBatchedTokens = Annotated[
    int, _option("--max-num-batched-tokens", "Tokens of one step.", _ENGINE, **_count)
]
NumThreads = Annotated[
    int | None,
    _option("--num-threads", "CPU threads; the physical cores if unset.", _ENGINE, **_count),
]
Isolation = Annotated[
    str,
    _option(
        "--engine-isolation",
        "Where the engine runs: thread, process, or auto (process on a GPU).",
        _ENGINE,
    ),
]
LogLevel = Annotated[str, _option("--log-level", "debug, info, warning or error.", _LOGS)]
LogFormat = Annotated[str, _option("--log-format", "console or json.", _LOGS)]
DrainGrace = Annotated[
    float,
    _option(
        "--drain-grace",
        "Seconds that running requests may take when stopped.",
        _LOGS,
        min=0,
        max=3600,
    ),
]


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Options of `tenon service`."""

    model: Model = "smollm2"
    host: Host = "127.0.0.1"
    grpc_port: GrpcPort = 50051
    admin_port: AdminPort = 50052
    metrics_port: MetricsPort = "9464"
    served_model_name: ServedName = None
    chat_template: ChatTemplate = None
    max_model_len: MaxModelLen = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    kv_cache_memory: KvCacheMemory = None
    max_num_seqs: MaxNumSeqs = 64
    max_num_batched_tokens: MaxNumBatchedTokens = 512
    num_threads: NumThreads = None
    engine_isolation: Isolation = "auto"
    log_level: LogLevel = "info"
    log_format: LogFormat = "console"
    drain_grace: DrainGrace = 30.0


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Options of `tenon gateway`."""

    host: Host = "127.0.0.1"
    http_port: HttpPort = 8000
    service_target: ServiceTarget = "127.0.0.1:50051"
    metrics_port: MetricsPort = "off"
    log_level: LogLevel = "info"
    log_format: LogFormat = "console"
    drain_grace: DrainGrace = 30.0


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of `tenon serve` and `tenon run`."""

    model: Model = "smollm2"
    host: Host = "127.0.0.1"
    http_port: HttpPort = 8000
    grpc_port: GrpcPort = 50051
    admin_port: AdminPort = 50052
    metrics_port: MetricsPort = "9464"
    served_model_name: ServedName = None
    chat_template: ChatTemplate = None
    max_model_len: MaxModelLen = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    kv_cache_memory: KvCacheMemory = None
    max_num_seqs: MaxNumSeqs = 64
    max_num_batched_tokens: MaxNumBatchedTokens = 512
    num_threads: NumThreads = None
    engine_isolation: Isolation = "auto"
    log_level: LogLevel = "info"
    log_format: LogFormat = "console"
    drain_grace: DrainGrace = 30.0

    def service(self, **changes: Any) -> ServiceOptions:
        """The part of the service."""
        return ServiceOptions(**{**_shared(self, ServiceOptions), **changes})

    def gateway(self, **changes: Any) -> GatewayOptions:
        """The part of the gateway; metrics are the service's."""
        shared = {**_shared(self, GatewayOptions), "metrics_port": "off"}
        return GatewayOptions(**{**shared, **changes})


def to_arguments(options: Any) -> list[str]:
    """The command line arguments that give these options again."""
    arguments: list[str] = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.name != "model" and value is not None:
            arguments += ["--" + field.name.replace("_", "-"), str(value)]
    model = getattr(options, "model", None)
    return arguments if model is None else [*arguments, "--", model]


def option_variables() -> set[str]:
    """Environment variables of all options, which a child that gets arguments must not see."""
    names = {field.name for kind in (ServeOptions, GatewayOptions) for field in _fields(kind)}
    return {f"TENON_{name.upper()}" for name in names | {"config"}}


def _fields(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)


def _shared(options: Any, kind: Callable[..., _Options]) -> dict[str, Any]:
    names = {field.name for field in _fields(kind)}
    return {name: getattr(options, name) for name in names if hasattr(options, name)}
