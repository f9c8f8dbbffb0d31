"""What changes logits before anything is drawn: penalties, bias, the grammar's mask, bans."""

import numpy as np
import numpy.typing as npt

from engine.plan import RowSampling

Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


def unpack_mask(words: npt.NDArray[np.int32], vocab_size: int) -> BoolArray:
    """Allowed tokens [vocab_size] of one bitmask row; tokens beyond its words are not allowed."""
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little")
    allowed = np.zeros(vocab_size, dtype=np.bool_)
    count = min(vocab_size, len(bits))
    allowed[:count] = bits[:count]
    return allowed


def adjust(logits: Float32Array, row: RowSampling, words: npt.NDArray[np.int32] | None) -> None:
    """Applies all that `row` asks for to its logits [vocab_size], in place and in order."""
    if row.params.has_penalties:
        _penalise(logits, row)
    for token, bias in row.params.logit_bias:
        logits[token] += np.float32(bias)
    if words is not None:
        np.copyto(logits, -np.inf, where=~unpack_mask(words, len(logits)))
    if row.banned_ids:
        _ban(logits, list(row.banned_ids))


def needs_adjustment(row: RowSampling) -> bool:
    """Whether `adjust` would change something without a mask."""
    return bool(row.params.has_penalties or row.params.logit_bias or row.banned_ids)


def _penalise(logits: Float32Array, row: RowSampling) -> None:
    params = row.params
    assert row.prompt_ids is not None, "penalties need the tokens so far"
    assert row.output_ids is not None, "penalties need the tokens so far"
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.concatenate((row.prompt_ids, row.output_ids)))
        values, penalty = logits[seen], np.float32(params.repetition_penalty)
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    tokens, counts = np.unique(row.output_ids, return_counts=True)
    logits[tokens] -= (params.presence_penalty + params.frequency_penalty * counts).astype(
        np.float32
    )


def _ban(logits: Float32Array, banned: list[int]) -> None:
    kept = logits[banned]
    logits[banned] = -np.inf
    if logits.max() == -np.inf:  # the mask allows nothing else: it wins
        logits[banned] = kept
