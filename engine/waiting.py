"""The waiting queue: who starts next, and how long that may take. Order is decided only here."""

from bisect import insort
from collections import deque
from collections.abc import Iterator

from engine.request import Priority
from engine.sequence import Sequence

_CLASS_RANK = {Priority.INTERACTIVE: 0, Priority.STANDARD: 1, Priority.BATCH: 2}


def _order(sequence: Sequence) -> tuple[int, int]:
    return _CLASS_RANK[sequence.spec.priority], sequence.number


class WaitingQueue:
    """Waiting requests by class, then arrival. A preempted one keeps its place among its class."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of all waiting requests."""
        return self._num_tokens

    @property
    def head(self) -> Sequence:
        return self._sequences[0]

    def push(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=_order)
        self._num_tokens += sequence.num_prompt

    def remove(self, sequence: Sequence) -> None:
        self._sequences.remove(sequence)
        self._num_tokens -= sequence.num_prompt


class DrainRate:
    """Requests that left the queue per second, measured over the last starts."""

    def __init__(self, window: int = 32) -> None:
        self._starts: deque[float] = deque(maxlen=window)

    def record(self, now: float) -> None:
        self._starts.append(now)

    def wait_for(self, position: int, now: float) -> float | None:
        """Seconds until the request at `position` (1 is next) starts; None if not measured yet."""
        if len(self._starts) < 2 or now <= self._starts[0]:
            return None
        return position * (now - self._starts[0]) / len(self._starts)

    def retry_after(self, num_waiting: int, now: float) -> float:
        """Seconds after which about half of the queue has left, between 1 and 60."""
        wait = self.wait_for(max(1, num_waiting // 2), now)
        return 1.0 if wait is None else min(60.0, max(1.0, wait))
