"""KV blocks: who holds them, which contents can be found again, and which is reused next.

Knows block ids and token ids, not tensors. The pool is owned by the scheduler.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class BlockKey(NamedTuple):
    """What a full block holds: its digest covers everything before it, too.

    `tokens` is kept to compare it on a hit, so that equal digests alone never share a block.
    """

    digest: bytes
    parent: bytes
    tokens: tuple[int, ...]


HashBlock = Callable[[bytes, Sequence[int], bytes, str], bytes]


def hash_block(parent: bytes, tokens: Sequence[int], salt: bytes, adapter: str) -> bytes:
    """Digest of a block, 16 bytes: over parent digest, tokens, salt and adapter."""
    digest = hashlib.blake2b(digest_size=16)
    name = adapter.encode()
    # Lengths first, so that no two different field splits are the same bytes.
    digest.update(array("I", (len(parent), len(salt), len(name))).tobytes())
    digest.update(parent + salt + name)
    digest.update(array("q", tokens).tobytes())
    return digest.digest()


def chain_key(
    parent: BlockKey | None,
    tokens: Sequence[int],
    salt: bytes,
    adapter: str = "",
    hasher: HashBlock = hash_block,
) -> BlockKey:
    """The key of the block that follows `parent` in a request's chain."""
    before = parent.digest if parent is not None else b""
    return BlockKey(hasher(before, tokens, salt, adapter), before, tuple(tokens))


@dataclass(slots=True, eq=False)
class Block:
    """One KV block. `previous` and `next` link the free list and mean nothing while it is held."""

    id: int
    refs: int = 0
    key: BlockKey | None = None
    previous: "Block | None" = None
    next: "Block | None" = None


class FreeList:
    """Doubly linked list through the blocks themselves: every operation is O(1).

    Front: freed longest ago, reused next. Back: freed last.
    """

    def __init__(self) -> None:
        # One ring with a sentinel, so that no operation has a special case for an end.
        self._ring = Block(id=-1)
        self._ring.previous = self._ring.next = self._ring
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push_back(self, block: Block) -> None:
        last = self._ring.previous
        assert last is not None
        block.previous, block.next = last, self._ring
        last.next = self._ring.previous = block
        self._length += 1

    def remove(self, block: Block) -> None:
        before, after = block.previous, block.next
        assert before is not None, "the block is not in the free list"
        assert after is not None
        before.next, after.previous = after, before
        block.previous = block.next = None
        self._length -= 1

    def pop_front(self) -> Block:
        first = self._ring.next
        assert first is not None
        assert first is not self._ring, "no free block"
        self.remove(first)
        return first

    def ids(self) -> list[int]:
        """Block ids from front to back."""
        found: list[int] = []
        block = self._ring.next
        while block is not None and block is not self._ring:
            found.append(block.id)
            block = block.next
        return found


class BlockPool:
    """All blocks of one KV group. A block is free when no table holds it.

    A free block keeps its contents, and can be found by `lookup`, until it is taken for others.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._cached: dict[bytes, Block] = {}
        self._free = FreeList()
        for block in self._blocks:
            self._free.push_back(block)

    @property
    def num_total(self) -> int:
        return len(self._blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return len(self._blocks) - len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that a lookup can find, held or free."""
        return len(self._cached)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def take(self, count: int) -> list[int]:
        """Takes the `count` blocks freed longest ago; what was cached in them is forgotten."""
        assert count <= self.num_free, f"{count} blocks wanted, {self.num_free} are free"
        taken = [self._free.pop_front() for _ in range(count)]
        for block in taken:
            self._forget(block)
            block.refs = 1
        return [block.id for block in taken]

    def share(self, block_ids: Iterable[int]) -> None:
        """Adds a holder to blocks that `lookup` found."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.refs == 0:
                self._free.remove(block)
            block.refs += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Takes a holder away. Last blocks go first: a prefix without its end is still of use."""
        for block_id in reversed(block_ids):
            block = self._blocks[block_id]
            assert block.refs > 0, f"block {block_id} is released twice"
            block.refs -= 1
            if block.refs == 0:
                self._free.push_back(block)

    def publish(self, block_id: int, key: BlockKey) -> None:
        """Makes a computed block findable. A second block with equal contents stays private."""
        block = self._blocks[block_id]
        assert block.refs > 0, f"block {block_id} is published while nobody holds it"
        assert block.key is None, f"block {block_id} is published twice"
        if key.digest not in self._cached:
            block.key = key
            self._cached[key.digest] = block

    def lookup(self, keys: Iterable[BlockKey]) -> list[int]:
        """The cached blocks of the longest prefix of a chain. Holds nothing: see `share`."""
        hits: list[int] = []
        for key in keys:
            block = self._cached.get(key.digest)
            if block is None or block.key != key:
                break
            hits.append(block.id)
        return hits

    def num_free_among(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks nobody holds."""
        return sum(self._blocks[block_id].refs == 0 for block_id in block_ids)

    def is_writable(self, block_id: int) -> bool:
        """Whether exactly one table holds the block and no lookup can find it."""
        block = self._blocks[block_id]
        return block.refs == 1 and block.key is None

    def reset(self) -> int:
        """Forgets the contents of all free blocks; returns how many were cached."""
        cached = [block for block in self._cached.values() if block.refs == 0]
        for block in cached:
            self._forget(block)
        return len(cached)

    def free_ids(self) -> list[int]:
        """Free blocks in the order in which they will be reused."""
        return self._free.ids()

    def cached_tokens(self, block_id: int) -> tuple[int, ...] | None:
        """The tokens under which a lookup can find the block; None if it cannot."""
        key = self._blocks[block_id].key
        return key.tokens if key is not None else None

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Asserts the invariants against all tables that hold blocks. Costs O(blocks)."""
        held = [0] * len(self._blocks)
        for table in tables:
            for block_id in table:
                held[block_id] += 1
        free = set(self._free.ids())
        assert len(free) == len(self._free), "the free list is broken"
        for block in self._blocks:
            assert block.refs == held[block.id], f"block {block.id} miscounts its holders"
            assert (block.refs == 0) == (block.id in free), f"block {block.id} is lost"
            if block.key is not None:
                assert self._cached[block.key.digest] is block
        assert sum(block.key is not None for block in self._blocks) == len(self._cached)
        assert self.num_used + self.num_free == self.num_total

    def _forget(self, block: Block) -> None:
        if block.key is not None:
            del self._cached[block.key.digest]
            block.key = None
