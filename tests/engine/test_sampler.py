"""The sampler against slow, obvious definitions, and the independence of its draws."""

import math

import numpy as np
import pytest
import torch

from engine.plan import RowSampling, SampleMask
from engine.request import SamplingParams
from engine.sampling.candidates import choose_candidates, leading
from engine.sampling.noise import philox, uniform
from engine.sampling.sampler import InvalidLogitsError, Sampler

GREEDY = SamplingParams(temperature=0.0)


def make_logits(vocab_size, rows=1, seed=0, scale=3.0):
    generator = np.random.default_rng(seed)
    return (generator.standard_normal((rows, vocab_size)) * scale).astype(np.float32)


def sample(logits, rows, mask=None, padding_ids=()):
    logits = np.atleast_2d(np.array(logits, dtype=np.float32))
    sampler = Sampler(logits.shape[1], padding_ids)
    token_ids, logprobs = sampler.sample(torch.from_numpy(logits.copy()), rows, mask)
    return token_ids.tolist(), logprobs


def allow(vocab_size, rows):
    """A mask; each row is the allowed ids or None."""
    bitmask = np.zeros((len(rows), -(-vocab_size // 32)), dtype=np.uint32)
    for i, ids in enumerate(rows):
        for token in ids or ():
            bitmask[i, token // 32] |= np.uint32(1 << (token % 32))
    return SampleMask(bitmask.view(np.int32), np.array([ids is not None for ids in rows]))


def obvious_distribution(logits, params):
    """Probabilities by the definition: sort everything, cut one after another."""
    weights = np.exp((logits - logits.max()).astype(np.float64) / params.temperature)
    order = np.argsort(-weights, kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1:
        probabilities = weights[order] / weights[order].sum()
        before = np.cumsum(probabilities) - probabilities
        order = order[before < params.top_p]
    order = order[weights[order] >= params.min_p * weights.max()]
    result = np.zeros_like(weights)
    result[order] = weights[order] / weights[order].sum()
    return result


def distribution_of(candidates, vocab_size):
    result = np.zeros(vocab_size)
    result[candidates.ids] = candidates.weights
    if candidates.tail_weights is not None:
        assert (candidates.tail_weights[candidates.ids] == 0).all()
        result += candidates.tail_weights
    return result / result.sum()


FILTERS = [
    SamplingParams(),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=3.0),
    SamplingParams(top_k=1),
    SamplingParams(top_k=5),
    SamplingParams(top_k=700),
    SamplingParams(top_p=0.1),
    SamplingParams(top_p=0.9),
    SamplingParams(top_p=0.999),
    SamplingParams(min_p=0.2),
    SamplingParams(min_p=0.001),
    SamplingParams(top_k=40, top_p=0.8),
    SamplingParams(top_p=0.95, min_p=0.01, temperature=2.0),
    SamplingParams(top_k=100, top_p=0.9, min_p=0.05, temperature=1.5),
]


@pytest.mark.parametrize("scale", [0.5, 3.0])
@pytest.mark.parametrize("vocab_size", [10, 1000, 20_000])
@pytest.mark.parametrize("params", FILTERS, ids=str)
def test_filters_leave_the_distribution_that_their_definition_leaves(params, vocab_size, scale):
    logits = make_logits(vocab_size, scale=scale)[0]
    expected = obvious_distribution(logits, params)
    result = distribution_of(choose_candidates(logits.copy(), params), vocab_size)
    np.testing.assert_allclose(result, expected, atol=1e-6)
    # Tokens at a border may differ by rounding, all others must not.
    assert abs(np.count_nonzero(result) - np.count_nonzero(expected)) <= 1


@pytest.mark.parametrize("params", [SamplingParams(top_k=3), SamplingParams(top_p=0.3)], ids=str)
def test_of_equal_logits_the_lower_ids_are_kept(params):
    candidates = choose_candidates(np.zeros(10, dtype=np.float32), params)
    assert candidates.ids.tolist() == [0, 1, 2]


def test_a_large_nucleus_of_equal_logits_keeps_the_lower_ids():
    candidates = choose_candidates(np.zeros(50_000, dtype=np.float32), SamplingParams(top_p=0.5))
    kept = np.flatnonzero(distribution_of(candidates, 50_000))
    assert kept.tolist() == list(range(25_000))


@pytest.mark.parametrize("count", [1, 5, 64, 300, 5000])
@pytest.mark.parametrize("vocab_size", [5, 129, 4999])
def test_leading_tokens_are_ranked_and_complete(vocab_size, count):
    values = np.round(make_logits(vocab_size)[0], 1)  # with equal values
    order = np.argsort(-values, kind="stable")
    ids = leading(values, count)
    assert len(ids) >= min(count, vocab_size)
    assert ids.tolist() == order[: len(ids)].tolist()


def test_draws_follow_the_distribution():
    logits = make_logits(8, scale=1.0)
    expected = obvious_distribution(logits[0], SamplingParams(temperature=0.8))
    draws = 8000
    rows = [RowSampling(SamplingParams(temperature=0.8, seed=s), 3) for s in range(draws)]
    token_ids, _ = sample(np.repeat(logits, draws, 0), rows)
    counts = np.bincount(token_ids, minlength=8)
    chi_square = ((counts - draws * expected) ** 2 / (draws * expected)).sum()
    assert chi_square < 24.3  # 99.9 % of 7 degrees of freedom


def test_draws_from_the_tail_follow_the_distribution():
    vocab_size, draws = 4000, 4000
    logits = make_logits(vocab_size, scale=0.7)
    expected = obvious_distribution(logits[0], SamplingParams())
    rows = [RowSampling(SamplingParams(seed=7), position) for position in range(draws)]
    token_ids, _ = sample(np.repeat(logits, draws, 0), rows)
    bins = np.argsort(np.argsort(-logits[0])) * 20 // vocab_size  # twenty bins by rank
    counts = np.bincount(bins[token_ids], minlength=20)
    wanted = draws * np.bincount(bins, weights=expected)
    assert ((counts - wanted) ** 2 / wanted).sum() < 43.8  # 99.9 % of 19 degrees of freedom


@pytest.mark.parametrize("params", FILTERS, ids=str)
def test_a_row_draws_the_same_alone_and_in_a_batch(params):
    logits = make_logits(3000, rows=6)
    mixed = [SamplingParams(seed=i, top_k=i, temperature=1.0 + i) for i in range(6)]
    rows = [RowSampling(p, i) for i, p in enumerate(mixed)]
    rows[3] = RowSampling(params, 11)
    together, _ = sample(logits, rows)
    alone, _ = sample(logits[3], [rows[3]])
    assert alone[0] == together[3]


def test_draws_change_with_the_seed_and_with_the_position():
    logits = np.zeros((200, 1000), dtype=np.float32)
    by_seed, _ = sample(logits, [RowSampling(SamplingParams(seed=s), 0) for s in range(200)])
    by_position, _ = sample(logits, [RowSampling(SamplingParams(seed=0), p) for p in range(200)])
    again, _ = sample(logits, [RowSampling(SamplingParams(seed=0), p) for p in range(200)])
    assert len(set(by_seed)) > 150
    assert len(set(by_position)) > 150
    assert by_position == again


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64 + 5])
def test_any_integer_is_a_seed(seed):
    sample(make_logits(10), [RowSampling(SamplingParams(seed=seed), 0)])


def test_greedy_takes_the_best_token():
    logits = make_logits(500, rows=4)
    token_ids, logprobs = sample(logits, [RowSampling(GREEDY, 0)] * 4)
    assert token_ids == logits.argmax(1).tolist()
    assert logprobs == (None,) * 4


def test_greedy_and_drawing_rows_share_a_step():
    logits = make_logits(500, rows=3)
    rows = [RowSampling(GREEDY, 0), RowSampling(SamplingParams(top_k=1), 0), RowSampling(GREEDY, 0)]
    assert sample(logits, rows)[0] == logits.argmax(1).tolist()


def test_penalties_follow_their_definitions():
    params = SamplingParams(
        temperature=0.0,
        presence_penalty=1.0,
        frequency_penalty=0.5,
        repetition_penalty=2.0,
        logit_bias=((4, 10.0),),
    )
    logits = np.array([5.0, 4.0, -1.0, 3.9, -9.5], dtype=np.float32)
    prompt, output = np.array([0, 2], np.int32), np.array([1, 1], np.int32)
    row = RowSampling(params, 2, prompt_ids=prompt, output_ids=output)
    from engine.sampling.adjust import adjust

    adjust(logits, row, None)
    # 5/2; 4/2 - 1 - 2*0.5; -1*2; untouched; -9.5+10
    np.testing.assert_allclose(logits, [2.5, 0.0, -2.0, 3.9, 0.5])


def test_bias_can_force_a_token():
    rows = [RowSampling(SamplingParams(temperature=0.0, logit_bias=((7, 100.0),)), 0)]
    assert sample(make_logits(20), rows)[0] == [7]


def test_masked_rows_draw_only_allowed_tokens():
    logits = make_logits(100, rows=50)
    rows = [RowSampling(SamplingParams(seed=i), 0) for i in range(50)]
    mask = allow(100, [[3, 40, 99]] * 49 + [None])
    token_ids, _ = sample(logits, rows, mask)
    assert set(token_ids[:49]) <= {3, 40, 99}
    assert token_ids[49] == sample(logits[49], [rows[49]])[0][0]


def test_banned_ids_are_not_drawn_unless_the_mask_allows_nothing_else():
    logits = np.array([9.0, 1.0, 0.0, 8.0], dtype=np.float32)
    row = RowSampling(GREEDY, 0, banned_ids=(0, 3))
    assert sample(logits, [row])[0] == [1]
    assert sample(logits, [row], allow(4, [[0, 2]]))[0] == [2]
    assert sample(logits, [row], allow(4, [[0, 3]]))[0] == [0]


def test_padding_ids_are_never_drawn():
    logits = np.zeros(100, dtype=np.float32)
    logits[90:] = 50.0
    rows = [RowSampling(GREEDY, 0)]
    assert sample(logits, rows, padding_ids=range(90, 100))[0] == [0]
    drawn, _ = sample(
        np.tile(logits, (100, 1)),
        [RowSampling(SamplingParams(seed=s), 0) for s in range(100)],
        padding_ids=range(90, 100),
    )
    assert max(drawn) < 90


def test_logprobs_are_of_the_raw_distribution():
    logits = make_logits(1000)
    params = SamplingParams(temperature=0.0, logit_bias=((5, 50.0),), logprobs=3)
    token_ids, logprobs = sample(logits, [RowSampling(params, 0)])
    expected = torch.log_softmax(torch.from_numpy(logits[0]).double(), 0)
    best = expected.topk(3)
    assert token_ids == [5]
    assert logprobs[0].logprob == pytest.approx(expected[5].item(), abs=1e-5)
    assert logprobs[0].top_ids == tuple(best.indices.tolist())
    assert logprobs[0].top_logprobs == pytest.approx(best.values.tolist(), abs=1e-5)


def test_logprobs_without_alternatives_name_only_the_chosen_token():
    _, logprobs = sample(
        make_logits(10), [RowSampling(SamplingParams(temperature=0.0, logprobs=0), 0)]
    )
    assert logprobs[0].top_ids == ()
    assert logprobs[0].logprob < 0


@pytest.mark.parametrize("params", [GREEDY, SamplingParams()], ids=["greedy", "drawn"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_name_their_row(params, value):
    logits = make_logits(50, rows=3)
    logits[1, 20] = value
    with pytest.raises(InvalidLogitsError, match="sampling row 1") as error:
        sample(logits, [RowSampling(params, 0)] * 3)
    assert error.value.row == 1


def test_an_empty_mask_names_its_row():
    with pytest.raises(InvalidLogitsError, match="sampling row 0: no token is allowed"):
        sample(make_logits(50), [RowSampling(GREEDY, 0)], allow(50, [[]]))


def test_philox_gives_the_published_values():
    """Known answers of the Random123 distribution, philox4x32 with 10 rounds."""
    ones = 0xFFFFFFFF
    counters = [[0] * 4, [ones] * 4, [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]]
    keys = [[0] * 2, [ones] * 2, [0xA4093822, 0x299F31D0]]
    words = philox(np.array(counters, np.uint64).T, np.array(keys, np.uint64).T)
    assert [[hex(int(word)) for word in column] for column in words.T] == [
        ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"],
        ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"],
        ["0xd16cfe09", "0x94fdcceb", "0x5001e420", "0x24126ea1"],
    ]


def test_uniform_numbers_are_strictly_between_zero_and_one():
    tokens = np.arange(20_000, dtype=np.uint64)
    numbers = uniform(np.full_like(tokens, 1), np.full_like(tokens, 2), tokens, stream=0)
    assert numbers.min() > 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.01
