"""Keeps control tokens that a message merely mentions from acting as control tokens.

Their names are replaced by marks before rendering; afterwards the marks become the names again,
and where they stand is known, so that the tokenizer reads them as plain text.
"""

import re
import secrets
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A rendered conversation.

    literal_spans: sorted character ranges [start, end) of `text` that hold the name of a control
    token which came from a message; `Tokenizer.encode` takes them.
    """

    text: str
    literal_spans: tuple[tuple[int, int], ...] = ()


class ControlTokenGuard:
    """Marks the names of control tokens in what callers wrote. One guard serves one rendering."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        # Digits survive what templates do to text (trim, upper, JSON, ASCII). They are drawn anew
        # for each rendering, so that no caller can write a mark.
        self._prefix = f"{secrets.randbelow(10**20):020}"
        self._names: list[str] = []

    def mark(self, value: Any) -> Any:
        """A copy of plain JSON data with marks in the place of names, keys included."""
        if isinstance(value, str):
            return self._pattern.sub(self._mark_name, value)
        if isinstance(value, dict):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(item) for item in value]
        return value

    def unmark(self, rendered: str) -> RenderedPrompt:
        """The text with names again, and where they stand."""
        if not self._names:
            return RenderedPrompt(rendered)
        pieces: list[str] = []
        spans: list[tuple[int, int]] = []
        length = start = 0
        for match in re.finditer(f"{self._prefix}([0-9]{{8}})", rendered):
            before, name = rendered[start : match.start()], self._names[int(match[1])]
            length += len(before)
            spans.append((length, length + len(name)))
            length += len(name)
            pieces += (before, name)
            start = match.end()
        return RenderedPrompt("".join(pieces) + rendered[start:], tuple(spans))

    def _mark_name(self, match: re.Match[str]) -> str:
        self._names.append(match[0])
        return f"{self._prefix}{len(self._names) - 1:08}"
