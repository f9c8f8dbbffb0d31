"""Paged attention in plain torch operations, made for a CPU and correct on any device.

Decode rows are batched: their blocks are gathered with one index_select and all heads that share
a key head become the rows of one matrix product. Chunks of a prompt go to torch's fused kernel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from engine.attention.backend import AttentionShape
from engine.attention.cache import BlockCache, token_slots
from engine.plan import Int32Array, StepPlan

Int64Array = npt.NDArray[np.int64]

# Padding (in cached tokens) that costs as much as one more group of decode rows.
_GROUP_COST = 1536


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decode rows of similar length, padded to whole blocks of the longest.

    tokens: their places among the step's tokens, None when they are all of them, in order.
    runs: [2 * kv_heads * rows * blocks of the longest], where to gather from, row after row within
    a head; a shorter row repeats its own first block.
    bias: [1, rows, 1, length], 0 for visible positions and -inf for others; None without padding.
    gathered: [runs, block_size * head_dim], where each layer in turn gathers its keys and values.
    """

    tokens: torch.Tensor | None
    num_rows: int
    runs: torch.Tensor
    bias: torch.Tensor | None
    gathered: torch.Tensor


@dataclass(frozen=True, slots=True)
class Chunk:
    """One row on its own: a piece of a prompt, or a lonely decode row.

    [start, stop): its tokens. length: of its keys after this step. first_slot: where they begin in
    the cache if they are consecutive there, else `runs` is where to gather them from.
    bias: [tokens, length], lower-right causal; None with one token or without a cached part.
    """

    start: int
    stop: int
    length: int
    first_slot: int | None
    runs: torch.Tensor | None
    bias: torch.Tensor | None

    @property
    def is_fresh(self) -> bool:
        """Whether nothing of the row was cached before this step."""
        return self.stop - self.start == self.length


@dataclass(frozen=True, slots=True)
class CpuStep:
    """slots: [tokens], where the step's keys and values go."""

    slots: torch.Tensor
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]


