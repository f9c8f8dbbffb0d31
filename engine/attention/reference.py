"""The slow, obvious attention that every backend must agree with: loops over tokens and heads."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.attention.backend import AttentionShape
from engine.attention.cache import BlockCache
from engine.plan import StepPlan


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """The cache slots of all positions that each token sees, oldest first; its own is the last."""

    visible: tuple[tuple[int, ...], ...]


class ReferenceAttention:
    """Computes in float32, one token and one head at a time."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self.allocate(0)

    @property
    def bytes_per_block(self) -> int:
        return self._shape.bytes_per_block

    def allocate(self, num_blocks: int) -> None:
        self.cache = BlockCache(self._shape, num_blocks)

    def prepare(self, plan: StepPlan) -> ReferenceStep:
        if plan.copy_blocks:
            self.copy_blocks(plan.copy_blocks)
        size = self._shape.block_size
        visible = []
        for row, table in enumerate(plan.block_tables[0].tolist()):
            for token in range(plan.query_start[row], plan.query_start[row + 1]):
                seen = range(int(plan.positions[token]) + 1)
                visible.append(tuple(table[p // size] * size + p % size for p in seen))
        return ReferenceStep(tuple(visible))

    def write(self, layer: int, keys_values: torch.Tensor, metadata: ReferenceStep) -> None:
        for token, slots in enumerate(metadata.visible):
            self.cache.tokens[layer][:, slots[-1]] = keys_values[token]

    def attend(
        self, layer: int, query: torch.Tensor, keys_values: torch.Tensor, metadata: ReferenceStep
    ) -> torch.Tensor:
        shape = self._shape
        result = torch.empty_like(query)
        for token, slots in enumerate(metadata.visible):
            for head in range(shape.num_heads):
                kv_head = head // (shape.num_heads // shape.num_kv_heads)
                keys = self.cache.tokens[layer][kv_head, list(slots)].float()
                values = self.cache.tokens[layer][shape.num_kv_heads + kv_head, list(slots)].float()
                scores = keys @ query[token, head].float() / shape.head_dim**0.5
                result[token, head] = scores.softmax(0) @ values
        return result.flatten(1)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.cache.copy_blocks(pairs)

    def export_block(self, block: int) -> torch.Tensor:
        return self.cache.export_block(block)

    def import_block(self, block: int, contents: torch.Tensor) -> None:
        self.cache.import_block(block, contents)
