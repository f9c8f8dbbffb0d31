"""The runner on a tiny checkpoint, and what build refuses."""

import numpy as np
import pytest
import torch

from engine.build import build_runner, choose_dtype
from engine.config import EngineConfig
from engine.plan import LAST_SAMPLED
from tests.engine.decoders import load_reference, random_ids
from tests.engine.plans import make_plan
from tests.support.checkpoints import make_tiny_llama


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), max_model_len=256)


def config_of(path, **fields):
    return EngineConfig(model_path=str(path), device="cpu", dtype="float32", **fields)


def build(path, **fields):
    return build_runner(config_of(path, **fields), lambda stage, share: None)


def run(runner, plan):
    runner.forward(plan)
    return runner.sample(plan, None).wait()


@torch.inference_mode()
def greedy_reference(path, ids, count):
    model = load_reference(path)
    for _ in range(count):
        ids = [*ids, int(model(torch.tensor([ids])).logits[0, -1].argmax())]
    return ids[-count:]


def test_a_sampled_token_feeds_the_next_step_of_its_slot(checkpoint):
    runner, _ = build(checkpoint)
    texts = [random_ids(length, 320, seed=length) for length in (9, 4)]
    tables, slots = [[1, 2], [3, 4]], [5, 2]
    plan = make_plan([(ids, 0) for ids in texts], tables, slots=slots)
    outputs = [run(runner, plan).token_ids]
    for step in range(3):
        # The rows change places; each is found by its slot.
        order = [1, 0] if step % 2 == 0 else [0, 1]
        rows = [([LAST_SAMPLED], len(texts[row]) + step) for row in order]
        plan = make_plan(rows, [tables[row] for row in order], slots=[slots[row] for row in order])
        outputs.append(run(runner, plan).token_ids[order])
    for row, ids in enumerate(texts):
        tokens = [int(output[row]) for output in outputs]
        assert tokens == greedy_reference(checkpoint, ids, 4)


def test_a_step_without_sampling_rows_gives_an_empty_result(checkpoint):
    runner, _ = build(checkpoint)
    result = run(runner, make_plan([(random_ids(5, 320), 0)], [[0]], sample=[]))
    assert result.token_ids.dtype == np.int32
    assert len(result.token_ids) == 0
    assert result.logprobs == ()


def test_only_sampling_rows_get_tokens(checkpoint):
    runner, _ = build(checkpoint)
    ids = random_ids(12, 320)
    plan = make_plan([(ids[:5], 0), (ids, 0), (ids[:3], 0)], [[0], [1], [2]], sample=[1])
    result = run(runner, plan)
    assert result.token_ids.tolist() == greedy_reference(checkpoint, ids, 1)


def test_building_reports_facts_and_progress(checkpoint):
    stages = []
    config = config_of(checkpoint, max_model_len=64, max_num_seqs=4)
    runner, info = build_runner(config, lambda stage, share: stages.append((stage, share)))
    assert (info.family, info.device, info.dtype) == ("llama", "cpu", "float32")
    assert (info.max_model_len, info.vocab_size) == (64, 320)
    assert info.num_blocks == runner.num_blocks == 4 * 4  # 4 rows of 4 blocks are all it can use
    assert ("loading weights", 1.0) in stages
    assert stages[-1] == ("warming up", 1.0)


def test_the_fingerprint_changes_with_weights_and_dtype(checkpoint, tmp_path):
    other = make_tiny_llama(tmp_path, seed=1, max_model_len=256)
    prints = [build(checkpoint)[1].fingerprint, build(other)[1].fingerprint]
    half = EngineConfig(model_path=str(checkpoint), device="cpu", dtype="bfloat16")
    prints.append(build_runner(half, lambda stage, share: None)[1].fingerprint)
    assert len(set(prints)) == 3
    assert build(checkpoint)[1].fingerprint == prints[0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_model_len": 300}, "max_model_len is 300, more than the 256 of the model"),
        ({"kv_cache_bytes": 100}, "kv_cache_bytes is 100, less than one block"),
        (
            {"kv_cache_bytes": 1 << 60},
            r"kv_cache_bytes is \d+, more than the \d+ bytes that are free",
        ),
        ({"num_threads": 10**11}, "num_threads is 100000000000; it must be at most 1024"),
        (
            {"kv_cache_bytes": 40_000, "max_model_len": 200},
            r"kv_cache_bytes holds \d+ tokens, fewer than max_model_len",
        ),
        ({"attention_backend": "flash"}, "attention_backend is 'flash'"),
    ],
)
def test_impossible_settings_name_their_field(checkpoint, fields, message):
    with pytest.raises(ValueError, match=message):
        build(checkpoint, **fields)


def test_a_small_cache_lowers_a_length_that_nobody_asked_for(checkpoint):
    runner, info = build(checkpoint, kv_cache_bytes=40_000)
    assert info.max_model_len == runner.num_blocks * 16 < 256


def test_cuda_is_refused_without_a_device(checkpoint):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    config = EngineConfig(model_path=str(checkpoint), device="cuda")
    with pytest.raises(ValueError, match="device is 'cuda'"):
        build_runner(config, lambda stage, share: None)


def test_an_explicit_dtype_is_kept():
    assert choose_dtype("float16", torch.device("cpu")) == torch.float16
    assert choose_dtype("auto", torch.device("cpu")) in (torch.bfloat16, torch.float32)
