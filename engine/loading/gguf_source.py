"""A GGUF model as a CheckpointSource: metadata and tensors under the decoder's own names."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch

from engine.loading.expected import index_digest, match_tensors
from engine.loading.gguf import GgufFile
from engine.loading.sampling import read_sampling_defaults
from engine.loading.source import CheckpointError, SamplingDefaults
from engine.models.config import ModelConfig
from engine.models.families.family import Family, StoredFacts, stored_name
from engine.models.families.fields import FieldError, Fields
from engine.models.registry import family_of_gguf

_T = TypeVar("_T", str, int)

_ROPE_FACTORS = "rope_freqs.weight"
_CONTROL, _UNUSED = 3, 5  # values of tokenizer.ggml.token_type
_SAMPLED_BYTES = 64

_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

# Control tokens that end a turn whatever the metadata says, as llama.cpp treats them.
_END_TOKENS = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>"),
        *("<|calls|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>"),
        *("_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>"),
    )
)

_FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    32: "BF16",
}

_SAMPLING_FIELDS = {
    "temperature": "temp",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


class GgufSource:
    """Reads a decoder from a GGUF file or the parts of one; a CheckpointError names the field."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile(path)
        try:
            self._family = family_of_gguf(Fields(self._file.metadata).text("general.architecture"))
            self.config: ModelConfig = _read_config(self._file, self._family)
            shapes = {name: info.shape for name, info in self._file.tensors.items()}
            shapes.pop(_ROPE_FACTORS, None)
            self._matches = match_tensors(self.config, self._family.gguf_names, shapes)
            self.sampling_defaults: SamplingDefaults = read_sampling_defaults(
                _prefixed(self._file.metadata, "general.sampling."), _SAMPLING_FIELDS
            )
        except FieldError as error:
            self.close()
            raise CheckpointError(f"{path}: {error}") from error

    @property
    def num_parameters(self) -> int:
        """Number of stored values, a tied head counted once."""
        infos = self._file.tensors
        return sum(infos[stored].num_values for stored in self._matches.values())

    @cached_property
    def digest(self) -> str:
        """Hex digest of the config, the tensor index and sampled bytes of each tensor."""
        infos = self._file.tensors
        entries = (
            (name, infos[stored].type.name, self._file.sample(stored, _SAMPLED_BYTES))
            for name, stored in self._matches.items()
        )
        return index_digest(self.config, entries)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields each expected tensor once, decoded, with q and k in half-split row order."""
        heads = {"q": self.config.num_heads, "k": self.config.num_kv_heads}
        for name, stored in self._matches.items():
            tensor = self._file.read(stored)
            part = name.split(".")[-2]
            if part in self._family.interleaved_in_gguf:
                tensor = _half_split(tensor, heads[part])
            yield name, tensor

    def close(self) -> None:
        """Unmaps the file."""
        self._file.close()


def _half_split(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Row 2i + h of each head moves to row h * head_dim / 2 + i."""
    pairs = rows.view(num_heads, -1, 2, *rows.shape[1:])  # [heads, head_dim / 2, 2, ...]
    return pairs.transpose(1, 2).reshape(rows.shape)


def _prefixed(metadata: Mapping[str, object], prefix: str) -> Fields:
    """The keys under a prefix; messages keep the whole key."""
    return Fields(
        {key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)},
        prefix,
    )


def _read_config(file: GgufFile, family: Family) -> ModelConfig:
    facts = _stored_facts(file, family)
    config = family.config_from_gguf(_prefixed(file.metadata, f"{family.name}."), facts)
    expected_factors = config.rope.dim // 2
    if facts.frequency_factors and len(facts.frequency_factors) != expected_factors:
        raise FieldError(f"tensor {_ROPE_FACTORS!r}: must hold {expected_factors} values")
    vocabulary = _prefixed(file.metadata, "tokenizer.ggml.")
    tokens = _token_list(vocabulary, "tokens", str, None)
    if len(tokens) > config.vocab_size:
        reason = f"{len(tokens)} tokens exceed the {config.vocab_size} rows of the embedding"
        raise FieldError(f"tokenizer.ggml.tokens: {reason}")
    kinds = _token_list(vocabulary, "token_type", int, len(tokens))
    unused = [number for number, kind in enumerate(kinds) if kind == _UNUSED]
    missing = range(len(tokens), config.vocab_size) if tokens else ()
    return dataclasses.replace(
        config,
        padding_ids=(*unused, *missing),
        end_token_ids=_end_token_ids(vocabulary, tokens, kinds, config.vocab_size),
        quantization=_quantization(file),
    )


def _stored_facts(file: GgufFile, family: Family) -> StoredFacts:
    embedding = stored_name("embed.weight", family.gguf_names)
    if embedding not in file.tensors:
        raise FieldError(f"tensor {embedding!r}: is missing")
    factors = file.read(_ROPE_FACTORS).double() if _ROPE_FACTORS in file.tensors else torch.ones(0)
    if not bool(((factors > 0) & factors.isfinite()).all()):
        raise FieldError(f"tensor {_ROPE_FACTORS!r}: must hold positive numbers")
    return StoredFacts(
        vocab_size=file.tensors[embedding].shape[0],
        tied_head=stored_name("head.weight", family.gguf_names) not in file.tensors,
        frequency_factors=tuple(factors.flatten().tolist()),
    )


def _token_list(fields: Fields, name: str, kind: type[_T], length: int | None) -> list[_T]:
    """A list with one value for each token; empty where it is absent."""
    values = fields.get(name)
    if values is None:
        return []
    if not isinstance(values, list) or any(type(value) is not kind for value in values[:1]):
        raise fields.error(name, f"must be an array of {kind.__name__}")
    if length is not None and len(values) != length:
        raise FieldError(f"tokenizer.ggml.{name}: has {len(values)} values for {length} tokens")
    return values


def _end_token_ids(
    fields: Fields, tokens: list[str], kinds: list[int], vocab_size: int
) -> tuple[int, ...]:
    ends = {
        number
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind == _CONTROL and token in _END_TOKENS
    }
    for name in _END_KEYS:
        if fields.get(name) is not None:
            ends.add(fields.token_id(name, vocab_size))
    return tuple(sorted(ends))


def _quantization(file: GgufFile) -> str:
    stated = file.metadata.get("general.file_type")
    if isinstance(stated, int) and stated in _FILE_TYPES:
        return _FILE_TYPES[stated]
    bytes_by_type: Counter[str] = Counter()
    for info in file.tensors.values():
        bytes_by_type[info.type.name] += info.nbytes
    return bytes_by_type.most_common(1)[0][0]
