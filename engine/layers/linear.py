"""Linear layers with the epilogues that a decoder needs: SiLU and product.

The only file that knows oneDNN's prepacked weights. `make_linear` probes them and falls back to
plain torch, so both give the same values up to rounding.
"""

from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F

# The number of rows that oneDNN optimises the weight layout for; other numbers work too.
_PACKING_ROWS = 128


class Linear(Protocol):
    """x [tokens, inputs] -> x W^T + b [tokens, outputs]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the product."""

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        """Returns silu(product)."""

    def multiply(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """Returns product * factor, [tokens, outputs]."""


class PlainLinear:
    """Any device and dtype; the epilogues work in place on the product."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = weight  # [outputs, inputs]
        self._bias = bias  # [outputs]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self(x), inplace=True)

    def multiply(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return self(x).mul_(factor)


class PackedLinear:
    """Weights in oneDNN's blocked layout, epilogues fused into the product.

    One call costs about 50 us whatever its size, so a fused epilogue is free and a separate one
    is not.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKING_ROWS)
        self._bias = bias
        self._unary = torch.ops.mkldnn._linear_pointwise.default
        self._binary = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._unary(x, self._weight, self._bias, "none", [], "")  # type: ignore[no-any-return]

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return self._unary(x, self._weight, self._bias, "swish", [], "")  # type: ignore[no-any-return]

    def multiply(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return self._binary(x, factor, self._weight, self._bias, "mul")  # type: ignore[no-any-return]


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN's prepacked linear works here in `dtype` and agrees with torch."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(32, 64, generator=generator).to(dtype)
    x = torch.randn(3, 64, generator=generator).to(dtype)
    try:
        packed = PackedLinear(weight).multiply(x, torch.full((3, 32), 2.0, dtype=dtype))
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    expected = 2 * F.linear(x.float(), weight.float())
    return torch.allclose(packed.float(), expected, rtol=0.05, atol=0.5)


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Takes the weight over, in the fastest form that works here."""
    if weight.device.type == "cpu" and can_pack(weight.dtype):
        return PackedLinear(weight.contiguous(), bias)
    return PlainLinear(weight, bias)
