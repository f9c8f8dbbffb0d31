"""Llama 2 and 3 and what is built like them (SmolLM2): no biases, an optional tied head."""

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
    fields.expect("attention_bias", False)
    fields.expect("mlp_bias", False)
    return decoder_from_hf(fields, "llama")


def _config_from_gguf(fields: Fields, stored: StoredFacts) -> ModelConfig:
    return decoder_from_gguf(fields, stored, "llama")


LLAMA = Family(
    name="llama",
    hf_architecture="LlamaForCausalLM",
    config_from_hf=_config_from_hf,
    config_from_gguf=_config_from_gguf,
    hf_names=HF_NAMES,
    gguf_names=GGUF_NAMES,
    # llama.cpp rotates neighbouring rows for this architecture alone, so its converter reorders.
    interleaved_in_gguf=("q", "k"),
)
