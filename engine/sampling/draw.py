"""Draws one token per row: an exponential race between candidates, the tail running as one.

Token i arrives after Exp(1) / weight_i and the first to arrive wins, which draws in proportion to
the weights. Arrival times of a group are again exponential with the summed weight, so the many
unlikely tokens run as one and are told apart only when they win: a draw costs noise for a few
dozen tokens, not for the whole vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.plan import RowSampling
from engine.sampling.adjust import Float32Array
from engine.sampling.candidates import Candidates
from engine.sampling.noise import UInt64Array, uniform

# Streams of the noise; the tail's runner has no token id of its own.
_RACE, _TAIL_RACE, _WITHIN_TAIL = 0, 1, 2
_SEED_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Race:
    """One row to draw. logits: adjusted, [vocab_size]."""

    sampling: RowSampling
    logits: Float32Array
    candidates: Candidates


def draw(races: Sequence[Race]) -> list[int]:
    """The winner of each race; the noise of all of them is made in one go."""
    tokens = np.concatenate([race.candidates.ids for race in races]).astype(np.uint64)
    counts = [len(race.candidates.ids) for race in races]
    seeds = np.array([race.sampling.params.seed & _SEED_MASK for race in races], dtype=np.uint64)
    positions = np.array([race.sampling.position for race in races], dtype=np.uint64)
    noise = uniform(np.repeat(seeds, counts), np.repeat(positions, counts), tokens, _RACE)
    lateness = np.log(-np.log(noise))  # log of an exponential time
    tail_noise = uniform(seeds, positions, np.zeros_like(seeds), _TAIL_RACE)
    tail_lateness = np.log(-np.log(tail_noise))
    stops = np.cumsum(counts)
    return [
        _winner(race, lateness[stop - count : stop], float(late), seeds[i : i + 1])
        for i, (race, count, stop, late) in enumerate(
            zip(races, counts, stops, tail_lateness, strict=True)
        )
    ]


def _winner(
    race: Race,
    lateness: np.ndarray[tuple[int], np.dtype[np.float64]],
    tail: float,
    seed: UInt64Array,
) -> int:
    """The race in logarithms: the highest score - log(time) arrives first."""
    candidates = race.candidates
    earliness = candidates.scores - lateness
    best = int(earliness.argmax())
    if candidates.tail_score is None or earliness[best] >= candidates.tail_score - tail:
        return int(candidates.ids[best])
    return _draw_from_tail(race, seed)


def _draw_from_tail(race: Race, seed: UInt64Array) -> int:
    """Inverts the distribution function over all tokens that did not run on their own."""
    scores = race.logits.astype(np.float64) / race.sampling.params.temperature
    weights = np.exp(scores - scores.max())
    weights[race.candidates.ids] = 0.0
    reached = np.cumsum(weights)
    position = np.array([race.sampling.position], dtype=np.uint64)
    share = uniform(seed, position, np.zeros_like(seed), _WITHIN_TAIL)[0]
    return int(np.searchsorted(reached, share * reached[-1], side="right"))
