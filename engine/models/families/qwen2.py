"""Qwen2 and Qwen2.5: llama with biases on q, k and v; windows of attention are refused."""

from engine.models.config import ModelConfig
from engine.models.families.family import (
    GGUF_NAMES,
    HF_NAMES,
    Family,
    StoredFacts,
    decoder_from_gguf,
    decoder_from_hf,
)
from engine.models.families.fields import Fields


def _config_from_hf(fields: Fields) -> ModelConfig:
    # sliding_window alone says nothing: the field is set in models that never use it.
    fields.expect("use_sliding_window", False)
    layer_types = fields.get("layer_types") or []
    if not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types):
        raise fields.error("layer_types", "is not supported; supported: 'full_attention'")
    return decoder_from_hf(fields, "qwen2", qkv_bias=True)


def _config_from_gguf(fields: Fields, stored: StoredFacts) -> ModelConfig:
    return decoder_from_gguf(fields, stored, "qwen2", qkv_bias=True)


QWEN2 = Family(
    name="qwen2",
    hf_architecture="Qwen2ForCausalLM",
    config_from_hf=_config_from_hf,
    config_from_gguf=_config_from_gguf,
    hf_names=HF_NAMES,
    gguf_names=GGUF_NAMES,
)
