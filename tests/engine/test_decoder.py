"""The decoder's logits against transformers, on tiny random checkpoints of every kind."""

import pytest
import torch

from engine.layers.linear import PackedLinear, PlainLinear, can_pack, make_linear
from engine.layers.rotary import Rotary, inverse_frequencies
from engine.layers.weights import assemble
from engine.loading.expected import expected_tensors
from engine.loading.source import CheckpointError
from engine.models.config import ModelConfig, RopeConfig, RopeScaling
from tests.engine.decoders import CPU, load_decoder, load_reference, random_ids
from tests.engine.plans import make_plan
from tests.support.checkpoints import (
    LINEAR_ROPE,
    LLAMA3_ROPE,
    make_tiny_llama,
    make_tiny_qwen2,
    write_gguf,
)

CHECKPOINTS = {
    "llama": (make_tiny_llama, {}),
    "tied llama": (make_tiny_llama, {"tied": True}),
    "llama with llama3 rope": (make_tiny_llama, {"rope_scaling": LLAMA3_ROPE}),
    "llama with linear rope": (make_tiny_llama, {"rope_scaling": LINEAR_ROPE}),
    "qwen2": (make_tiny_qwen2, {}),
    "tied qwen2": (make_tiny_qwen2, {"tied": True}),
}
TABLE = list(range(20, 0, -1))


@pytest.fixture(scope="module", params=CHECKPOINTS, ids=CHECKPOINTS.keys())
def checkpoint(request, tmp_path_factory):
    make, options = CHECKPOINTS[request.param]
    return make(tmp_path_factory.mktemp("checkpoint"), **options)


@torch.inference_mode()
def reference_logits(path, ids):
    return load_reference(path)(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_logits_equal_those_of_transformers(checkpoint, backend):
    loaded = load_decoder(checkpoint, backend=backend)
    ids = random_ids(200, loaded.config.vocab_size)
    logits = loaded.all_logits(make_plan([(ids, 0)], [TABLE]))
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, reference_logits(checkpoint, ids), atol=1e-4, rtol=1e-4)


def test_logits_do_not_depend_on_chunks(checkpoint):
    loaded = load_decoder(checkpoint)
    ids = random_ids(60, loaded.config.vocab_size)
    parts, start = [], 0
    for length in (17, 20, 1, 1, 15, 6):
        plan = make_plan([(ids[start : start + length], start)], [TABLE])
        parts.append(loaded.all_logits(plan))
        start += length
    expected = reference_logits(checkpoint, ids)
    torch.testing.assert_close(torch.cat(parts), expected, atol=1e-4, rtol=1e-4)


def test_rows_of_a_batch_do_not_see_each_other(checkpoint):
    loaded = load_decoder(checkpoint)
    vocab_size = loaded.config.vocab_size
    texts = [random_ids(length, vocab_size, seed=length) for length in (5, 33, 18)]
    tables = [[1, 2], [3, 4, 5], [7, 6]]
    prefix = [(ids[:-2], 0) for ids in texts]
    loaded.all_logits(make_plan(prefix, tables))
    steps = [make_plan([([ids[k]], len(ids) + k) for ids in texts], tables) for k in (-2, -1)]
    logits = [loaded.all_logits(plan) for plan in steps]
    for row, ids in enumerate(texts):
        expected = reference_logits(checkpoint, ids)[-2:]
        result = torch.stack([part[row] for part in logits])
        torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


def test_frequency_factors_of_a_gguf_equal_llama3_scaling(tmp_path):
    directory = make_tiny_llama(tmp_path / "hf", rope_scaling=LLAMA3_ROPE)
    loaded = load_decoder(write_gguf(directory, tmp_path / "tiny.gguf"))
    assert loaded.config.rope.frequency_factors
    ids = random_ids(200, loaded.config.vocab_size)
    logits = loaded.all_logits(make_plan([(ids, 0)], [TABLE]))
    torch.testing.assert_close(logits, reference_logits(directory, ids), atol=1e-4, rtol=1e-4)


def test_only_wanted_logits_are_computed(tmp_path):
    loaded = load_decoder(make_tiny_llama(tmp_path))
    ids = random_ids(20, loaded.config.vocab_size)
    plan = make_plan([(ids, 0)], [TABLE])
    everything = loaded.all_logits(plan)
    some = loaded.logits(plan, torch.tensor([4, 19]))
    torch.testing.assert_close(some, everything[[4, 19]], atol=1e-5, rtol=1e-5)
    assert loaded.logits(plan, torch.tensor([], dtype=torch.long)).shape == (0, 320)


