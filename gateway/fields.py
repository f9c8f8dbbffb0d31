"""Reads one JSON object of a request field by field; every refusal names the field by its path."""

from collections.abc import Iterator
from typing import Any

from gateway import errors


class Fields:
    """One JSON object. `null` reads as absent; a field that nobody asked for is unknown.

    path: dotted path of the object within the request, "" for the request itself.
    ignore_unknown: whether `check_unknown` lets unknown fields pass; holds for nested objects too.
    """

    def __init__(self, values: dict[str, Any], path: str = "", ignore_unknown: bool = False):
        self._values = values
        self._path = path
        self._ignore_unknown = ignore_unknown
        self._known: set[str] = set()

    def path_of(self, name: str) -> str:
        """Dotted path of a field."""
        return f"{self._path}.{name}" if self._path else name

    def value(self, name: str) -> Any:
        """Any JSON value, None if absent."""
        self._known.add(name)
        return self._values.get(name)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.value(name) is not None

    def require(self, name: str) -> Any:
        """A value that must be there."""
        value = self.value(name)
        if value is None:
            raise errors.missing_parameter(self.path_of(name))
        return value

    def boolean(self, name: str) -> bool | None:
        """true or false."""
        value = self.value(name)
        if value is None or isinstance(value, bool):
            return value
        raise errors.invalid_type(self.path_of(name), "a boolean", value)

    def integer(
        self, name: str, minimum: int | None = None, maximum: int | None = None
    ) -> int | None:
        """An integer within inclusive bounds."""
        value = self.value(name)
        return None if value is None else check_integer(value, self.path_of(name), minimum, maximum)

    def number(
        self, name: str, minimum: float, maximum: float, exclusive_minimum: bool = False
    ) -> float | None:
        """A number within inclusive bounds, or above an exclusive minimum."""
        value = self.value(name)
        if value is None:
            return None
        return check_number(value, self.path_of(name), minimum, maximum, exclusive_minimum)

    def string(
        self, name: str, max_length: int | None = None, choices: tuple[str, ...] = ()
    ) -> str | None:
        """A string of at most max_length characters, or one of the choices."""
        value = self.value(name)
        if value is None:
            return None
        return check_string(value, self.path_of(name), max_length, choices)

    def array(self, name: str, max_length: int) -> list[Any] | None:
        """An array of at most max_length items."""
        value = self.value(name)
        return None if value is None else check_array(value, self.path_of(name), max_length)

    def object(self, name: str) -> "Fields | None":
        """A nested object."""
        value = self.value(name)
        return None if value is None else self._nested(value, self.path_of(name))

    def objects(self, name: str, max_length: int) -> "list[Fields] | None":
        """An array of objects."""
        items = self.array(name, max_length)
        if items is None:
            return None
        path = self.path_of(name)
        return [self._nested(item, f"{path}[{i}]") for i, item in enumerate(items)]

    def items(self) -> Iterator[tuple[str, Any]]:
        """All fields, for objects that are maps."""
        return iter(self._values.items())

    def refuse(self, *names: str) -> None:
        """Fields of the API that this server does not have."""
        for name in names:
            if self.has(name):
                raise errors.unsupported_parameter(self.path_of(name))

    def check_unknown(self) -> None:
        """Refuses the first field that nobody read."""
        if self._ignore_unknown:
            return
        for name in self._values:
            if name not in self._known:
                raise errors.unknown_parameter(self.path_of(name[:128]))

    def _nested(self, value: Any, path: str) -> "Fields":
        if not isinstance(value, dict):
            raise errors.invalid_type(path, "an object", value)
        return Fields(value, path, self._ignore_unknown)


def check_integer(
    value: object, path: str, minimum: int | None = None, maximum: int | None = None
) -> int:
    """An integer within inclusive bounds; booleans are none."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise errors.invalid_type(path, "an integer", value)
    if minimum is not None and value < minimum:
        raise errors.out_of_range(path, "integer_below_min_value", f"a value >= {minimum}", value)
    if maximum is not None and value > maximum:
        raise errors.out_of_range(path, "integer_above_max_value", f"a value <= {maximum}", value)
    return value


def check_number(
    value: object, path: str, minimum: float, maximum: float, exclusive_minimum: bool = False
) -> float:
    """A finite number within inclusive bounds, or above an exclusive minimum."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise errors.invalid_type(path, "a decimal", value)
    if value < minimum or (exclusive_minimum and value == minimum):
        expected = f"a value {'>' if exclusive_minimum else '>='} {minimum:g}"
        raise errors.out_of_range(path, "decimal_below_min_value", expected, value)
    if value > maximum:
        raise errors.out_of_range(path, "decimal_above_max_value", f"a value <= {maximum:g}", value)
    return float(value)


def check_string(
    value: object, path: str, max_length: int | None = None, choices: tuple[str, ...] = ()
) -> str:
    """A string of at most max_length characters, or one of the choices."""
    if not isinstance(value, str):
        raise errors.invalid_type(path, "a string", value)
    if max_length is not None and len(value) > max_length:
        expected = f"a string of at most {max_length} characters"
        raise errors.out_of_range(path, "string_above_max_length", expected, len(value))
    if choices and value not in choices:
        supported = ", ".join(f"'{choice}'" for choice in choices)
        raise errors.invalid_value(path, f"'{value[:128]}'; supported values are {supported}")
    return value


def check_array(value: object, path: str, max_length: int) -> list[Any]:
    """An array of at most max_length items."""
    if not isinstance(value, list):
        raise errors.invalid_type(path, "an array", value)
    if len(value) > max_length:
        expected = f"an array of at most {max_length} items"
        raise errors.out_of_range(path, "array_above_max_length", expected, len(value))
    return value
