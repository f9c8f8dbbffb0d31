"""A cursor over the bytes of a GGUF file: every read is checked against the file first."""

import mmap
import struct
from pathlib import Path
from typing import NoReturn

from engine.loading.source import CheckpointError

_LENGTH = struct.Struct("<Q")


def map_file(path: Path) -> mmap.mmap:
    """Maps a regular, non-empty file for reading; a CheckpointError says why it cannot be."""
    try:
        if not path.exists():
            raise CheckpointError(f"{path}: the file does not exist")
        if not path.is_file():  # opening a pipe would wait for its writer
            raise CheckpointError(f"{path}: not a regular file")
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise CheckpointError(f"{path}: the file is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


class ByteCursor:
    """Reads little-endian fields one after the other. `field` names what is read, for messages."""

    __slots__ = ("_data", "_path", "position")

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self.position = 0

    @property
    def remaining(self) -> int:
        """Bytes between the cursor and the end of the file."""
        return len(self._data) - self.position

    def fail(self, field: str, reason: str) -> NoReturn:
        """Raises the CheckpointError for one field."""
        raise CheckpointError(f"{self._path}: {field}: {reason}")

    def take(self, num_bytes: int, field: str) -> bytes:
        """The next num_bytes bytes."""
        if num_bytes > self.remaining:
            self.fail(field, f"needs {num_bytes} bytes, but {self.remaining} are left in the file")
        start = self.position
        self.position += num_bytes
        return self._data[start : self.position]

    def number(self, layout: struct.Struct, field: str) -> int | float:
        """One number."""
        value: int | float = layout.unpack(self.take(layout.size, field))[0]
        return value

    def count(self, layout: struct.Struct, field: str, min_bytes_each: int) -> int:
        """A number of items of which each takes at least min_bytes_each in the rest of the file."""
        count = int(self.number(layout, field))
        if count * min_bytes_each > self.remaining:
            reason = f"{count} items cannot fit into the {self.remaining} bytes left in the file"
            self.fail(field, reason)
        return count

    def string(self, field: str, max_bytes: int | None = None) -> str:
        """A string with its 64-bit length in front."""
        length = int(self.number(_LENGTH, f"{field} (length)"))
        if max_bytes is not None and length > max_bytes:
            self.fail(f"{field} (length)", f"{length} bytes exceed the limit of {max_bytes}")
        return self._decoded(self.take(length, field), field)

    def strings(self, count: int, field: str) -> list[str]:
        """An array of strings. The loop is flat because vocabularies hold 100,000 of them."""
        data, position, size = self._data, self.position, len(self._data)
        strings: list[str] = []
        for number in range(count):
            start = position + _LENGTH.size
            length = _LENGTH.unpack_from(data, position)[0] if start <= size else size
            position = start + length
            if position > size:
                self.fail(f"{field}[{number}] (length)", "exceeds the end of the file")
            strings.append(self._decoded(data[start:position], field))
        self.position = position
        return strings

    def _decoded(self, stored: bytes, field: str) -> str:
        try:
            return stored.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(field, "is not valid UTF-8")
