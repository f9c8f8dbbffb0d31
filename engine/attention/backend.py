"""What every attention backend does. It alone knows the layout of the KV cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from engine.plan import StepPlan

Metadata = TypeVar("Metadata")


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes that a backend is built for. dtype: of queries, keys, values and results."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_block(self) -> int:
        """Keys and values of one block in all layers, unquantised."""
        values = 2 * self.num_layers * self.num_kv_heads * self.block_size * self.head_dim
        return values * self.dtype.itemsize


class AttentionBackend(Protocol[Metadata]):
    """Owns the KV cache of one runner.

    keys_values is [tokens, 2 * num_kv_heads, head_dim], the key heads first. Within a step, `write`
    of a layer comes before its `attend`. What lies in the cache beyond a row's length, or in the
    padding of its block table, never influences a result.
    """

    @property
    def bytes_per_block(self) -> int:
        """Memory of one block in all layers."""

    def allocate(self, num_blocks: int) -> None:
        """Makes the cache; what it held is lost."""

    def prepare(self, plan: StepPlan) -> Metadata:
        """Computes once per step what all layers need, and copies the plan's blocks."""

    def write(self, layer: int, keys_values: torch.Tensor, metadata: Metadata) -> None:
        """Stores the step's keys and values."""

    def attend(
        self, layer: int, query: torch.Tensor, keys_values: torch.Tensor, metadata: Metadata
    ) -> torch.Tensor:
        """Causal attention of query [tokens, num_heads, head_dim] over each row's keys.

        Returns [tokens, num_heads * head_dim].
        """

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies (source, target) blocks in all layers."""

    def export_block(self, block: int) -> torch.Tensor:
        """The contents of a block, [num_layers, 2, num_kv_heads, block_size, head_dim]."""

    def import_block(self, block: int, contents: torch.Tensor) -> None:
        """Writes what `export_block` of an equal backend gave."""
