"""Drives the matchers of constrained requests: which token counts, which are known, which may come.

A matcher advances over an override by itself; known tokens are given to `accept` one by one.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from engine.matcher import Matcher
from engine.plan import SampleMask


class ConstraintFailure(Exception):
    """A matcher contradicted itself. Concerns one request only."""


class AcceptedToken(NamedTuple):
    """A token that entered the output. segment: the one it belongs to. settled: output tokens in
    all that can no longer be taken back. is_override: it is not the token that was drawn.
    """

    token: int
    segment: int
    settled: int
    is_override: bool


class KnownTokens(NamedTuple):
    """Output tokens that need no draw. is_closing: the answer is complete after them."""

    tokens: tuple[int, ...]
    is_closing: bool


def accept_drawn(matcher: Matcher, token: int) -> AcceptedToken:
    """Gives a drawn token to the matcher, which may put another one in its place."""
    segment = matcher.segment
    verdict = matcher.accept((token,))
    if verdict.accepted == 1:
        return AcceptedToken(token, segment, verdict.settled, is_override=False)
    if verdict.override is None:
        raise ConstraintFailure("a token that the mask allowed was not accepted")
    return AcceptedToken(verdict.override, segment, verdict.settled, is_override=True)


def accept_known(matcher: Matcher, tokens: Sequence[int]) -> Iterator[AcceptedToken]:
    """Gives known tokens to the matcher, each when the caller asks for the next one."""
    for token in tokens:
        segment = matcher.segment
        verdict = matcher.accept((token,))
        if verdict.accepted != 1:
            raise ConstraintFailure("a token that the matcher itself named was not accepted")
        yield AcceptedToken(token, segment, verdict.settled, is_override=False)


def next_known(matcher: Matcher, remaining: int) -> KnownTokens | None:
    """What must come next with `remaining` output tokens left; None if a token is to be drawn."""
    if remaining <= matcher.close_within:
        path = matcher.closing(remaining)
        if path is not None:
            return KnownTokens(tuple(path), is_closing=True)
    forced = tuple(matcher.forced(remaining))
    return KnownTokens(forced, is_closing=False) if forced else None


def closing_path(matcher: Matcher, remaining: int) -> tuple[int, ...]:
    """Tokens that complete the output now, although the budget does not ask for it yet.

    A matcher answers when the budget becomes tight, so the budget is lowered until it does.
    """
    if matcher.complete:
        return ()
    for budget in range(min(remaining, matcher.close_within), 0, -1):
        path = matcher.closing(budget)
        if path is not None:
            return tuple(path)
    return ()


class MaskBuilder:
    """The masks of one step's samples, filled row by row."""

    def __init__(self, num_samples: int, vocab_size: int) -> None:
        words = -(-vocab_size // 32)
        self._bitmask = np.zeros((num_samples, words), dtype=np.int32)
        self._constrained = np.zeros(num_samples, dtype=np.bool_)
        tail = vocab_size % 32
        # Bits of the last word that stand for a token.
        self._last_word = np.int32(-1 if tail == 0 else (1 << tail) - 1)

    def fill(self, index: int, matcher: Matcher) -> None:
        """Asks the matcher which tokens may follow. Raises ConstraintFailure if none may."""
        if not matcher.fill(self._bitmask, index):
            return
        row = self._bitmask[index]
        row[-1] &= self._last_word
        if not row.any():
            raise ConstraintFailure("no token may follow")
        self._constrained[index] = True

    def build(self) -> SampleMask | None:
        """None if no row is constrained."""
        if not self._constrained.any():
            return None
        return SampleMask(self._bitmask, self._constrained)
