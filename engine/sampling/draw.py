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
from engine.sampling.candidates import Candidates
from engine.sampling.noise import Float64Array, uniform

# Streams of the noise; the tail's runner has no token id of its own.
_RACE, _TAIL_RACE, _WITHIN_TAIL = 0, 1, 2
_SEED_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Race:
    """One row to draw."""

    sampling: RowSampling
    candidates: Candidates


def draw(races: Sequence[Race]) -> list[int]:
    """The winner of each race; the noise of all of them is made in one go."""
    tokens = np.concatenate([race.candidates.ids for race in races]).astype(np.uint64)
    counts = [len(race.candidates.ids) for race in races]
    seeds = np.array([race.sampling.params.seed & _SEED_MASK for race in races], dtype=np.uint64)
    positions = np.array([race.sampling.position for race in races], dtype=np.uint64)
    noise = uniform(np.repeat(seeds, counts), np.repeat(positions, counts), tokens, _RACE)
    starts = np.cumsum(counts) - counts
    arrivals = -np.log(noise)
    tail_arrivals = -np.log(uniform(seeds, positions, np.zeros_like(seeds), _TAIL_RACE))
    shares = uniform(seeds, positions, np.zeros_like(seeds), _WITHIN_TAIL)
    return [
        _winner(race.candidates, arrivals[start : start + count], tail_arrivals[i], shares[i])
        for i, (race, start, count) in enumerate(zip(races, starts, counts, strict=True))
    ]


def _winner(
    candidates: Candidates, arrivals: Float64Array, tail_arrival: float, share: float
) -> int:
    """arrivals, tail_arrival: exponential times for weight 1. share: where in the tail."""
    times = arrivals / candidates.weights
    first = int(times.argmin())
    tail = candidates.tail_weights
    if tail is None or times[first] <= tail_arrival / float(tail.sum()):
        return int(candidates.ids[first])
    reached = np.cumsum(tail, dtype=np.float64)
    return int(np.searchsorted(reached, share * reached[-1], side="right"))
