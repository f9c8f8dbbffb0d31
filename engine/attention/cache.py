"""The KV cache of the torch backends: one tensor for all layers, a run of blocks per head.

Consecutive blocks of one head lie side by side, so a row whose blocks are consecutive is a view.
"""

from collections.abc import Sequence

import numpy as np
import torch

from engine.attention.backend import AttentionShape
from engine.plan import Int32Array, StepPlan


class BlockCache:
    """Storage [num_layers, 2 * num_kv_heads, num_blocks * block_size, head_dim]."""

    def __init__(self, shape: AttentionShape, num_blocks: int) -> None:
        self._block_size = shape.block_size
        size = (shape.num_layers, 2 * shape.num_kv_heads, num_blocks * shape.block_size)
        tokens = torch.zeros(*size, shape.head_dim, dtype=shape.dtype, device=shape.device)
        # Per layer, so that no step pays for the indexing.
        # [2 * num_kv_heads, num_blocks * block_size, head_dim] each
        self.tokens: list[torch.Tensor] = list(tokens)
        runs = tokens.view(size[0], size[1] * num_blocks, shape.block_size * shape.head_dim)
        # [2 * num_kv_heads * num_blocks, block_size * head_dim] each: a block of one head is a run
        self.runs: list[torch.Tensor] = list(runs)
        first_runs = torch.arange(size[1], dtype=torch.int32) * num_blocks
        self._first_runs = first_runs[:, None].to(shape.device)
        self._all = tokens.view(*size[:2], num_blocks, shape.block_size, shape.head_dim)
        self._shape = shape

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies (source, target) blocks in all layers."""
        sources = [source for source, _ in pairs]
        targets = [target for _, target in pairs]
        self._all[:, :, targets] = self._all[:, :, sources]

    def runs_of(self, blocks: torch.Tensor) -> torch.Tensor:
        """Rows of `runs` that hold blocks [n] of int32, head after head: [2 * num_kv_heads * n].

        Gathering them is twice as fast as selecting blocks along the second dimension.
        """
        return (self._first_runs + blocks).view(-1)

    def clear(self, blocks: Int32Array) -> None:
        """Zeroes blocks in all layers."""
        self._all[:, :, blocks.tolist()] = 0.0

    def export_block(self, block: int) -> torch.Tensor:
        """[num_layers, 2, num_kv_heads, block_size, head_dim], a copy."""
        contents = self._all[:, :, block]  # [num_layers, 2 * num_kv_heads, block_size, head_dim]
        return contents.reshape(len(self.tokens), 2, -1, *contents.shape[2:]).clone()

    def import_block(self, block: int, contents: torch.Tensor) -> None:
        """Writes what `export_block` gave."""
        self._all[:, :, block] = contents.flatten(1, 2)

    def fill_(self, value: float) -> None:
        """Sets every value; tests poison the cache with it."""
        self._all.fill_(value)


def token_slots(plan: StepPlan, block_size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Where each of the step's tokens lives in the cache, [tokens] in int64."""
    lengths = np.diff(plan.query_start)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    blocks: Int32Array = plan.block_tables[0][rows, plan.positions // block_size]
    return blocks.astype(np.int64) * block_size + plan.positions % block_size
