"""A matcher over token ids: the output must be one of a few given token sequences."""

from collections.abc import Sequence

from engine.matcher import TokenBitmask, Verdict


class ChoiceMatcher:
    """Allows exactly the `choices`. No choice may be the beginning of another.

    forces: name tokens that leave no choice. closes: ask for the shortest end when the budget gets
    tight. hold: this many tokens stay unsettled until the end. fails_at: output position at which
    `fill` raises. override_at: position at which the drawn token is replaced by a choice's token
    and every token is allowed by the mask.
    """

    def __init__(
        self,
        choices: Sequence[Sequence[int]],
        *,
        forces: bool = False,
        closes: bool = False,
        hold: int = 0,
        fails_at: int | None = None,
        override_at: int | None = None,
    ) -> None:
        self._choices = [tuple(choice) for choice in choices]
        self._forces, self._closes, self._hold = forces, closes, hold
        self._fails_at, self._override_at = fails_at, override_at
        self.output: list[int] = []

    @property
    def close_within(self) -> int:
        return max(map(len, self._choices)) if self._closes else 0

    @property
    def complete(self) -> bool:
        return tuple(self.output) in self._choices

    @property
    def terminated(self) -> bool:
        return self.complete

    @property
    def segment(self) -> int:
        return len(self.output)

    def fill(self, mask: TokenBitmask, row: int) -> bool:
        position = len(self.output)
        if self._fails_at == position:
            raise RuntimeError("the fake matcher was told to fail")
        if self._override_at == position:
            return False
        mask[row] = 0
        for token in self._next():
            mask.view("uint32")[row, token // 32] |= 1 << (token % 32)
        return True

    def accept(self, tokens: Sequence[int]) -> Verdict:
        (token,) = tokens
        if len(self.output) == self._override_at and token not in self._next():
            self.output.append(self._next()[0])
            return Verdict(0, self._settled(), self.output[-1])
        if token not in self._next():
            return Verdict(0, self._settled())
        self.output.append(token)
        return Verdict(1, self._settled())

    def rollback(self, num_tokens: int) -> None:
        raise AssertionError("nothing is rolled back without drafts")

    def forced(self, limit: int) -> Sequence[int]:
        forced: list[int] = []
        while self._forces and len(forced) < limit:
            following = self._next(forced)
            if len(following) != 1:
                break
            forced += following
        return forced

    def closing(self, budget: int) -> Sequence[int] | None:
        ends = [choice[len(self.output) :] for choice in self._fitting(self.output)]
        fitting = [end for end in ends if len(end) <= budget]
        # Wait while a drawn token can only lead to choices that fit, too.
        return None if len(fitting) == len(ends) else min(ends, key=len)

    def _settled(self) -> int:
        held = 0 if self.complete else self._hold
        return max(0, len(self.output) - held)

    def _fitting(self, output: Sequence[int]) -> list[tuple[int, ...]]:
        return [choice for choice in self._choices if choice[: len(output)] == tuple(output)]

    def _next(self, more: Sequence[int] = ()) -> list[int]:
        output = [*self.output, *more]
        return sorted({c[len(output)] for c in self._fitting(output) if len(c) > len(output)})
