"""Reads one JSON object from a file of a model directory, bounded and checked."""

import json
from pathlib import Path

from engine.loading.source import CheckpointError
from engine.models.families.fields import Fields

_MAX_BYTES = 64 * 1024 * 1024  # the largest tokenizer.json in use is about half of this


def read_json_fields(path: Path, *, is_required: bool = True) -> Fields:
    """The object's fields, none for an absent optional file; CheckpointError names the file."""
    if not path.is_file():
        if is_required:
            raise CheckpointError(f"{path}: the file does not exist")
        return Fields({})
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise CheckpointError(f"{path}: exceeds {_MAX_BYTES} bytes")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return Fields(value)