class CpuAttention:
    """The backend for a CPU, and the fallback everywhere.

    A weight of 0 does not silence a NaN, so a row must never read what another one left behind:
    the rest of a block is cleared when its first token comes, and padding repeats own blocks.
    """

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape
        self._queries_per_kv_head = shape.num_heads // shape.num_kv_heads
        self._scale = shape.head_dim**-0.5
        self.allocate(0)

    @property
    def bytes_per_block(self) -> int:
        return self._shape.bytes_per_block

    def allocate(self, num_blocks: int) -> None:
        self.cache = BlockCache(self._shape, num_blocks)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.cache.copy_blocks(pairs)

    def export_block(self, block: int) -> torch.Tensor:
        return self.cache.export_block(block)

    def import_block(self, block: int, contents: torch.Tensor) -> None:
        self.cache.import_block(block, contents)

    def prepare(self, plan: StepPlan) -> CpuStep:
        if plan.copy_blocks:
            self.copy_blocks(plan.copy_blocks)
        num_tokens = np.diff(plan.query_start)
        self._clear_new_blocks(plan, num_tokens)
        slots = torch.from_numpy(token_slots(plan, self._shape.block_size))
        decoding = np.flatnonzero(num_tokens == 1)
        alone = list(np.flatnonzero(num_tokens > 1))
        groups = []
        for rows in _group_by_length(decoding, plan.seq_lens):
            if len(rows) == 1:
                alone.append(rows[0])
            else:
                groups.append(self._decode_group(plan, rows))
        chunks = tuple(self._chunk(plan, int(row)) for row in alone)
        return CpuStep(slots.to(self._shape.device), tuple(groups), chunks)

    def _clear_new_blocks(self, plan: StepPlan, num_tokens: Int32Array) -> None:
        """Clears the last block of each row that this step begins and does not fill."""
        size = self._shape.block_size
        filled = plan.seq_lens % size
        rows = np.flatnonzero((filled > 0) & (filled <= num_tokens))
        if len(rows):
            self.cache.clear(plan.block_tables[0][rows, plan.seq_lens[rows] // size])

    def _decode_group(self, plan: StepPlan, rows: Int64Array) -> DecodeGroup:
        device, size = self._shape.device, self._shape.block_size
        lengths = plan.seq_lens[rows][:, None]
        starts = np.arange(0, int(lengths.max()), size)  # of the blocks
        table = plan.block_tables[0][rows, : len(starts)]
        blocks = np.where(starts < lengths, table, table[:, :1]).reshape(-1)
        hidden = np.arange(len(starts) * size) >= lengths  # [rows, length]
        bias = None
        if hidden.any():
            bias = torch.zeros(hidden.shape, dtype=self._shape.dtype)
            bias.masked_fill_(torch.from_numpy(hidden), float("-inf"))
            bias = bias[None, :, None].to(device)
        tokens = None
        if not len(rows) == len(plan.seq_lens) == len(plan.input_ids):
            tokens = torch.from_numpy(plan.query_start[rows].astype(np.int64)).to(device)
        runs = self.cache.runs_of(torch.from_numpy(blocks).to(device))
        gathered = self.cache.runs[0].new_empty(len(runs), size * self._shape.head_dim)
        return DecodeGroup(tokens, len(rows), runs, bias, gathered)

    def _chunk(self, plan: StepPlan, row: int) -> Chunk:
        start, stop = int(plan.query_start[row]), int(plan.query_start[row + 1])
        length, size = int(plan.seq_lens[row]), self._shape.block_size
        table = plan.block_tables[0][row, : -(-length // size)]
        first_slot = runs = bias = None
        if (np.diff(table) == 1).all():
            first_slot = int(table[0]) * size
        else:
            runs = self.cache.runs_of(torch.from_numpy(table).to(self._shape.device))
        if 1 < stop - start < length:
            bias = torch.full((stop - start, length), float("-inf"), dtype=self._shape.dtype)
            bias = bias.triu_(length - (stop - start) + 1).to(self._shape.device)
        return Chunk(start, stop, length, first_slot, runs, bias)

    def write(self, layer: int, keys_values: torch.Tensor, metadata: CpuStep) -> None:
        self.cache.tokens[layer].index_copy_(1, metadata.slots, keys_values.transpose(0, 1))

    def attend(
        self, layer: int, query: torch.Tensor, keys_values: torch.Tensor, metadata: CpuStep
    ) -> torch.Tensor:
        if len(metadata.groups) == 1 and metadata.groups[0].tokens is None:
            return self._attend_group(layer, query, metadata.groups[0])
        if len(metadata.chunks) == 1 and not metadata.groups:
            return self._attend_chunk(layer, query, keys_values, metadata.chunks[0])
        result = query.new_empty(query.shape[0], query.shape[1] * query.shape[2])
        for group in metadata.groups:
            assert group.tokens is not None
            attended = self._attend_group(layer, query[group.tokens], group)
            result.index_copy_(0, group.tokens, attended)
        for chunk in metadata.chunks:
            span = slice(chunk.start, chunk.stop)
            result[span] = self._attend_chunk(layer, query[span], keys_values[span], chunk)
        return result

    def _attend_group(self, layer: int, query: torch.Tensor, group: DecodeGroup) -> torch.Tensor:
        rows, kv_heads = group.num_rows, self._shape.num_kv_heads
        shared, dim = self._queries_per_kv_head, self._shape.head_dim
        gathered = group.gathered
        torch.index_select(self.cache.runs[layer], 0, group.runs, out=gathered)
        # [2, kv_heads * rows, length, dim]: each pair of kv head and row is one product
        keys, values = gathered.view(2, kv_heads * rows, -1, dim)
        folded = query.view(rows, kv_heads, shared, dim).transpose(0, 1)
        folded = folded.reshape(kv_heads * rows, shared, dim).mul(self._scale)
        scores = torch.bmm(folded, keys.transpose(1, 2))  # [kv_heads * rows, shared, length]
        if group.bias is not None:
            scores.view(kv_heads, rows, shared, -1).add_(group.bias)
        attended = torch.bmm(scores.softmax(-1), values)
        return attended.view(kv_heads, rows, shared, dim).transpose(0, 1).reshape(rows, -1)

    def _attend_chunk(
        self, layer: int, query: torch.Tensor, keys_values: torch.Tensor, chunk: Chunk
    ) -> torch.Tensor:
        # [2 * kv_heads, length, dim]
        seen = keys_values.transpose(0, 1) if chunk.is_fresh else self._cached(layer, chunk)
        keys, values = seen.view(2, 1, -1, *seen.shape[1:]).unbind(0)
        attended = F.scaled_dot_product_attention(
            query[None].transpose(1, 2),
            keys,
            values,
            attn_mask=chunk.bias,
            is_causal=chunk.is_fresh and chunk.length > 1,
            enable_gqa=self._queries_per_kv_head > 1,
        )
        return attended.transpose(1, 2).reshape(query.shape[0], -1)

    def _cached(self, layer: int, chunk: Chunk) -> torch.Tensor:
        """[2 * kv_heads, length, dim]; a view if the blocks are consecutive."""
        if chunk.first_slot is not None:
            return self.cache.tokens[layer].narrow(1, chunk.first_slot, chunk.length)
        assert chunk.runs is not None
        gathered = self.cache.runs[layer].index_select(0, chunk.runs)
        padded = gathered.view(2 * self._shape.num_kv_heads, -1, self._shape.head_dim)
        return padded.narrow(1, 0, chunk.length)


def _group_by_length(rows: Int64Array, seq_lens: npt.NDArray[np.int32]) -> Iterator[Int64Array]:
    """Splits decode rows where less padding is worth one more group; one group keeps its order."""
    if len(rows) == 0:
        return
    ordered = rows[np.argsort(-seq_lens[rows], kind="stable")]
    lengths = seq_lens[ordered]
    first = 0
    for i in range(1, len(ordered)):
        if (lengths[first] - lengths[i]) * (len(ordered) - i) > _GROUP_COST:
            yield ordered[first:i]
            first = i
    yield rows if first == 0 else ordered[first:]
