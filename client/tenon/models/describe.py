"""What a model on this disk says about itself: read from GGUF metadata or from config.json."""

import json
import math
from pathlib import Path
from typing import Any

from tenon.models.resolve import ResolvedModel
from tenon.models.wheels import FetchError

# general.file_type of GGUF files: the recipe of a file whose tensors have several types.
_FILE_TYPES: dict[Any, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    32: "BF16",
}


def describe_model(model: ResolvedModel) -> dict[str, Any]:
    """Facts by label. Raises FetchError when the files are damaged or cannot be read here."""
    facts = _directory_facts(model.path) if model.path.is_dir() else _gguf_facts(model.path)
    return {"name": model.name, "path": str(model.path), **facts}


def _gguf_facts(path: Path) -> dict[str, Any]:
    try:
        from engine.loading.gguf import GgufFile
        from engine.loading.source import CheckpointError
    except ModuleNotFoundError:
        raise FetchError(
            "reading a .gguf file needs tenon-server; tenon show --target asks a server instead"
        ) from None
    try:
        file = GgufFile(path)
    except CheckpointError as error:
        raise FetchError(str(error)) from None
    try:
        metadata, tensors = file.metadata, file.tensors
        family = str(metadata.get("general.architecture", "unknown"))
        file_type = metadata.get("general.file_type")
        tokens = metadata.get("tokenizer.ggml.tokens")
        return {
            "title": metadata.get("general.name", ""),
            "family": family,
            "parameters": sum(math.prod(tensor.shape) for tensor in tensors.values()),
            "quantization": _FILE_TYPES.get(file_type, _main_type(list(tensors.values()))),
            "context": metadata.get(f"{family}.context_length", 0),
            "layers": metadata.get(f"{family}.block_count", 0),
            "vocabulary": len(tokens) if isinstance(tokens, list) else 0,
            "chat template": "tokenizer.chat_template" in metadata,
            "license": metadata.get("general.license", "not stated"),
            "size": path.stat().st_size,
        }
    finally:
        file.close()


def _main_type(tensors: list[Any]) -> str:
    """The storage type that most tensors of two dimensions have."""
    names = [tensor.type.name for tensor in tensors if len(tensor.shape) > 1]
    return max(sorted(set(names)), key=names.count, default="none")


def _directory_facts(path: Path) -> dict[str, Any]:
    config = _read_json(path / "config.json")
    tokenizer = path / "tokenizer_config.json"
    has_template = (path / "chat_template.jinja").exists() or (
        tokenizer.exists() and "chat_template" in _read_json(tokenizer)
    )
    return {
        "family": config.get("model_type", "unknown"),
        "quantization": str(config.get("dtype") or config.get("torch_dtype") or "not stated"),
        "context": config.get("max_position_embeddings", 0),
        "layers": config.get("num_hidden_layers", 0),
        "vocabulary": config.get("vocab_size", 0),
        "chat template": has_template,
        "size": sum(file.stat().st_size for file in path.glob("*.safetensors")),
    }


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FetchError(f"{path} cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise FetchError(f"{path} is not a JSON object")
    return document
