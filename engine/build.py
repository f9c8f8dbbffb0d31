"""Builds an engine from its config."""

from collections.abc import Callable

# Called while loading with a stage in words ("loading weights") and progress from 0 to 1.
Progress = Callable[[str, float], None]
