"""Finds stop strings in a stream of text, across the borders of its pieces."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class StopScan(NamedTuple):
    """What one piece of text led to: text that may be sent, and the stop string that ended it."""

    text: str
    matched: str | None


class StopMatcher:
    """Passes text on until one of the stop strings is complete, holding back what may become one.

    The stop that is completed first ends the text; of several completed by the same character the
    longest counts, since it began first. So the text that is sent holds no stop string whatever
    the pieces were. The caller pushes the text of one token at a time: the token whose push
    returns a match is the one that completed the stop.

    Aho-Corasick: time is linear in the text, whatever the stops are.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """Raises ValueError for an empty stop string. include_stop: the text keeps the stop."""
        if "" in stops:
            raise ValueError("a stop string must not be empty")
        self._include_stop = include_stop
        self._next: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self._depth = [0]
        self._completed: list[str | None] = [None]
        for stop in stops:
            self._add(stop)
        self._link()
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> StopScan:
        """Scans the next piece. After a match all further text is dropped."""
        if self.matched is not None:
            return StopScan("", self.matched)
        for position, char in enumerate(text):
            self._state = self._step(self._state, char)
            if (stop := self._completed[self._state]) is not None:
                self.matched = stop
                return StopScan(self._cut(self._held + text[: position + 1], stop), stop)
        seen = self._held + text
        num_safe = len(seen) - self._depth[self._state]
        self._held = seen[num_safe:]
        return StopScan(seen[:num_safe], None)

    def flush(self) -> str:
        """Ends the text: releases what was held back."""
        held, self._held = self._held, ""
        self._state = 0
        return held

    def _cut(self, seen: str, stop: str) -> str:
        self._held = ""
        return seen if self._include_stop else seen[: len(seen) - len(stop)]

    def _step(self, state: int, char: str) -> int:
        while char not in self._next[state]:
            if state == 0:
                return 0
            state = self._fallback[state]
        return self._next[state][char]

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._fallback.append(0)
                self._depth.append(self._depth[state] + 1)
                self._completed.append(None)
            state = self._next[state][char]
        self._completed[state] = stop

    def _link(self) -> None:
        """Sets each state's fallback: its longest proper suffix that is a prefix of some stop."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                self._fallback[child] = self._step(self._fallback[state], char)
                if self._completed[child] is None:
                    self._completed[child] = self._completed[self._fallback[child]]
                queue.append(child)
