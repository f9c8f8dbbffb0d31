"""Why an engine could not be loaded, carried over a process border as class names and text."""

from collections.abc import Sequence

from service.frames import LoadFailed


class EngineStartError(Exception):
    """The engine could not be started; the message says why."""


# Classes that take their message as the only argument and mean the same on both sides.
_CLASSES: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        ValueError,
        FileNotFoundError,
        IsADirectoryError,
        NotADirectoryError,
        PermissionError,
        OSError,
        MemoryError,
        ImportError,
        EngineStartError,
    )
}


def rebuild_load_error(failed: LoadFailed) -> Exception:
    """The same kind of exception with the same text; EngineStartError for all other kinds."""
    return _nearest_class(failed.kinds)(failed.message)


def _nearest_class(kinds: Sequence[str]) -> type[Exception]:
    for kind in kinds:
        if kind == "CheckpointError":
            # Late: it loads torch, which the client of a process otherwise does without.
            from engine.loading.source import CheckpointError

            return CheckpointError
        if kind in _CLASSES:
            return _CLASSES[kind]
    return EngineStartError
