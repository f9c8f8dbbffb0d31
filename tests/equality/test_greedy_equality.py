"""Greedy float32 output equals that of transformers, however the work is cut into steps."""

import pytest

from tests.engine.decoders import load_reference, random_ids
from tests.equality.generation import (
    TIE,
    differences,
    generate,
    load_dequantised,
    make_engine,
    padding_ids,
)
from tests.support.checkpoints import LLAMA3_ROPE, make_tiny_llama, make_tiny_qwen2

MAX_TOKENS = 64
# Around the border of a block, and longer than a step of the chunked engines.
PROMPT_LENGTHS = (1, 15, 16, 17, 100)
CHUNKED = {"max_num_batched_tokens": 32, "max_num_seqs": 8}
WHOLE = {"max_num_batched_tokens": 512, "max_num_seqs": 8}
STEPS = {
    "whole prompts": WHOLE,
    "chunked prompts": CHUNKED,
    "without prefix cache": {**CHUNKED, "enable_prefix_caching": False},
    "two rows at a time": {"max_num_batched_tokens": 40, "max_num_seqs": 2},
    "too few blocks for all": {**WHOLE, "max_model_len": 192, "kv_cache_bytes": 16 * 16 * 512},
}


def judge(path, reference, prompts, outputs, max_tokens=MAX_TOKENS):
    assert [len(output) for output in outputs] == [max_tokens] * len(prompts)
    found = differences(reference, prompts, outputs, padding_ids(path))
    assert all(difference.margin <= TIE for difference in found), found
    return found


@pytest.fixture(scope="module", params=["llama", "llama with llama3 rope", "qwen2"])
def checkpoint(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoint")
    if request.param == "qwen2":
        return make_tiny_qwen2(directory, max_model_len=512)
    rope = LLAMA3_ROPE if "rope" in request.param else None
    return make_tiny_llama(directory, max_model_len=512, rope_scaling=rope, tied=True)


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
def test_mixed_batches_equal_transformers(checkpoint, steps):
    prompts = [random_ids(length, 320, seed=length) for length in PROMPT_LENGTHS]
    engine = make_engine(checkpoint, **steps)
    judge(checkpoint, load_reference(checkpoint), prompts, generate(engine, prompts, MAX_TOKENS))


@pytest.mark.parametrize("length", PROMPT_LENGTHS)
def test_a_prompt_alone_equals_transformers(checkpoint, length):
    prompts = [random_ids(length, 320, seed=length)]
    engine = make_engine(checkpoint, **CHUNKED)
    judge(checkpoint, load_reference(checkpoint), prompts, generate(engine, prompts, MAX_TOKENS))


def test_a_cached_prefix_changes_nothing(checkpoint):
    prompts = [random_ids(100, 320, seed=3)]
    engine = make_engine(checkpoint, **CHUNKED)
    first = generate(engine, prompts, MAX_TOKENS)
    again = generate(engine, prompts, MAX_TOKENS)
    assert engine.load().cached_tokens >= 64
    assert again == first
    judge(checkpoint, load_reference(checkpoint), prompts, again)


def test_preemption_changes_nothing(checkpoint):
    prompts = [random_ids(60, 320, seed=seed) for seed in range(4)]
    engine = make_engine(checkpoint, **STEPS["too few blocks for all"])
    outputs = generate(engine, prompts, MAX_TOKENS)
    assert engine.load().preemptions > 0
    judge(checkpoint, load_reference(checkpoint), prompts, outputs)


def test_the_judge_sees_a_wrong_token(checkpoint):
    prompts = [random_ids(10, 320)]
    outputs = generate(make_engine(checkpoint, **WHOLE), prompts, 8)
    outputs[0][5] = (outputs[0][5] + 1) % 320
    found = differences(load_reference(checkpoint), prompts, outputs, padding_ids(checkpoint))
    assert [(difference.run, difference.position) for difference in found] == [(0, 5)]


@pytest.mark.model
@pytest.mark.timeout(600)
def test_smollm2_equals_transformers(smollm2_path):
    prompts = [random_ids(length, 49152, seed=length) for length in (1, 15, 16, 17, 33, 90, 7, 48)]
    engine = make_engine(smollm2_path, max_model_len=512, **CHUNKED)
    outputs = generate(engine, prompts, MAX_TOKENS)
    judge(smollm2_path, load_dequantised(smollm2_path), prompts, outputs)


@pytest.mark.model
@pytest.mark.acceptance
@pytest.mark.timeout(3600)
def test_two_hundred_smollm2_runs_equal_transformers(smollm2_path):
    """Prints how many runs are identical, and where the others differ."""
    lengths = [1 + 7 * (number % 29) for number in range(200)]
    prompts = [random_ids(length, 49152, seed=seed) for seed, length in enumerate(lengths)]
    reference = load_dequantised(smollm2_path)
    engine = make_engine(smollm2_path, max_model_len=512, max_num_seqs=32)
    found = judge(smollm2_path, reference, prompts, generate(engine, prompts, MAX_TOKENS))
    print(f"{len(prompts) - len(found)} of {len(prompts)} runs are identical")
    for difference in found:
        print(f"run {difference.run} differs at {difference.position} by {difference.margin:.1e}")
