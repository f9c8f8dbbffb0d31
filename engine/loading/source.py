"""What every checkpoint reader gives: a config, and tensors under the decoder's own names.

The decoder's names and shapes (weights are [outputs, inputs]):

    embed.weight                    [vocab_size, hidden_size]
    layers.N.attn_norm.weight       [hidden_size]
    layers.N.q.weight, .k, .v       [heads * head_dim, hidden_size], rows in half-split RoPE order
    layers.N.q.bias, .k, .v         [heads * head_dim], with qkv_bias
    layers.N.o.weight               [hidden_size, num_heads * head_dim]
    layers.N.ffn_norm.weight        [hidden_size]
    layers.N.gate.weight, .up       [intermediate_size, hidden_size]
    layers.N.down.weight            [hidden_size, intermediate_size]
    norm.weight                     [hidden_size]
    head.weight                     [vocab_size, hidden_size], absent with tied_head
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.models.config import ModelConfig


class CheckpointError(ValueError):
    """A checkpoint is damaged or not supported. The message names the file and the field."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """The model's own sampling defaults (generation_config.json); None where it has none."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class CheckpointSource(Protocol):
    """An opened checkpoint."""

    @property
    def config(self) -> ModelConfig:
        """The decoder that it describes."""

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """The model's own sampling defaults."""

    @property
    def num_parameters(self) -> int:
        """Number of stored values, a tied head counted once."""

    @property
    def digest(self) -> str:
        """Hex digest that changes with the weights: of the tensor index and of sampled bytes."""

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields (name, tensor) one by one in float32, bfloat16 or float16, so that the peak is
        one tensor above the final model. Every expected tensor comes exactly once.
        """

    def close(self) -> None:
        """Unmaps the file."""
