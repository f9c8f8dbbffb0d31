"""How much memory a device still has for us."""

from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
# Assumed where the system does not say.
_UNKNOWN_SIZE = 4 << 30


def free_bytes(device: torch.device) -> int:
    """Memory that can be taken without swapping; a container's limit counts."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(_free_in_system(), _free_in_container())


def _free_in_system() -> int:
    if not _MEMINFO.exists():
        return _UNKNOWN_SIZE
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _UNKNOWN_SIZE


def _free_in_container() -> int:
    """By cgroup v2; without a limit, more than any system has."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = (_CGROUP / "memory.current").read_text().strip()
        return max(int(limit) - int(used), 0)
    except (OSError, ValueError):  # no cgroup v2 here, or the limit is "max"
        return 1 << 62
