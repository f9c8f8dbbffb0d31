"""Typed reads of a config that nobody has checked: config.json or GGUF metadata."""

import math
from collections.abc import Mapping

MAX_SIZE = 2**31 - 1


class FieldError(ValueError):
    """A field is missing, of the wrong type, out of range or not supported; names the field."""


class Fields:
    """A mapping from names to values of any type. A JSON null counts as absent.

    prefix stands in front of every name in messages.
    """

    __slots__ = ("_prefix", "_values")

    def __init__(self, values: Mapping[str, object], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    def section(self, name: str) -> "Fields":
        """The object under a name; empty where it is absent."""
        value = self.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.error(name, "must be an object")
        return Fields(value, f"{self._prefix}{name}.")

    def get(self, name: str) -> object:
        """The unchecked value, None where it is absent."""
        return self._values.get(name)

    def size(self, name: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._required(name, default)
        if type(value) is not int or not 1 <= value <= MAX_SIZE:
            raise self.error(name, f"must be an integer from 1 to {MAX_SIZE}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._required(name, default)
        if type(value) not in (int, float) or not _is_positive(value):
            raise self.error(name, "must be a positive number")
        return float(value)  # type: ignore[arg-type]

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self._required(name, default)
        if type(value) is not bool:
            raise self.error(name, "must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._required(name, default)
        if not isinstance(value, str):
            raise self.error(name, "must be a string")
        return value

    def token_id(self, name: str, vocab_size: int) -> int:
        """A token id of the vocabulary."""
        value = self._required(name, None)
        if type(value) is not int or not 0 <= value < vocab_size:
            raise self.error(name, f"must be a token id below {vocab_size}")
        return value

    def expect(self, name: str, *supported: object) -> None:
        """Refuses a value that the decoder has no switch for; absent is supported."""
        value = self.get(name)
        if value is not None and value not in supported:
            listed = ", ".join(repr(known) for known in supported) or "none"
            raise self.error(name, f"is not supported; supported: {listed}")

    def error(self, name: str, reason: str) -> FieldError:
        """The error for one field, with its value shortened."""
        value = self.get(name)
        shown = "" if value is None else f"{str(value)[:60]!r} "
        return FieldError(f"{self._prefix}{name}: {shown}{reason}")

    def _required(self, name: str, default: object) -> object:
        value = self.get(name)
        if value is None:
            value = default
        if value is None:
            raise FieldError(f"{self._prefix}{name}: is missing")
        return value


def _is_positive(value: object) -> bool:
    try:
        return 0 < float(value) < math.inf  # type: ignore[arg-type]
    except OverflowError:  # a JSON integer of hundreds of digits
        return False