def test_bfloat16_logits_stay_close(checkpoint):
    loaded = load_decoder(checkpoint, dtype=torch.bfloat16)
    ids = random_ids(50, loaded.config.vocab_size)
    logits = loaded.all_logits(make_plan([(ids, 0)], [TABLE]))
    expected = reference_logits(checkpoint, ids)
    error = (logits - expected).norm() / expected.norm()
    assert error < 0.05


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("kind", [PlainLinear, PackedLinear])
def test_linear_epilogues_equal_separate_operations(kind, rows, with_bias):
    dtype = torch.bfloat16
    if kind is PackedLinear and not can_pack(dtype):
        pytest.skip("oneDNN's prepacked linear does not work here")
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, 48, generator=generator).to(dtype) for n in (64, rows))
    bias = torch.randn(64, generator=generator).to(dtype) if with_bias else None
    other = torch.randn(rows, 64, generator=generator).to(dtype)
    kept = other.clone()
    with torch.inference_mode():
        linear = kind(weight, bias)
        product = torch.nn.functional.linear(
            x.float(), weight.float(), None if bias is None else bias.float()
        )
        expected = {
            linear(x): product,
            linear.silu(x): torch.nn.functional.silu(product),
            linear.multiply(x, other): product * other.float(),
        }
        for result, value in expected.items():
            torch.testing.assert_close(result.float(), value, atol=0.1, rtol=0.02)
    assert torch.equal(other, kept)


def test_linears_fall_back_to_plain_torch(monkeypatch):
    monkeypatch.setattr("engine.layers.linear.can_pack", lambda dtype: False)
    assert isinstance(make_linear(torch.zeros(4, 4, dtype=torch.bfloat16)), PlainLinear)


def test_rotation_leaves_dimensions_above_its_own():
    rotary = Rotary(RopeConfig(theta=100.0, dim=4), 8, torch.float32, CPU)
    x = torch.randn(3, 2, 6)
    rotated = x.clone()
    rotary.rotate_(rotated, *rotary.at(torch.tensor([0, 5, 7])))
    assert torch.equal(rotated[..., 4:], x[..., 4:])
    assert torch.equal(rotated[0], x[0])
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1))
    assert not torch.allclose(rotated[1], x[1])


def test_linear_scaling_divides_frequencies():
    plain = inverse_frequencies(RopeConfig(theta=100.0, dim=8))
    scaled = inverse_frequencies(
        RopeConfig(theta=100.0, dim=8, scaling=RopeScaling.LINEAR, factor=4.0)
    )
    torch.testing.assert_close(scaled, plain / 4)


TINY = ModelConfig(
    family="llama",
    num_layers=1,
    hidden_size=8,
    intermediate_size=16,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    vocab_size=10,
    max_model_len=32,
    norm_eps=1e-5,
    rope=RopeConfig(theta=100.0, dim=4),
    tied_head=False,
    qkv_bias=True,
)


def tiny_tensors():
    return {name: torch.zeros(shape) for name, shape in expected_tensors(TINY)}


def load_tiny(tensors):
    return assemble(TINY, tensors, torch.float32, CPU, lambda share: None)


def test_a_complete_checkpoint_is_accepted_and_reports_progress():
    shares = []
    assemble(TINY, tiny_tensors().items(), torch.float32, CPU, shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_missing_tensor_is_an_error():
    tensors = tiny_tensors()
    del tensors["layers.0.k.bias"]
    with pytest.raises(CheckpointError, match=r"layers\.0\.k\.bias is missing"):
        load_tiny(tensors.items())


def test_an_unexpected_tensor_is_an_error():
    tensors = {**tiny_tensors(), "layers.1.q.weight": torch.zeros(8, 8)}
    with pytest.raises(CheckpointError, match=r"layers\.1\.q\.weight is not expected"):
        load_tiny(tensors.items())


def test_a_repeated_tensor_is_an_error():
    pairs = list(tiny_tensors().items())
    with pytest.raises(CheckpointError, match=r"norm\.weight appears twice"):
        load_tiny([pairs[1], *pairs])


def test_a_wrong_shape_is_an_error():
    tensors = tiny_tensors() | {"layers.0.gate.weight": torch.zeros(8, 16)}
    with pytest.raises(CheckpointError, match=r"gate\.weight has shape \[8, 16\], expected"):
        load_tiny(tensors.items())
