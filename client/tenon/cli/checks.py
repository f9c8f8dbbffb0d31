"""What doctor looks at. Each check gives findings and changes nothing."""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tenon.cli.inspection import installed_version
from tenon.cli.options import ServeOptions, port_or_none
from tenon.cli.values import format_size, why_port_is_refused
from tenon.errors import TenonError
from tenon.models.registry import built_in_models
from tenon.models.store import ModelStore, models_directory
from tenon.models.wheels import file_sha256
from tenon.sync import Client

_MIN_PYTHON = (3, 11)
_MIN_TORCH = (2, 11)
_MIN_MEMORY = 2 * 1024**3  # the default model with its cache, and torch itself
_MIN_DISK = 500 * 1000**2
_CPU_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


@dataclass(frozen=True, slots=True)
class Finding:
    """level: ok, note (works, but worth knowing) or wrong. advice: what to do, "" for nothing."""

    level: str
    subject: str
    detail: str
    advice: str = ""


def check_python() -> Iterator[Finding]:
    """The interpreter."""
    level = "ok" if sys.version_info >= _MIN_PYTHON else "wrong"
    advice = "" if level == "ok" else "install Python 3.11 or later"
    yield Finding(level, "Python", f"{platform.python_version()} ({sys.executable})", advice)


def check_torch() -> Iterator[Finding]:
    """torch and the devices that it sees."""
    if installed_version("tenon-server") is None:
        yield Finding("note", "tenon-server", "not installed", "this machine can be a client only")
        return
    try:
        import torch
    except Exception as error:  # a broken torch fails in many ways
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        yield Finding("wrong", "torch", f"cannot be imported: {reason}", "install it again")
        return
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    is_old = version < _MIN_TORCH
    threads = f"{torch.get_num_threads()} threads"
    advice = "install torch 2.11 or later" if is_old else ""
    level = "wrong" if is_old else "ok"
    yield Finding(level, "torch", f"{torch.__version__}, {threads}", advice)
    if torch.cuda.is_available():
        yield Finding("ok", "GPU", torch.cuda.get_device_name())
    else:
        yield Finding("ok", "GPU", "none that torch can use; the CPU is used")


def check_cpu() -> Iterator[Finding]:
    """What the CPU can do that the engine is fast with."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    flags = _cpu_flags()
    if flags is None:
        yield Finding("ok", "CPU", f"{platform.machine()}, {cores} cores")
        return
    found = [name for name in _CPU_FEATURES if name in flags]
    yield Finding("ok", "CPU", f"{cores} cores, {', '.join(found) or 'no AVX'}")
    if platform.machine() == "x86_64" and "avx512_bf16" not in flags:
        yield Finding(
            "note", "CPU", "has no bfloat16 instructions", "--dtype float32 may be faster here"
        )


def check_memory() -> Iterator[Finding]:
    """Memory that is free now, within the limit of a container."""
    available = _available_memory()
    if available is None:
        return
    is_short = available < _MIN_MEMORY
    advice = "close other programs, or set --kv-cache-memory" if is_short else ""
    detail = f"{format_size(available)} available"
    yield Finding("note" if is_short else "ok", "memory", detail, advice)


def check_disk() -> Iterator[Finding]:
    """Room for models."""
    directory = models_directory()
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{format_size(free)} free for {directory}"
    if not os.access(existing, os.W_OK):
        yield Finding("wrong", "disk", f"{existing} cannot be written", "set TENON_MODEL_DIR")
    elif free < _MIN_DISK:
        yield Finding("wrong", "disk", detail, "free some, or set TENON_MODEL_DIR to another disk")
    else:
        yield Finding("ok", "disk", detail)


def check_ports() -> Iterator[Finding]:
    """The ports that serve takes unless told otherwise."""
    options = ServeOptions()
    ports = {
        "--http-port": options.http_port,
        "--grpc-port": options.grpc_port,
        "--admin-port": options.admin_port,
        "--metrics-port": port_or_none(options.metrics_port) or 0,
    }
    reasons = {flag: why_port_is_refused(options.host, port) for flag, port in ports.items()}
    busy = {flag: reason for flag, reason in reasons.items() if reason is not None}
    if not busy:
        yield Finding("ok", "ports", f"{', '.join(map(str, ports.values()))} are free")
    elif _serves_tenon(f"{options.host}:{options.grpc_port}"):
        yield Finding("ok", "ports", "a Tenon server is running here")
    else:
        for flag, reason in busy.items():
            advice = f"end what uses it, or choose another with {flag}"
            yield Finding("wrong", f"port {ports[flag]}", str(reason), advice)


def check_models() -> Iterator[Finding]:
    """The files of the store; the hashes of those that are known."""
    registered = built_in_models()
    store = ModelStore(models_directory())
    stored = {model.name: model for model in store.list()}
    for name in registered.keys() - stored.keys():
        yield Finding("note", f"model {name}", "not here yet", f"tenon pull {name} fetches it")
    for name, model in stored.items():
        known = registered.get(name)
        if not model.path.exists():
            advice = f"tenon rm {name} removes it"
            yield Finding("wrong", f"model {name}", f"{model.path} leads nowhere", advice)
        elif known is not None and file_sha256(model.path) != known.sha256:
            advice = f"tenon pull {name} fetches it again"
            yield Finding("wrong", f"model {name}", f"{model.path} is damaged", advice)
        elif not _looks_like_a_model(model.path):
            advice = f"tenon rm {name} removes it"
            yield Finding("wrong", f"model {name}", f"{model.path} is not a GGUF file", advice)
        else:
            hash_note = ", hash checked" if known is not None else ""
            yield Finding("ok", f"model {name}", f"{format_size(model.size)}{hash_note}")


def check_packages() -> Iterator[Finding]:
    """The distributions that Tenon depends on."""
    versions: dict[str, str | None] = {}
    for distribution in ("tenon", "tenon-server"):
        if installed_version(distribution) is not None:
            versions |= {name: installed_version(name) for name in _requirements(distribution)}
    missing = [name for name, version in versions.items() if version is None]
    for name in missing:
        yield Finding("wrong", "packages", f"{name} is missing", f"pip install {name}")
    if not missing:
        shown = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        yield Finding("ok", "packages", shown)


ALL_CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_python,
    check_torch,
    check_cpu,
    check_memory,
    check_disk,
    check_ports,
    check_models,
    check_packages,
)


def _requirements(distribution: str) -> list[str]:
    """Names of what a distribution needs here, without its extras."""
    required = metadata.requires(distribution) or []
    plain = [line for line in required if "extra ==" not in line]
    names = [line.split(";")[0].strip() for line in plain]
    return [_name_of(line) for line in names if _name_of(line) not in ("torch", "tenon")]


def _name_of(requirement: str) -> str:
    for position, character in enumerate(requirement):
        if not (character.isalnum() or character in "-_."):
            return requirement[:position]
    return requirement


def _serves_tenon(target: str) -> bool:
    try:
        with Client(target) as client:
            client.list_models()
    except TenonError as error:
        return bool(error.reason)  # loading, for example: only Tenon sends a reason
    return True


def _looks_like_a_model(path: Path) -> bool:
    if path.is_dir():
        return True
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _cpu_flags() -> set[str] | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((set(line.split()) for line in lines if line.startswith("flags")), None)


def _available_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    available = next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    return min(available, *_container_room()) if _container_room() else available


def _container_room() -> list[int]:
    """What the control group still allows, if it limits memory."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return []
    return [] if limit == "max" else [int(limit) - used]
