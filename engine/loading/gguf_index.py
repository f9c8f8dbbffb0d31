"""Parses what precedes the tensor data of one GGUF file: header, metadata, tensor index."""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.loading.gguf_bytes import ByteCursor
from engine.loading.quants import STORAGE_TYPES, UNSUPPORTED_TYPE_NAMES, StorageType

MetadataValue = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20
_MAX_KEY_BYTES = 65535  # the format's own limit, for keys and tensor names
_MAX_DIMENSIONS = 4

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: _U32,
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<B"),
    10: _U64,
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_FLOAT32, _BOOL, _STRING, _ARRAY = 6, 7, 8, 9

# The least a metadata pair (key length, type, one byte) and a tensor record (name length, number of
# dimensions, one dimension, type, offset) can take.
_MIN_PAIR_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor. shape: outermost dimension first. offset: from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: StorageType
    offset: int
    nbytes: int

    @property
    def num_values(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufIndex:
    """Everything in front of the tensor data of one file."""

    version: int
    metadata: dict[str, MetadataValue]
    tensors: dict[str, TensorInfo]


def parse_index(data: mmap.mmap, path: Path) -> GgufIndex:
    """Parses and checks the index; a CheckpointError names the field that is wrong."""
    cursor = ByteCursor(data, path)
    version = _parse_version(cursor)
    num_tensors = cursor.count(_U64, "tensor count", _MIN_TENSOR_BYTES)
    num_pairs = cursor.count(_U64, "metadata count", _MIN_PAIR_BYTES)
    metadata: dict[str, MetadataValue] = {}
    for number in range(num_pairs):
        key = cursor.string(f"metadata key {number}", _MAX_KEY_BYTES)
        if key in metadata:
            cursor.fail(f"metadata {key!r}", "occurs twice")
        metadata[key] = _parse_value(cursor, f"metadata {key!r}")
    alignment = _alignment(cursor, metadata)
    records = [_parse_tensor(cursor, number, alignment) for number in range(num_tensors)]
    # Tensor offsets count from the first aligned byte after the index.
    start = -(-cursor.position // alignment) * alignment
    return GgufIndex(version, metadata, _place_tensors(cursor, records, start, len(data)))


def _parse_version(cursor: ByteCursor) -> int:
    if (magic := cursor.take(4, "magic")) != _MAGIC:
        cursor.fail("magic", f"is {magic!r}; a GGUF file starts with {_MAGIC!r}")
    version = int(cursor.number(_U32, "version"))
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
        reason = "the file is big-endian" if swapped else f"version {version}"
        cursor.fail("version", f"{reason} is not supported; supported are little-endian 2 and 3")
    return version


def _parse_value(cursor: ByteCursor, field: str) -> MetadataValue:
    kind = int(cursor.number(_U32, f"{field} (type)"))
    if kind == _STRING:
        return cursor.string(field)
    if kind == _ARRAY:
        return _parse_array(cursor, field)
    if kind not in _SCALARS:
        cursor.fail(f"{field} (type)", f"{kind} is not a value type")
    value = cursor.number(_SCALARS[kind], field)
    if kind == _FLOAT32:  # the shortest decimal: 1e-5 stored as float32 is read as 1e-5
        return float(str(np.float32(value)))
    return _checked_bools(cursor, field, [int(value)])[0] if kind == _BOOL else value


def _parse_array(cursor: ByteCursor, field: str) -> MetadataValue:
    kind = int(cursor.number(_U32, f"{field} (element type)"))
    if kind == _STRING:
        length = cursor.count(_U64, f"{field} (array length)", _U64.size)
        return cursor.strings(length, field)
    if kind not in _SCALARS:
        cursor.fail(f"{field} (element type)", f"{kind} is not a supported element type")
    layout = _SCALARS[kind]
    length = cursor.count(_U64, f"{field} (array length)", layout.size)
    stored = cursor.take(length * layout.size, field)
    values: list[int] = np.frombuffer(stored, dtype=layout.format).tolist()
    return _checked_bools(cursor, field, values) if kind == _BOOL else values


def _checked_bools(cursor: ByteCursor, field: str, values: list[int]) -> list[bool]:
    if any(value not in (0, 1) for value in values):
        cursor.fail(field, "a boolean is neither 0 nor 1")
    return [bool(value) for value in values]


def _alignment(cursor: ByteCursor, metadata: dict[str, MetadataValue]) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(value) is not int or not 1 <= value <= _MAX_ALIGNMENT or value & (value - 1):
        cursor.fail(
            "metadata 'general.alignment'",
            f"is {str(value)[:40]}; it must be a power of two up to {_MAX_ALIGNMENT}",
        )
    return value


def _parse_tensor(cursor: ByteCursor, number: int, alignment: int) -> TensorInfo:
    """One record; its offset still counts from the start of the data section."""
    name = cursor.string(f"tensor {number} (name)", _MAX_KEY_BYTES)
    field = f"tensor {name!r}"
    num_dimensions = int(cursor.number(_U32, f"{field} (number of dimensions)"))
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        reason = f"is {num_dimensions}; it must be 1 to {_MAX_DIMENSIONS}"
        cursor.fail(f"{field} (number of dimensions)", reason)
    # The file lists the innermost dimension first.
    sizes = [int(cursor.number(_U64, f"{field} (dimensions)")) for _ in range(num_dimensions)]
    if 0 in sizes:
        cursor.fail(f"{field} (dimensions)", f"{sizes} hold a zero")
    kind = _storage_type(cursor, field, sizes[0])
    offset = int(cursor.number(_U64, f"{field} (offset)"))
    if offset % alignment:
        cursor.fail(f"{field} (offset)", f"{offset} is not a multiple of the alignment {alignment}")
    return TensorInfo(name, tuple(sizes[::-1]), kind, offset, kind.num_bytes(math.prod(sizes)))


def _storage_type(cursor: ByteCursor, field: str, row_values: int) -> StorageType:
    number = int(cursor.number(_U32, f"{field} (type)"))
    kind = STORAGE_TYPES.get(number)
    if kind is None:
        name = UNSUPPORTED_TYPE_NAMES.get(number, f"number {number}")
        supported = ", ".join(known.name for known in STORAGE_TYPES.values())
        cursor.fail(f"{field} (type)", f"{name} is not supported; supported are {supported}")
    if row_values % kind.block_values:
        reason = f"a row of {row_values} values is not made of {kind.name} blocks"
        cursor.fail(f"{field} (dimensions)", f"{reason} of {kind.block_values}")
    return kind


def _place_tensors(
    cursor: ByteCursor, records: list[TensorInfo], start: int, file_size: int
) -> dict[str, TensorInfo]:
    """Turns offsets into positions in the file and checks that no two tensors share a byte."""
    tensors: dict[str, TensorInfo] = {}
    end = start
    for record in sorted(records, key=lambda record: record.offset):
        offset, field = start + record.offset, f"tensor {record.name!r}"
        if record.name in tensors:
            cursor.fail(f"{field} (name)", "occurs twice")
        if offset + record.nbytes > file_size:
            reason = f"bytes {offset} to {offset + record.nbytes} exceed the file's {file_size}"
            cursor.fail(f"{field} (offset)", reason)
        if offset < end:
            cursor.fail(f"{field} (offset)", f"its data at byte {offset} overlaps another tensor's")
        end = offset + record.nbytes
        tensors[record.name] = TensorInfo(
            record.name, record.shape, record.type, offset, record.nbytes
        )
    return tensors
