"""Every backend against the slow reference, over poisoned caches."""

import pytest
import torch

from engine.attention.backend import AttentionShape
from engine.attention.cpu import CpuAttention, _group_by_length
from engine.attention.reference import ReferenceAttention
from engine.attention.select import make_attention
from tests.engine.plans import int32, make_plan

BLOCK = 16
NUM_BLOCKS = 128

# (tokens in this step, tokens before) of each row.
BATCHES = {
    "one token": [(1, 0)],
    "alone before a border": [(1, 14)],
    "alone at a border": [(1, 15)],
    "alone behind a border": [(1, 16)],
    "decoding together": [(1, 3), (1, 15), (1, 16), (1, 40)],
    "decoding at equal lengths": [(1, 31), (1, 31)],
    "fresh chunks": [(15, 0), (16, 0), (17, 0)],
    "chunks behind a prefix": [(5, 16), (20, 13), (2, 62)],
    "mixed": [(1, 20), (17, 0), (1, 5), (4, 30), (1, 47)],
    "very different lengths": [(1, 1000), (1, 3), (1, 4), (1, 900), (1, 7)],
}


def make_shape(group: int = 3, dtype: torch.dtype = torch.float32) -> AttentionShape:
    return AttentionShape(
        num_layers=2,
        num_heads=2 * group,
        num_kv_heads=2,
        head_dim=8,
        block_size=BLOCK,
        dtype=dtype,
        device=torch.device("cpu"),
    )


def assign_tables(batch: list[tuple[int, int]], *, consecutive: bool) -> list[list[int]]:
    order = list(range(1, NUM_BLOCKS * 2))
    if not consecutive:
        order = torch.randperm(len(order), generator=torch.Generator().manual_seed(1)).add(1)
        order = order.tolist()
    tables = []
    for tokens, before in batch:
        count = -(-(tokens + before) // BLOCK)
        tables.append(order[:count])
        order = order[count:]
    return tables


def fill_prefixes(backend, shape, batch, tables, generator):
    """Writes random keys and values of the tokens before the step, through the backend itself."""
    rows = [([0] * before, 0) for _, before in batch if before]
    if not rows:
        return
    plan = make_plan(rows, [t for t, (_, before) in zip(tables, batch, strict=True) if before])
    metadata = backend.prepare(plan)
    for layer in range(shape.num_layers):
        tokens = len(plan.input_ids)
        values = torch.randn(tokens, 2 * shape.num_kv_heads, shape.head_dim, generator=generator)
        backend.write(layer, values.to(shape.dtype), metadata)


def run(backend, shape, batch, *, consecutive=False):
    generator = torch.Generator().manual_seed(7)
    backend.allocate(NUM_BLOCKS * 2)
    backend.cache.fill_(float("nan"))
    tables = assign_tables(batch, consecutive=consecutive)
    fill_prefixes(backend, shape, batch, tables, generator)
    plan = make_plan([([0] * tokens, before) for tokens, before in batch], tables)
    metadata = backend.prepare(plan)
    results = []
    for layer in range(shape.num_layers):
        heads = shape.num_heads + 2 * shape.num_kv_heads
        qkv = torch.randn(len(plan.input_ids), heads, shape.head_dim, generator=generator)
        query, keys_values = qkv.to(shape.dtype).split(
            (shape.num_heads, heads - shape.num_heads), 1
        )
        backend.write(layer, keys_values, metadata)
        results.append(backend.attend(layer, query, keys_values, metadata))
    return torch.stack(results)


@pytest.mark.parametrize("consecutive", [False, True], ids=["scattered", "consecutive"])
@pytest.mark.parametrize("group", [1, 3, 4])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_cpu_attention_agrees_with_the_reference(batch, group, consecutive):
    shape = make_shape(group)
    expected = run(ReferenceAttention(shape), shape, batch, consecutive=consecutive)
    result = run(CpuAttention(shape), shape, batch, consecutive=consecutive)
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_cpu_attention_agrees_with_the_reference_in_bfloat16(batch):
    shape = make_shape(dtype=torch.bfloat16)
    expected = run(ReferenceAttention(shape), shape, batch)
    result = run(CpuAttention(shape), shape, batch)
    torch.testing.assert_close(result, expected, atol=0.03, rtol=0.03)


def test_the_reference_is_softmax_attention_over_the_visible_tokens():
    shape = make_shape(1)
    backend = ReferenceAttention(shape)
    backend.allocate(4)
    metadata = backend.prepare(make_plan([([0] * 3, 0)], [[2]]))
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 2, 8, generator=generator)
    keys_values = torch.randn(3, 4, 8, generator=generator)
    backend.write(0, keys_values, metadata)
    result = backend.attend(0, query, keys_values, metadata).view(3, 2, 8)
    scores = query[2, 1] @ keys_values[:, 1].T / 8**0.5
    torch.testing.assert_close(result[2, 1], scores.softmax(0) @ keys_values[:, 3])
    torch.testing.assert_close(result[0, 0], keys_values[0, 2])


@pytest.mark.parametrize("backend_class", [CpuAttention, ReferenceAttention])
def test_copied_and_imported_blocks_equal_their_source(backend_class):
    shape = make_shape()
    backend = backend_class(shape)
    backend.allocate(8)
    metadata = backend.prepare(make_plan([([0] * BLOCK, 0)], [[3]]))
    for layer in range(shape.num_layers):
        backend.write(layer, torch.randn(BLOCK, 4, 8), metadata)
    backend.prepare(make_plan([([0], 0)], [[6]], copy_blocks=((3, 5),)))
    contents = backend.export_block(3)
    assert contents.shape == (2, 2, 2, BLOCK, 8)
    assert contents.numel() * contents.itemsize == backend.bytes_per_block
    assert torch.equal(backend.export_block(5), contents)
    backend.import_block(1, contents)
    assert torch.equal(backend.export_block(1), contents)
    assert not torch.equal(backend.export_block(2), contents)


def test_an_exported_block_is_a_copy():
    backend = CpuAttention(make_shape())
    backend.allocate(2)
    contents = backend.export_block(0)
    backend.cache.fill_(1.0)
    assert (contents == 0).all()


def test_rows_of_similar_length_form_one_group_in_their_order():
    lengths = int32([30, 10, 40])
    groups = list(_group_by_length(int32([0, 1, 2]), lengths))
    assert [group.tolist() for group in groups] == [[0, 1, 2]]


def test_rows_of_very_different_length_form_groups():
    lengths = int32([3000, 10, 2900, 20])
    groups = list(_group_by_length(int32([0, 1, 2, 3]), lengths))
    assert [sorted(group.tolist()) for group in groups] == [[0, 2], [1, 3]]


def test_an_unknown_backend_is_refused_by_name():
    with pytest.raises(ValueError, match=r"attention_backend is 'flash'.*auto, cpu, reference"):
        make_attention("flash", make_shape())
