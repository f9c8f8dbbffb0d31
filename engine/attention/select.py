"""The one place that chooses an attention backend."""

from typing import Any

from engine.attention.backend import AttentionBackend, AttentionShape
from engine.attention.cpu import CpuAttention
from engine.attention.reference import ReferenceAttention

_BACKENDS: dict[str, type[CpuAttention] | type[ReferenceAttention]] = {
    "auto": CpuAttention,
    "cpu": CpuAttention,
    "reference": ReferenceAttention,
}


def make_attention(name: str, shape: AttentionShape) -> AttentionBackend[Any]:
    """Raises ValueError for an unknown attention_backend."""
    if name not in _BACKENDS:
        raise ValueError(f"attention_backend is {name!r}; allowed are {', '.join(_BACKENDS)}")
    return _BACKENDS[name](shape)
