"""Which tokens of a row can be drawn: the leading ones that top-k, top-p and min-p leave.

All three keep a prefix of the tokens ordered by falling logit, equal ones by rising id. Only as
many tokens are sorted as are needed.
"""

import math
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
    """ids: tokens that compete one by one. scores: their logits over temperature, best first.

    tail_score: log of the summed exponentials of all other tokens' scores, which compete as one;
    None if they cannot be drawn.
    """

    ids: Int64Array
    scores: Float32Array
    tail_score: float | None


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
    scores = logits / np.float32(params.temperature)
    best = float(scores.max())
    if params.top_k:
        ids = leading(scores, params.top_k)[: params.top_k]
        log_total = _log_sum_exp(scores[ids])
    else:
        ids = leading(scores, _FIRST_RANKED)
        log_total = _log_sum_exp(scores)
    if params.top_p < 1.0:
        ids = _nucleus(scores, ids, params.top_p, log_total, is_final=bool(params.top_k))
    if params.min_p > 0.0:
        ids = _above_min_p(scores, ids, params, best)
    ids = ids[scores[ids] > -np.inf]
    is_filtered = params.top_k or params.top_p < 1.0 or params.min_p > 0.0
    tail = None if is_filtered else _log_of_rest(log_total, _log_sum_exp(scores[ids]))
    return Candidates(ids, scores[ids], tail)


def _nucleus(
    scores: Float32Array, ids: Int64Array, top_p: float, log_total: float, *, is_final: bool
) -> Int64Array:
    """The shortest prefix whose probability reaches top_p.

    ids: the ranked tokens so far; unless that is all there may be, they are extended by every
    token that could belong: those below (1 - top_p) / vocab_size cannot.
    """
    reached = np.cumsum(np.exp(scores[ids].astype(np.float64) - log_total))
    if reached[-1] < top_p and not is_final:
        smallest = max(1.0 - top_p, 1e-9) / len(scores)
        ids = ranked_above(scores, log_total + math.log(smallest) - 1e-3)
        reached = np.cumsum(np.exp(scores[ids].astype(np.float64) - log_total))
    return ids[: int(np.searchsorted(reached, top_p)) + 1]


def _above_min_p(
    scores: Float32Array, ids: Int64Array, params: SamplingParams, best: float
) -> Int64Array:
    bound = best + math.log(params.min_p)
    if not params.top_k and params.top_p >= 1.0:
        return ranked_above(scores, bound)
    return ids[scores[ids] >= bound]


def _log_sum_exp(scores: Float32Array) -> float:
    best = scores.max()
    return float(best) + math.log(np.exp(scores - best).sum(dtype=np.float64))


def _log_of_rest(log_total: float, log_part: float) -> float | None:
    """log(exp(log_total) - exp(log_part)); None if rounding leaves nothing."""
    share = -math.expm1(min(log_part - log_total, 0.0))
    return log_total + math.log(share) if share > 1e-6 else None
