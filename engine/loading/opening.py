"""Chooses the reader of a checkpoint by what its path is."""

from pathlib import Path

from engine.loading.gguf_source import GgufSource
from engine.loading.safetensors_source import SafetensorsSource
from engine.loading.source import CheckpointError, CheckpointSource


def open_checkpoint(path: str) -> CheckpointSource:
    """Opens a GGUF file (any part of a split one) or a Hugging Face model directory.

    Raises CheckpointError naming the file and the field that is missing, damaged or not supported.
    """
    location = Path(path)
    try:
        return SafetensorsSource(location) if location.is_dir() else GgufSource(location)
    except OSError as error:  # such as a path that is too long
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
