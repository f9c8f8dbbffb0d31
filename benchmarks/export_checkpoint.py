"""Writes a checkpoint as a bfloat16 Hugging Face directory, so that a peer runs the same weights.

Usage: python benchmarks/export_checkpoint.py MODEL.gguf DIRECTORY
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.loading import open_checkpoint
from engine.models.config import ModelConfig

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
TOP_NAMES = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}


def hugging_face_name(name: str) -> str:
    """The Hugging Face name of one of our tensors, see engine.loading.source."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"


def hugging_face_config(config: ModelConfig) -> dict[str, object]:
    """config.json of a model without rope scaling."""
    return {
        "architectures": [ARCHITECTURES[config.family]],
        "model_type": config.family,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_model_len,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tied_head,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "eos_token_id": list(config.end_token_ids),
    }


def export_checkpoint(model: str, directory: Path) -> None:
    """Writes config.json and model.safetensors."""
    source = open_checkpoint(model)
    tensors = {
        hugging_face_name(name): tensor.to(torch.bfloat16).contiguous()
        for name, tensor in source.tensors()
    }
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(hugging_face_config(source.config)))
    source.close()


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    export_checkpoint(arguments.model, arguments.directory)


if __name__ == "__main__":
    main()
