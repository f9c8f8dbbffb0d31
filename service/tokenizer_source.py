"""Reads what a Hugging Face model directory says about text: tokenizer.json and its companions."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers


class TokenizerError(ValueError):
    """A tokenizer is missing, damaged or not supported. The message names the file or the field."""


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """What a model's files say about text.

    end_ids: ids that end an answer, eos_id among them. chat_template: jinja source, None where
    the model has none.
    """

    backend: tokenizers.Tokenizer
    bos_id: int | None
    eos_id: int | None
    end_ids: frozenset[int]
    chat_template: str | None


def read_tokenizer_directory(directory: Path) -> TokenizerSource:
    """Reads tokenizer.json, tokenizer_config.json, generation_config.json and the template.

    Raises TokenizerError naming the file.
    """
    backend = read_tokenizer_json(directory / "tokenizer.json")
    config = _read_json_object(directory / "tokenizer_config.json")
    bos_id = _token_id(backend, config.get("bos_token"))
    eos_id = _token_id(backend, config.get("eos_token"))
    return TokenizerSource(
        backend=backend,
        bos_id=bos_id,
        eos_id=eos_id,
        end_ids=_end_ids(directory, eos_id),
        chat_template=_read_chat_template(directory, config),
    )


def read_tokenizer_json(path: Path) -> tokenizers.Tokenizer:
    """Opens a tokenizer.json with its own truncation and padding turned off."""
    if not path.is_file():
        raise TokenizerError(f"{path} does not exist: the model has no tokenizer")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path}: not a tokenizer that we can read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_json_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: must hold a JSON object")
    return value


def _token_id(backend: tokenizers.Tokenizer, token: Any) -> int | None:
    """The id of a token given as text or as {"content": text}."""
    text = token.get("content") if isinstance(token, dict) else token
    return backend.token_to_id(text) if isinstance(text, str) else None


def _end_ids(directory: Path, eos_id: int | None) -> frozenset[int]:
    listed = _read_json_object(directory / "generation_config.json").get("eos_token_id")
    if listed is None:
        listed = _read_json_object(directory / "config.json").get("eos_token_id")
    ids = listed if isinstance(listed, list) else [listed]
    return frozenset(id_ for id_ in [eos_id, *ids] if isinstance(id_, int))


def _read_chat_template(directory: Path, config: dict[str, Any]) -> str | None:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # [{"name": "default", "template": "..."}, ...]
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None
