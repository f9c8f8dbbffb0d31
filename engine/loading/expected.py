"""Which tensors a decoder needs, and whether a checkpoint has exactly these."""

import hashlib
from collections.abc import Iterator, Mapping

from engine.models.config import ModelConfig
from engine.models.families.family import stored_name
from engine.models.families.fields import FieldError

Shape = tuple[int, ...]


def expected_tensors(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of the decoder's tensors, in the order in which they are used."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield "embed.weight", (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}"
        yield f"{prefix}.attn_norm.weight", (hidden,)
        for part, rows in (("q", query), ("k", key), ("v", key)):
            yield f"{prefix}.{part}.weight", (rows, hidden)
            if config.qkv_bias:
                yield f"{prefix}.{part}.bias", (rows,)
        yield f"{prefix}.o.weight", (hidden, query)
        yield f"{prefix}.ffn_norm.weight", (hidden,)
        yield f"{prefix}.gate.weight", (ffn, hidden)
        yield f"{prefix}.up.weight", (ffn, hidden)
        yield f"{prefix}.down.weight", (hidden, ffn)
    yield "norm.weight", (hidden,)
    if not config.tied_head:
        yield "head.weight", (config.vocab_size, hidden)


def match_tensors(
    config: ModelConfig, names: Mapping[str, str], stored: Mapping[str, Shape]
) -> dict[str, str]:
    """Stored name of each expected tensor; FieldError names one that is missing, misshapen or
    left over. Stops at the first missing one, so that a huge num_layers costs nothing.
    """
    matches: dict[str, str] = {}
    for name, shape in expected_tensors(config):
        stored_as = stored_name(name, names)
        if stored_as not in stored:
            raise FieldError(f"tensor {stored_as!r}: is missing")
        if stored[stored_as] != shape:
            found = stored[stored_as]
            raise FieldError(f"tensor {stored_as!r}: shape is {found}, but the config says {shape}")
        matches[name] = stored_as
    left_over = stored.keys() - set(matches.values())
    if left_over:
        raise FieldError(f"tensor {min(left_over)!r}: is not part of a {config.family} decoder")
    return matches


def index_digest(config: ModelConfig, entries: Iterator[tuple[str, str, bytes]]) -> str:
    """SHA-256 over the config and each tensor's name, storage type and sampled bytes."""
    digest = hashlib.sha256(repr(config).encode())
    for name, storage, sample in entries:
        digest.update(f"\n{name} {storage} {len(sample)} ".encode())
        digest.update(sample)
    return digest.hexdigest()
