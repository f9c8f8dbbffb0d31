"""The models directory: what lies in it, under which names, and how a model leaves it."""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tenon.models.registry import built_in_models

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-\d{5}")
_QUANTIZATION = re.compile(r"(?i)(?:^|[-._])(I?Q\d(?:_[0-9A-Z]+)*|B?F16|F32)$")


def models_directory() -> Path:
    """Where models are kept: TENON_MODEL_DIR, else tenon/models in the user's cache."""
    configured = os.environ.get("TENON_MODEL_DIR")
    if configured:
        return Path(configured).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tenon" / "models"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in the store. size: bytes of all its files. modified: seconds since the epoch.

    files: what belongs to it, one directory or the parts of one model.
    quantization: what its name or the registry says, "" where neither does.
    """

    name: str
    path: Path
    files: tuple[Path, ...]
    size: int
    quantization: str
    modified: float


class ModelStore:
    """The models in one directory: .gguf files, whole or in parts, and model directories."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def list(self) -> list[StoredModel]:
        """All models in the order of their names."""
        if not self.directory.is_dir():
            return []
        groups: dict[str, list[Path]] = {}
        for path in sorted(self.directory.iterdir()):
            name = _model_name(path)
            if name is not None:
                groups.setdefault(name, []).append(path)
        return [_stored(name, tuple(paths)) for name, paths in groups.items()]

    def find(self, name: str) -> StoredModel | None:
        """The model of that name; the name may end in .gguf."""
        wanted = name.removesuffix(".gguf")
        return next((model for model in self.list() if model.name == wanted), None)

    def remove(self, model: StoredModel) -> None:
        """Deletes a model from the disk."""
        for path in model.files:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def model_name_of_path(path: Path) -> str:
    """The name under which a model at `path` is served unless told otherwise."""
    stem = path.stem if path.suffix == ".gguf" else path.name
    match = _PART_NAME.fullmatch(stem)
    return match["stem"] if match else stem


def _model_name(path: Path) -> str | None:
    if path.name.startswith("."):
        return None
    is_model = path.suffix == ".gguf" or (path / "config.json").is_file()
    return model_name_of_path(path) if is_model else None


def _stored(name: str, paths: tuple[Path, ...]) -> StoredModel:
    files = [file for path in paths for file in _files_of(path)]
    statuses = [file.stat() for file in files]
    return StoredModel(
        name=name,
        path=paths[0],
        files=paths,
        size=sum(status.st_size for status in statuses),
        quantization=_quantization(name),
        modified=max((status.st_mtime for status in statuses), default=0.0),
    )


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path] if path.exists() else []  # a dangling link has no size
    return [file for file in path.rglob("*") if file.is_file()]


def _quantization(name: str) -> str:
    registered = built_in_models().get(name)
    if registered is not None:
        return registered.quantization
    match = _QUANTIZATION.search(name)
    return match[1].upper() if match else ""
