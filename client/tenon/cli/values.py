"""Values as people write them: sizes with units, ports, and how they are shown."""

import re
import socket

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"(?i)\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgt]?)(?P<binary>i?)b?\s*")


def parse_size(text: str) -> int:
    """Bytes of "2GiB", "512MB", "1.5g" or "4096". Raises ValueError.

    KB, MB, GB are powers of 1000 and KiB, MiB, GiB of 1024; a bare K, M, G is binary, as for
    memory everywhere.
    """
    match = _SIZE.fullmatch(text)
    if match is None or (match["binary"] and not match["unit"]):
        raise ValueError(f"{text!r} is not a size; write for example 2GiB, 512MiB or a byte count")
    is_decimal = text.rstrip().lower().endswith("b") and not match["binary"]
    size = int(
        float(match["number"]) * (1000 if is_decimal else 1024) ** _UNITS[match["unit"].lower()]
    )
    if size < 1:
        raise ValueError(f"{text!r} is not a size above zero")
    return size


def format_size(size: float) -> str:
    """Bytes for people: "98.4 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def format_count(count: int) -> str:
    """A count of parameters: "134.5M"."""
    for limit, suffix in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= limit:
            return f"{count / limit:.1f}{suffix}"
    return str(count)


def why_port_is_refused(host: str, port: int) -> str | None:
    """Why nobody could listen on host:port now, None if one could. Port 0 is always free."""
    if port == 0:
        return None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do, so that connections of a server that has just ended do not count as busy.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return (error.strerror or str(error)).lower()
    return None


def join_address(host: str, port: int) -> str:
    """host:port, with the brackets that IPv6 needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
