"""The protocol between the engine and a grammar: the whole contract between the two.

The engine declares it and never sees who implements it. One matcher belongs to one request.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

# [rows, ceil(vocab_size / 32)]; bit i of word w allows token 32 * w + i.
TokenBitmask = npt.NDArray[np.int32]


class Verdict(NamedTuple):
    """What a matcher says of a sampled token.

    accepted: how many of the given tokens fit. settled: how many output tokens in all can no longer
    be taken back. override: the token that takes the place of the first one that did not fit.
    """

    accepted: int
    settled: int
    override: int | None = None


class Matcher(Protocol):
    """Follows the output of one request and says what may come next."""

    @property
    def close_within(self) -> int:
        """A cheap bound: `closing` is asked for only when at most this many tokens remain."""

    @property
    def complete(self) -> bool:
        """The output so far satisfies the constraint."""

    @property
    def terminated(self) -> bool:
        """Nothing may follow."""

    @property
    def segment(self) -> int:
        """Number of the segment that the next token belongs to."""

    def fill(self, mask: TokenBitmask, row: int) -> bool:
        """Writes the allowed tokens into `mask[row]`; returns False if every token is allowed."""

    def accept(self, tokens: Sequence[int]) -> Verdict:
        """Advances over tokens."""

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last tokens, never more than are unsettled."""

    def forced(self, limit: int) -> Sequence[int]:
        """Tokens that must come next, at most `limit`; they become known tokens."""

    def closing(self, budget: int) -> Sequence[int] | None:
        """Tokens that complete the output within `budget`, or None if nothing must be done yet."""
