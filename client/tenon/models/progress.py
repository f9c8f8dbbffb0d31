"""How whoever fetches a model tells how far it is."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class ByteCounter(Protocol):
    """Takes the number of bytes that are done."""

    def __call__(self, done: int) -> None: ...


class FetchProgress(Protocol):
    """Shows stages of a fetch, one after the other."""

    def stage(self, description: str, total: int) -> AbstractContextManager[ByteCounter]:
        """Begins a stage of `total` bytes; leaving it ends it."""


class ConsoleProgress:
    """Bars on a terminal, one line a stage elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def stage(self, description: str, total: int) -> Iterator[ByteCounter]:
        """Shows a bar while the stage lasts."""
        if not self._console.is_terminal:
            self._console.print(f"{description} ({total / 1e6:.0f} MB)", soft_wrap=True)
            yield lambda done: None
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(description, total=total)
            yield lambda done: progress.update(task, completed=done)
            progress.update(task, completed=total)
