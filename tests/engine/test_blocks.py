"""The block pool: reuse order, sharing, lookup by contents, invariants."""

import pytest

from engine.blocks import BlockKey, BlockPool, chain_key, hash_block


def keys(tokens: list[int], *, salt: bytes = b"", adapter: str = "") -> list[BlockKey]:
    """Keys of the full blocks of two tokens."""
    chain: list[BlockKey] = []
    for start in range(0, len(tokens) - 1, 2):
        parent = chain[-1] if chain else None
        chain.append(chain_key(parent, tokens[start : start + 2], salt, adapter))
    return chain


def cached_pool(tokens: list[int], num_blocks: int = 4) -> BlockPool:
    """A pool in which nobody holds anything and `tokens` are cached."""
    pool = BlockPool(num_blocks, block_size=2)
    chain = keys(tokens)
    taken = pool.take(len(chain))
    for block_id, key in zip(taken, chain, strict=True):
        pool.publish(block_id, key)
    pool.release(taken)
    return pool


def test_freed_blocks_are_reused_oldest_first_and_a_requests_last_block_before_its_first() -> None:
    pool = BlockPool(4, block_size=2)
    first, second = pool.take(2), pool.take(2)
    pool.release(second)
    pool.release(first)
    assert pool.take(4) == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2)]
)
def test_tokens_need_whole_blocks(num_tokens: int, num_blocks: int) -> None:
    assert BlockPool(4, block_size=16).blocks_for(num_tokens) == num_blocks


@pytest.mark.parametrize(
    ("wanted", "num_hits"),
    [
        ([1, 2, 3, 4, 5, 6], 3),
        ([1, 2, 3, 4, 9, 9], 2),
        ([9, 9, 3, 4, 5, 6], 0),
        ([3, 4], 0),
        ([1, 2, 3], 1),
    ],
)
def test_a_lookup_finds_the_longest_cached_prefix(wanted: list[int], num_hits: int) -> None:
    pool = cached_pool([1, 2, 3, 4, 5, 6])
    assert pool.lookup(keys(wanted)) == [0, 1, 2][:num_hits]


@pytest.mark.parametrize("other", [{"salt": b"x"}, {"adapter": "x"}])
def test_blocks_of_another_salt_or_adapter_are_not_found(other: dict[str, bytes]) -> None:
    assert cached_pool([1, 2]).lookup(keys([1, 2], **other)) == []


def test_salt_and_adapter_cannot_stand_in_for_each_other() -> None:
    assert hash_block(b"", [1], b"ab", "") != hash_block(b"", [1], b"a", "b")


def test_equal_digests_of_different_tokens_do_not_share_a_block() -> None:
    def constant(parent: bytes, tokens: object, salt: bytes, adapter: str) -> bytes:
        return b"same"

    pool = BlockPool(2, block_size=2)
    (block,) = pool.take(1)
    pool.publish(block, chain_key(None, [1, 2], b"", hasher=constant))
    assert pool.lookup([chain_key(None, [1, 2], b"", hasher=constant)]) == [block]
    assert pool.lookup([chain_key(None, [3, 4], b"", hasher=constant)]) == []


def test_a_shared_block_is_free_only_after_its_last_holder() -> None:
    pool = cached_pool([1, 2], num_blocks=1)
    pool.share([0])
    pool.share([0])
    pool.check([[0], [0]])
    pool.release([0])
    assert (pool.num_used, pool.num_free) == (1, 0)
    pool.release([0])
    assert (pool.num_used, pool.num_free) == (0, 1)
    pool.check([])


def test_a_reused_block_is_no_longer_found() -> None:
    pool = cached_pool([1, 2, 3, 4], num_blocks=2)
    pool.take(1)
    # The last block of the prefix went first.
    assert pool.lookup(keys([1, 2, 3, 4])) == [0]


def test_a_second_block_with_equal_contents_stays_private() -> None:
    pool = cached_pool([1, 2], num_blocks=2)
    (twin,) = pool.take(1)
    pool.publish(twin, keys([1, 2])[0])
    assert pool.cached_tokens(twin) is None
    assert pool.cached_tokens(0) == (1, 2)
    assert pool.lookup(keys([1, 2])) == [0]


def test_reset_forgets_what_nobody_holds_and_says_how_many() -> None:
    pool = cached_pool([1, 2, 3, 4])
    pool.share([0])
    assert pool.reset() == 1
    assert pool.lookup(keys([1, 2, 3, 4])) == [0]
    pool.release([0])
    assert pool.reset() == 1
    assert pool.num_cached == 0


def test_only_a_block_with_one_holder_and_no_key_may_be_written() -> None:
    pool = cached_pool([1, 2], num_blocks=2)
    (own,) = pool.take(1)
    assert pool.is_writable(own)
    pool.share([own])
    assert not pool.is_writable(own)
    pool.share([0])
    assert not pool.is_writable(0)


def test_releasing_twice_and_a_wrong_table_are_noticed() -> None:
    pool = BlockPool(2, block_size=2)
    taken = pool.take(1)
    with pytest.raises(AssertionError):
        pool.check([])
    pool.release(taken)
    with pytest.raises(AssertionError):
        pool.release(taken)
    with pytest.raises(AssertionError):
        pool.take(3)
