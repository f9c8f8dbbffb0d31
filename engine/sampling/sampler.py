"""Turns the logits of a step into tokens and log probabilities, on the host.

Per row: penalties and bias, mask, bans, then temperature, top-k, top-p, min-p and the draw. A
row's result depends on nothing but its own logits, parameters, seed and position.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.plan import Int32Array, RowSampling, SampleMask
from engine.request import TokenLogprobs
from engine.sampling.adjust import Float32Array, adjust, needs_adjustment
from engine.sampling.candidates import choose_candidates, leading
from engine.sampling.draw import Race, draw

# Below this temperature all weight lies on the best token.
_GREEDY_BELOW = 1e-5


class InvalidLogitsError(RuntimeError):
    """The logits of a row cannot be sampled. row: its place among the sampling rows."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(f"sampling row {row}: {problem}")
        self.row = row


class Sampler:
    """Stateless but for the ids that are never drawn."""

    def __init__(self, vocab_size: int, padding_ids: Sequence[int] = ()) -> None:
        self.vocab_size = vocab_size
        self._padding_ids = np.array(sorted(padding_ids), dtype=np.int64)

    def sample(
        self, logits: torch.Tensor, rows: Sequence[RowSampling], mask: SampleMask | None
    ) -> tuple[Int32Array, tuple[TokenLogprobs | None, ...]]:
        """Token ids [S] and log probabilities from logits [S, vocab_size] in float32.

        Takes the logits over. Raises InvalidLogitsError for a row with a NaN or without any
        allowed token.
        """
        raw: Float32Array = logits.detach().cpu().numpy()
        if len(self._padding_ids):
            raw[:, self._padding_ids] = -np.inf
        if mask is None and all(_is_plain_greedy(row) for row in rows):
            token_ids = _best_of_each(raw)
        else:
            token_ids = self._draw(raw, rows, mask)
        logprobs = tuple(
            None if row.params.logprobs is None else _logprobs(raw[i], int(token_ids[i]), row)
            for i, row in enumerate(rows)
        )
        return token_ids, logprobs

    def _draw(
        self, raw: Float32Array, rows: Sequence[RowSampling], mask: SampleMask | None
    ) -> Int32Array:
        token_ids = np.empty(len(rows), dtype=np.int32)
        races: list[Race] = []
        racing: list[int] = []
        for i, row in enumerate(rows):
            logits = _adjusted(raw[i], row, _words(mask, i))
            _check(i, logits)
            if row.params.temperature < _GREEDY_BELOW:
                token_ids[i] = logits.argmax()
            else:
                racing.append(i)
                races.append(Race(row, choose_candidates(logits, row.params)))
        if races:
            token_ids[racing] = draw(races)
        return token_ids


def _is_plain_greedy(row: RowSampling) -> bool:
    return row.params.temperature < _GREEDY_BELOW and not needs_adjustment(row)


def _best_of_each(logits: Float32Array) -> Int32Array:
    token_ids = logits.argmax(axis=1)  # of a row with a NaN: its place
    best = logits[np.arange(len(logits)), token_ids]
    for i in np.flatnonzero(~np.isfinite(best)):
        _check(int(i), logits[i])
    narrow: Int32Array = token_ids.astype(np.int32)
    return narrow


def _words(mask: SampleMask | None, row: int) -> npt.NDArray[np.int32] | None:
    return mask.bitmask[row] if mask is not None and mask.constrained[row] else None


def _adjusted(
    raw: Float32Array, row: RowSampling, words: npt.NDArray[np.int32] | None
) -> Float32Array:
    if words is None and not needs_adjustment(row):
        return raw
    logits = raw.copy()
    adjust(logits, row, words)
    return logits


def _check(row: int, logits: Float32Array) -> None:
    best = logits.max()
    if np.isnan(best) or best == np.inf:
        raise InvalidLogitsError(row, "its logits are not finite")
    if best == -np.inf:
        raise InvalidLogitsError(row, "no token is allowed")


def _logprobs(raw: Float32Array, token: int, row: RowSampling) -> TokenLogprobs:
    """Of the raw distribution, whatever changed the draw."""
    count = row.params.logprobs or 0
    best = raw.max()
    log_total = float(best) + math.log(np.exp(raw - best).sum())
    top = leading(raw, count)[:count] if count else np.zeros(0, dtype=np.int64)
    return TokenLogprobs(
        logprob=float(raw[token]) - log_total,
        top_ids=tuple(top.tolist()),
        top_logprobs=tuple((raw[top].astype(np.float64) - log_total).tolist()),
    )
