"""Which tokens of a row can be drawn: the leading ones that top-k, top-p and min-p leave.

All three keep a prefix of the tokens ordered by falling weight, equal ones by rising id. Only as
many tokens are ranked as are needed; the rest of what may be drawn is one tail.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.request import SamplingParams
from engine.sampling.adjust import Float32Array

Int64Array = npt.NDArray[np.int64]

# Width of the runs whose maxima give a cheap lower bound for the n-th largest logit.
_RUN = 128
# As many tokens are ranked first; enough for most distributions.
_FIRST_RANKED = 64


@dataclass(frozen=True, slots=True)
class Candidates:
    """A token is drawn in proportion to its weight, exp((logit - best logit) / temperature).

    ids: tokens that compete one by one, best first; weights: theirs.
    tail_weights: [vocab_size], weights of the tokens that compete as one, 0 for all others; None
    if there are none.
    """

    ids: Int64Array
    weights: Float32Array
    tail_weights: Float32Array | None


def leading(values: Float32Array, count: int) -> Int64Array:
    """Ids of at least `count` largest values (or all), largest first, equal ones by id.

    Complete: every value that is not among them is smaller than the last one that is.
    """
    if count >= len(values):
        return np.argsort(-values, kind="stable")
    num_runs = len(values) // _RUN
    if count <= num_runs // 2:
        maxima = values[: num_runs * _RUN].reshape(num_runs, _RUN).max(axis=1)
        bound = np.partition(maxima, num_runs - count)[num_runs - count]
    else:
        bound = np.partition(values, len(values) - count)[len(values) - count]
    return ranked_above(values, bound)


def ranked_above(values: Float32Array, bound: float) -> Int64Array:
    """Ids of all values at or above a bound, largest first, equal ones by id."""
    ids = np.flatnonzero(values >= bound)
    return ids[np.argsort(-values[ids], kind="stable")]


def choose_candidates(logits: Float32Array, params: SamplingParams) -> Candidates:
    """The candidates of adjusted logits [vocab_size]; temperature is above 0."""
    weights = np.exp((logits - logits.max()) / np.float32(params.temperature))
    if params.top_k:
        ids = leading(weights, params.top_k)[: params.top_k]
        total, is_whole = weights[ids].sum(), True
    else:
        ids = leading(weights, _FIRST_RANKED)
        total, is_whole = weights.sum(), len(ids) == len(weights)
    if params.top_p < 1.0:
        limit = params.top_p * float(total)
        reached = np.cumsum(weights[ids], dtype=np.float64)
        if is_whole or reached[-1] >= limit:
            ids, is_whole = ids[: int(np.searchsorted(reached, limit)) + 1], True
        else:
            _clear_beyond_nucleus(weights, limit)
    if params.min_p > 0.0:
        weights *= weights >= params.min_p  # the best weight is 1
    ids = ids[weights[ids] > 0.0]
    own = weights[ids]
    weights[ids] = 0.0
    return Candidates(ids, own, None if is_whole or not weights.any() else weights)


def _clear_beyond_nucleus(weights: Float32Array, limit: float) -> None:
    """Sets weights to 0 but for the shortest prefix whose sum reaches `limit`."""
    # Tokens below this share of what is left out can't belong: together they weigh less.
    smallest = (float(weights.sum()) - limit) / len(weights) * 0.999
    ranked = np.sort(weights[np.flatnonzero(weights >= smallest)])[::-1]
    last = int(np.searchsorted(np.cumsum(ranked, dtype=np.float64), limit))
    bound = ranked[min(last, len(ranked) - 1)]
    weights *= weights >= bound
    num_equal = last + 1 - np.count_nonzero(weights > bound)  # kept ones that weigh `bound`
    weights[np.flatnonzero(weights == bound)[num_equal:]] = 0.0
