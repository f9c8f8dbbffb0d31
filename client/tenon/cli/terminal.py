"""Text of a model on a terminal."""

import sys

# Control characters other than tab and newline: an answer must not move the cursor or set titles.
_CONTROLS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)))


def printable(text: str) -> str:
    """The text as it may be written to standard output; untouched where that is no terminal."""
    return text.translate(_CONTROLS) if sys.stdout.isatty() else text
