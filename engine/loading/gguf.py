"""GGUF files of versions 2 and 3, whole or split into parts: metadata and decoded tensors.

Knows the container only; what the metadata and the tensor names mean is gguf_source's matter.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from engine.loading.gguf_bytes import map_file
from engine.loading.gguf_index import GgufIndex, MetadataValue, TensorInfo, parse_index
from engine.loading.quants import Bytes, decode_tensor
from engine.loading.source import CheckpointError

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class GgufFile:
    """An opened GGUF model. A split model is opened through any of its parts."""

    def __init__(self, path: str | Path) -> None:
        """Maps and checks the file or all its parts; a CheckpointError names file and field."""
        self.path = Path(path)
        opened = _GgufPart(self.path)
        self._parts = [opened]
        try:
            self._parts = _open_all_parts(opened)
            self._owners = _owners_by_tensor(self._parts)
            _check_num_tensors(self._parts[0], len(self._owners))
        except CheckpointError:
            self.close()
            opened.close()
            raise

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        """Metadata of the file, or of the first part."""
        return MappingProxyType(self._parts[0].index.metadata)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """All tensors by name."""
        return {name: part.index.tensors[name] for name, part in self._owners.items()}

    def read(self, name: str) -> torch.Tensor:
        """The decoded tensor, a copy that outlives the file: float32, float16 or bfloat16."""
        part = self._owners[name]
        info = part.index.tensors[name]
        return decode_tensor(info.type, part.stored_bytes(name), info.shape)

    def sample(self, name: str, num_bytes: int) -> bytes:
        """Up to num_bytes from each of the start, the middle and the end of a tensor's bytes."""
        stored = self._owners[name].stored_bytes(name)
        middle = len(stored) // 2
        pieces = (stored[:num_bytes], stored[middle : middle + num_bytes], stored[-num_bytes:])
        return b"".join(piece.tobytes() for piece in pieces)

    def close(self) -> None:
        """Unmaps the file and its parts."""
        for part in self._parts:
            part.close()


class _GgufPart:
    """One mapped file."""

    __slots__ = ("_data", "index", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = map_file(path)
        try:
            self.index: GgufIndex = parse_index(self._data, path)
        except CheckpointError:
            self._data.close()
            raise

    def stored_bytes(self, name: str) -> Bytes:
        info = self.index.tensors[name]
        return np.frombuffer(self._data, dtype=np.uint8, count=info.nbytes, offset=info.offset)

    def number(self, key: str, default: int) -> int:
        value = self.index.metadata.get(key, default)
        if type(value) is not int or value < 0:
            raise CheckpointError(f"{self.path}: metadata {key!r}: must be a non-negative integer")
        return value

    def close(self) -> None:
        self._data.close()


def _open_all_parts(opened: _GgufPart) -> list[_GgufPart]:
    """The parts in order; `opened` takes its own place among them."""
    count = opened.number("split.count", 1)
    if count <= 1:
        return [opened]
    match = _PART_NAME.fullmatch(opened.path.name)
    if match is None or int(match["count"]) != count:
        raise CheckpointError(
            f"{opened.path}: metadata 'split.count': is {count}, so that the file's name must end "
            f"in -NNNNN-of-{count:05d}.gguf"
        )
    names = [f"{match['stem']}-{number + 1:05d}-of-{count:05d}.gguf" for number in range(count)]
    parts: list[_GgufPart] = []
    try:
        for number, name in enumerate(names):
            is_opened = name == opened.path.name
            parts.append(opened if is_opened else _GgufPart(opened.path.with_name(name)))
            _check_part(parts[-1], number, count)
    except CheckpointError:
        for part in parts:
            part.close()
        raise
    return parts


def _check_part(part: _GgufPart, number: int, count: int) -> None:
    for key, expected in (("split.no", number), ("split.count", count)):
        if part.number(key, 0) != expected:
            raise CheckpointError(
                f"{part.path}: metadata {key!r}: is {part.number(key, 0)}, but the file's name and "
                f"the other parts say {expected}"
            )


def _owners_by_tensor(parts: list[_GgufPart]) -> dict[str, _GgufPart]:
    owners: dict[str, _GgufPart] = {}
    for part in parts:
        for name in part.index.tensors:
            if name in owners:
                raise CheckpointError(
                    f"{part.path}: tensor {name!r} (name): is in {owners[name].path.name} too"
                )
            owners[name] = part
    return owners


def _check_num_tensors(first: _GgufPart, found: int) -> None:
    stated = first.number("split.tensors.count", found)
    if stated != found:
        raise CheckpointError(
            f"{first.path}: metadata 'split.tensors.count': is {stated}, but the parts hold {found}"
        )
