"""A Hugging Face model directory as a CheckpointSource."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import torch

from engine.loading.expected import index_digest, match_tensors
from engine.loading.json_file import read_json_fields
from engine.loading.safetensors_files import SafetensorsFiles
from engine.loading.sampling import read_sampling_defaults
from engine.loading.source import CheckpointError, SamplingDefaults
from engine.models.config import ModelConfig
from engine.models.families.family import Family
from engine.models.families.fields import FieldError, Fields
from engine.models.registry import family_of_hf

_SAMPLED_VALUES = 32
_DTYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SAMPLING_FIELDS = {
    name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
}


class SafetensorsSource:
    """Reads a decoder from config.json and safetensors; a CheckpointError names the field."""

    def __init__(self, directory: Path) -> None:
        family, config = _read_config(directory / "config.json")
        config, self.sampling_defaults = _add_generation(directory, config)
        self._files = SafetensorsFiles(directory)
        try:
            with _errors_in(directory / "model.safetensors"):
                shapes = _decoder_shapes(config, family, self._files)
                self._matches = match_tensors(config, family.hf_names, shapes)
            with _errors_in(directory / "tokenizer.json"):  # its ids are bounded by the shapes
                padding = _padding_ids(directory / "tokenizer.json", config.vocab_size)
        except CheckpointError:
            self.close()
            raise
        dtype = _DTYPE_NAMES[self._files.dtypes[self._matches["layers.0.q.weight"]]]
        self.config: ModelConfig = dataclasses.replace(
            config, padding_ids=padding, quantization=dtype
        )

    @property
    def num_parameters(self) -> int:
        """Number of stored values, a tied head counted once."""
        shapes = (self._files.shapes[stored] for stored in self._matches.values())
        return sum(torch.Size(shape).numel() for shape in shapes)

    @cached_property
    def digest(self) -> str:
        """Hex digest of the config, the tensor index and sampled values of each tensor."""
        entries = (
            (name, self._files.dtypes[stored], _sample(self._files.read(stored)))
            for name, stored in self._matches.items()
        )
        return index_digest(self.config, entries)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields each expected tensor once, in its stored dtype."""
        for name, stored in self._matches.items():
            yield name, self._files.read(stored)

    def close(self) -> None:
        """Closes the files."""
        self._files.close()


def _sample(tensor: torch.Tensor) -> bytes:
    """Values from the start, the middle and the end."""
    flat = tensor.flatten()
    middle = len(flat) // 2
    pieces = (
        flat[:_SAMPLED_VALUES],
        flat[middle : middle + _SAMPLED_VALUES],
        flat[-_SAMPLED_VALUES:],
    )
    return b"".join(piece.clone().view(torch.uint8).numpy().tobytes() for piece in pieces)


@contextmanager
def _errors_in(path: Path) -> Iterator[None]:
    """Names the file in errors that name a field."""
    try:
        yield
    except FieldError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _read_config(path: Path) -> tuple[Family, ModelConfig]:
    """The family and the config without what other files add to it."""
    fields = read_json_fields(path)
    with _errors_in(path):
        family = family_of_hf(_architecture(fields))
        fields.section("quantization_config").expect("quant_method")
        fields.expect("quantization_config")
        config = family.config_from_hf(fields)
        ends = _end_token_ids(fields, config.vocab_size)
        return family, dataclasses.replace(config, end_token_ids=ends)


def _add_generation(directory: Path, config: ModelConfig) -> tuple[ModelConfig, SamplingDefaults]:
    """generation_config.json stands before config.json where both name the end ids."""
    path = directory / "generation_config.json"
    fields = read_json_fields(path, is_required=False)
    with _errors_in(path):
        ends = _end_token_ids(fields, config.vocab_size) or config.end_token_ids
        defaults = read_sampling_defaults(fields, _SAMPLING_FIELDS)
        return dataclasses.replace(config, end_token_ids=ends), defaults


def _architecture(fields: Fields) -> str:
    listed = fields.get("architectures")
    if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], str):
        raise fields.error("architectures", "must be a list of one name")
    return listed[0]


def _decoder_shapes(
    config: ModelConfig, family: Family, files: SafetensorsFiles
) -> dict[str, tuple[int, ...]]:
    """The stored tensors less those that carry nothing: a second copy of a tied embedding, and
    the RoPE frequencies that old checkpoints kept.
    """
    head = f"{family.hf_names['head']}.weight"
    return {
        name: shape
        for name, shape in files.shapes.items()
        if not (name == head and config.tied_head) and not name.endswith(".rotary_emb.inv_freq")
    }


def _end_token_ids(fields: Fields, vocab_size: int) -> tuple[int, ...]:
    """eos_token_id is an id, a list of ids or null."""
    value = fields.get("eos_token_id")
    if value is None:
        return ()
    if not isinstance(value, list):
        return (fields.token_id("eos_token_id", vocab_size),)
    listed = Fields({f"eos_token_id[{number}]": each for number, each in enumerate(value)})
    names = (f"eos_token_id[{number}]" for number in range(len(value)))
    return tuple(sorted({listed.token_id(name, vocab_size) for name in names}))


def _padding_ids(path: Path, vocab_size: int) -> tuple[int, ...]:
    """Rows of the embedding that no token of tokenizer.json uses; none without the file."""
    fields = read_json_fields(path, is_required=False)
    if fields.get("model") is None:
        return ()
    vocabulary = fields.section("model").get("vocab")
    if isinstance(vocabulary, dict):
        used = {number for number in vocabulary.values() if isinstance(number, int)}
    elif isinstance(vocabulary, list):
        used = set(range(len(vocabulary)))
    else:
        raise FieldError("model.vocab: must be an object or a list")
    added = fields.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise fields.error("added_tokens", "must be a list of objects")
    used.update(token["id"] for token in added if isinstance(token.get("id"), int))
    return tuple(number for number in range(vocab_size) if number not in used)
