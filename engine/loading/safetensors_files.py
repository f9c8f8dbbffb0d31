"""The safetensors files of a model directory: one file, or shards listed by an index."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.loading.json_file import read_json_fields
from engine.loading.source import CheckpointError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = ("F32", "F16", "BF16")


class SafetensorsFiles:
    """Opened shards. shapes and dtypes are known before any tensor is read."""

    def __init__(self, directory: Path) -> None:
        """Opens all shards and reads their headers; a CheckpointError names file and field."""
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self._owners: dict[str, Any] = {}
        self._stack = ExitStack()
        try:
            for path, names in _shards(directory).items():
                self._add_shard(path, names)
        except CheckpointError:
            self.close()
            raise

    def read(self, name: str) -> torch.Tensor:
        """The tensor in its stored dtype; its memory is the mapped file until it is copied."""
        tensor: torch.Tensor = self._owners[name].get_tensor(name)
        return tensor

    def close(self) -> None:
        """Closes the shards."""
        self._owners.clear()
        self._stack.close()

    def _add_shard(self, path: Path, names: list[str] | None) -> None:
        try:
            if not path.is_file():
                raise CheckpointError(f"{path}: the file does not exist")
            shard = self._stack.enter_context(safe_open(path, framework="pt"))
            stored = set(shard.keys())
            for name in sorted(stored) if names is None else names:
                if name not in stored:
                    raise CheckpointError(f"{path}: tensor {name!r}: is missing, but in {_INDEX}")
                view = shard.get_slice(name)
                self.shapes[name] = tuple(view.get_shape())
                self.dtypes[name] = str(view.get_dtype())
                self._owners[name] = shard
                _check_dtype(path, name, self.dtypes[name])
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: safetensors header: {error}") from error


def _check_dtype(path: Path, name: str, dtype: str) -> None:
    if dtype not in _DTYPES:
        supported = ", ".join(_DTYPES)
        reason = f"{dtype} is not supported; supported: {supported}"
        raise CheckpointError(f"{path}: tensor {name!r} (dtype): {reason}")


def _shards(directory: Path) -> dict[Path, list[str] | None]:
    """Names of the tensors to take from each file; None for all."""
    if (directory / _SINGLE).exists():
        return {directory / _SINGLE: None}
    index = directory / _INDEX
    if not index.exists():
        raise CheckpointError(
            f"{directory}: neither {_SINGLE} nor {_INDEX} exists (other formats are not read)"
        )
    weight_map = read_json_fields(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map: must be an object with a file for each tensor")
    shards: dict[Path, list[str] | None] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or "\0" in file:
            shown = str(file)[:60]
            reason = f"{shown!r} is not the name of a file in the directory"
            raise CheckpointError(f"{index}: weight_map.{name[:60]}: {reason}")
        names = shards.setdefault(directory / file, [])
        assert names is not None
        names.append(name)
    return shards
