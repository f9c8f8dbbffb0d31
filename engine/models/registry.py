"""The model families that can be loaded. A new family is one file and one entry here."""

from engine.models.families.family import Family
from engine.models.families.fields import FieldError
from engine.models.families.llama import LLAMA
from engine.models.families.qwen2 import QWEN2

FAMILIES = (LLAMA, QWEN2)


def family_of_hf(architecture: str) -> Family:
    """The family of an entry of config.json's `architectures`; FieldError names the supported."""
    return _find("architectures", architecture, {each.hf_architecture: each for each in FAMILIES})


def family_of_gguf(architecture: str) -> Family:
    """The family of a GGUF file's `general.architecture`; FieldError names the supported."""
    return _find("general.architecture", architecture, {each.name: each for each in FAMILIES})


def _find(field: str, name: str, families: dict[str, Family]) -> Family:
    if name not in families:
        supported = ", ".join(families)
        raise FieldError(f"{field}: {name[:60]!r} is not supported; supported: {supported}")
    return families[name]
