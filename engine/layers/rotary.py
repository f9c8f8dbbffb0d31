"""Rotary position embedding: precomputed tables and the rotation, half-split form."""

import math

import torch

from engine.models.config import RopeConfig, RopeScaling


def inverse_frequencies(rope: RopeConfig) -> torch.Tensor:
    """Radians per position of each pair of dimensions, [dim / 2] in float32."""
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.scaling is RopeScaling.LINEAR:
        frequencies = frequencies / rope.factor
    elif rope.scaling is RopeScaling.LLAMA3:
        frequencies = _stretch_long_waves(frequencies, rope)
    if rope.frequency_factors:
        frequencies = frequencies / torch.tensor(rope.frequency_factors, dtype=torch.float32)
    return frequencies


def _stretch_long_waves(frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Llama 3: long waves are stretched by `factor`, short ones kept, a linear blend between."""
    turns = rope.original_max_len * frequencies / (2 * math.pi)  # turns within the trained context
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * frequencies / rope.factor + blend * frequencies


class Rotary:
    """Cosines and sines of all positions below max_len.

    The sine of the first half is stored negated, so that a rotation is
    x * cosine + swap_halves(x) * sine.
    """

    def __init__(
        self, rope: RopeConfig, max_len: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._dim = rope.dim
        positions = torch.arange(max_len, dtype=torch.float32)
        angles = torch.outer(positions, inverse_frequencies(rope))  # [max_len, dim / 2]
        cosine, sine = angles.cos(), angles.sin()
        # [max_len, 1, 2, dim / 2]
        self._cosine = torch.stack((cosine, cosine), 1)[:, None].to(device, dtype)
        self._sine = torch.stack((-sine, sine), 1)[:, None].to(device, dtype)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(cosine, sine) of positions [tokens], each [tokens, 1, 2, dim / 2]."""
        return self._cosine[positions], self._sine[positions]

    def rotate_(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> None:
        """Rotates x [tokens, heads, head_dim] in place; dimensions above `dim` stay."""
        tokens, heads = x.shape[:2]
        halves = x[..., : self._dim].view(tokens, heads, 2, self._dim // 2)
        swapped = halves.flip(2)
        halves.mul_(cosine).addcmul_(swapped, sine)
