"""What a model family is: how its configs and tensor names become ours.

The mappers here serve plain pre-norm decoders with rotary attention and a gated SiLU network; a
family adds its switches and refuses what it cannot express.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.models.config import ModelConfig, RopeConfig, RopeScaling
from engine.models.families.fields import Fields


@dataclass(frozen=True, slots=True)
class StoredFacts:
    """What a GGUF file says about the decoder by its tensors rather than by its metadata."""

    vocab_size: int
    tied_head: bool
    frequency_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """One family. name: also the GGUF architecture. *_names: see `stored_name`.

    interleaved_in_gguf: parts whose rows GGUF stores for interleaved RoPE, which the loader turns
    back to half-split order.
    """

    name: str
    hf_architecture: str
    config_from_hf: Callable[[Fields], ModelConfig]
    config_from_gguf: Callable[[Fields, StoredFacts], ModelConfig]
    hf_names: Mapping[str, str]
    gguf_names: Mapping[str, str]
    interleaved_in_gguf: tuple[str, ...] = ()


HF_NAMES = {
    "embed": "model.embed_tokens",
    "attn_norm": "model.layers.{layer}.input_layernorm",
    "q": "model.layers.{layer}.self_attn.q_proj",
    "k": "model.layers.{layer}.self_attn.k_proj",
    "v": "model.layers.{layer}.self_attn.v_proj",
    "o": "model.layers.{layer}.self_attn.o_proj",
    "ffn_norm": "model.layers.{layer}.post_attention_layernorm",
    "gate": "model.layers.{layer}.mlp.gate_proj",
    "up": "model.layers.{layer}.mlp.up_proj",
    "down": "model.layers.{layer}.mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}

GGUF_NAMES = {
    "embed": "token_embd",
    "attn_norm": "blk.{layer}.attn_norm",
    "q": "blk.{layer}.attn_q",
    "k": "blk.{layer}.attn_k",
    "v": "blk.{layer}.attn_v",
    "o": "blk.{layer}.attn_output",
    "ffn_norm": "blk.{layer}.ffn_norm",
    "gate": "blk.{layer}.ffn_gate",
    "up": "blk.{layer}.ffn_up",
    "down": "blk.{layer}.ffn_down",
    "norm": "output_norm",
    "head": "output",
}


def stored_name(name: str, names: Mapping[str, str]) -> str:
    """The checkpoint's name of our tensor: "layers.3.q.weight" -> "blk.3.attn_q.weight"."""
    *path, part, kind = name.split(".")
    return f"{names[part].format(layer=path[-1] if path else '')}.{kind}"


def decoder_from_hf(fields: Fields, family: str, *, qkv_bias: bool = False) -> ModelConfig:
    """Maps a config.json. Padding and end ids are the loader's to add."""
    fields.expect("hidden_act", "silu")
    hidden_size = fields.size("hidden_size")
    num_heads = fields.size("num_attention_heads")
    head_dim = _head_dim(fields, "head_dim", hidden_size, num_heads)
    return ModelConfig(
        family=family,
        num_layers=fields.size("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=fields.size("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, "num_key_value_heads", num_heads),
        head_dim=head_dim,
        vocab_size=fields.size("vocab_size"),
        max_model_len=fields.size("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=_rope_from_hf(fields, head_dim),
        tied_head=fields.flag("tie_word_embeddings", False),
        qkv_bias=qkv_bias,
    )


def decoder_from_gguf(
    fields: Fields, stored: StoredFacts, family: str, *, qkv_bias: bool = False
) -> ModelConfig:
    """Maps the metadata under the architecture's prefix."""
    hidden_size = fields.size("embedding_length")
    num_heads = fields.size("attention.head_count")
    head_dim = _head_dim(fields, "attention.key_length", hidden_size, num_heads)
    _expect_plain_gguf(fields, head_dim, stored.vocab_size)
    return ModelConfig(
        family=family,
        num_layers=fields.size("block_count"),
        hidden_size=hidden_size,
        intermediate_size=fields.size("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, "attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=stored.vocab_size,
        max_model_len=fields.size("context_length"),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=_rope_from_gguf(fields, head_dim, stored.frequency_factors),
        tied_head=stored.tied_head,
        qkv_bias=qkv_bias,
    )


def _expect_plain_gguf(fields: Fields, head_dim: int, vocab_size: int) -> None:
    fields.expect("expert_count", 0)
    fields.expect("attention.sliding_window", 0)
    fields.expect("attention.value_length", head_dim)
    fields.expect("vocab_size", vocab_size)


def _head_dim(fields: Fields, name: str, hidden_size: int, num_heads: int) -> int:
    if fields.get(name) is None and hidden_size % num_heads:
        reason = f"is missing, and {num_heads} heads do not divide the width {hidden_size}"
        raise fields.error(name, reason)
    head_dim = fields.size(name, max(1, hidden_size // num_heads))
    if head_dim % 2:
        raise fields.error(name, f"a head of {head_dim} values has no halves to rotate")
    return head_dim


def _num_kv_heads(fields: Fields, name: str, num_heads: int) -> int:
    num_kv_heads = fields.size(name, num_heads)
    if num_heads % num_kv_heads:
        raise fields.error(name, f"must divide the number of heads, {num_heads}")
    return num_kv_heads


def _rope_from_hf(fields: Fields, head_dim: int) -> RopeConfig:
    # transformers 5 writes rope_parameters; before it, rope_theta stood beside rope_scaling.
    name = "rope_scaling" if fields.get("rope_parameters") is None else "rope_parameters"
    rope = fields.section(name)
    for section in (fields, rope):
        section.expect("partial_rotary_factor", 1)
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    kind_name = "type" if rope.get("rope_type") is None else "rope_type"
    rope.expect(kind_name, "default", "linear", "llama3")
    kind = rope.text(kind_name, "default")
    if kind == "default":
        return RopeConfig(theta, head_dim)
    factor = rope.number("factor")
    if kind == "linear":
        return RopeConfig(theta, head_dim, RopeScaling.LINEAR, factor)
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if low >= high:
        raise rope.error("low_freq_factor", f"must be below high_freq_factor, {high}")
    original = rope.size("original_max_position_embeddings")
    return RopeConfig(theta, head_dim, RopeScaling.LLAMA3, factor, low, high, original)


def _rope_from_gguf(fields: Fields, head_dim: int, factors: tuple[float, ...]) -> RopeConfig:
    fields.expect("rope.dimension_count", head_dim)
    fields.expect("rope.scaling.attn_factor", 1)
    fields.expect("rope.scaling.type", "none", "linear")
    theta = fields.number("rope.freq_base", 10000.0)
    # Files from before rope.scaling.* have the linear factor alone.
    factor = fields.number("rope.scale_linear", 1.0)
    if fields.text("rope.scaling.type", "none") == "linear":
        factor = fields.number("rope.scaling.factor")
    scaling = RopeScaling.NONE if factor == 1.0 else RopeScaling.LINEAR
    return RopeConfig(theta, head_dim, scaling, factor, frequency_factors=factors)
