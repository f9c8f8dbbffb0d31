"""What a service tells the program that started it: one JSON object a line, on a descriptor."""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from service.engine_client import EngineState, EngineStatus
from service.runtime import ModelRuntime
from service.serving import Ports

READY_FD_VARIABLE = "TENON_READY_FD"

Announce = Callable[[Mapping[str, Any]], None]


def announcer(environment: Mapping[str, str]) -> Announce:
    """Writes to the descriptor that the environment names; to nowhere without one.

    Raises ValueError if the variable is not a number.
    """
    value = environment.get(READY_FD_VARIABLE)
    if value is None:
        return lambda _event: None
    if not value.isdecimal():
        raise ValueError(f"{READY_FD_VARIABLE} is {value!r}; it must be a file descriptor")
    return lambda event: _write(int(value), event)


class ProgressReporter:
    """Announces the progress of loading, each change once."""

    def __init__(self, announce: Announce) -> None:
        self._announce = announce
        self._last: tuple[str, float] | None = None

    def __call__(self, status: EngineStatus) -> None:
        """Takes the status."""
        if status.state is not EngineState.LOADING or not status.stage:
            return
        current = (status.stage, round(status.progress, 3))
        if current != self._last:
            self._last = current
            event = {"event": "progress", "stage": current[0], "progress": current[1]}
            self._announce(event)


def listening_event(ports: Ports) -> dict[str, Any]:
    """The ports that were bound."""
    return {
        "event": "listening",
        "grpc_port": ports.grpc,
        "admin_port": ports.admin,
        "metrics_port": ports.metrics,
    }


def ready_event(runtime: ModelRuntime) -> dict[str, Any]:
    """The model's facts, for a banner."""
    info = runtime.info
    return {
        "event": "ready",
        "model": runtime.name,
        "family": info.family,
        "num_parameters": info.num_parameters,
        "device": info.device,
        "dtype": info.dtype,
        "quantization": info.quantization,
        "max_model_len": info.max_model_len,
        "vocab_size": info.vocab_size,
        "kv_cache_tokens": info.num_blocks * info.block_size,
        "fingerprint": info.fingerprint,
        "has_chat_template": runtime.assets.template is not None,
    }


def _write(descriptor: int, event: Mapping[str, Any]) -> None:
    try:
        os.write(descriptor, json.dumps(event).encode() + b"\n")
    except BrokenPipeError:
        return  # who started us has gone or does not listen any more; serving goes on
