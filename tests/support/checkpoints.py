"""Tiny seeded random checkpoints in Hugging Face form, and their conversion to GGUF.

The Hugging Face side is made by transformers and the GGUF side by the gguf package, so that both
are independent of the readers under test.
"""

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.utils import logging

from tests.support.byte_tokenizer import write_byte_tokenizer

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "factor": 4.0}

# The tokenizer of tests.support.byte_tokenizer has fewer tokens; the ids above them are padding.
VOCAB_SIZE = 320

_TENSOR_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make_tiny_llama(directory: Path, *, seed: int = 0, **options: Any) -> Path:
    """Writes a llama checkpoint with tokenizer and returns its directory.

    Options: tied, rope_scaling (LLAMA3_ROPE, LINEAR_ROPE or None), num_layers, vocab_size,
    max_model_len, dtype, max_shard_size (such as "100KB" for several shards).
    """
    return _make(directory, seed, LlamaConfig, LlamaForCausalLM, **options)


def make_tiny_qwen2(directory: Path, *, seed: int = 0, **options: Any) -> Path:
    """Writes a qwen2 checkpoint with tokenizer and returns its directory; options as for llama."""
    return _make(directory, seed, Qwen2Config, Qwen2ForCausalLM, **options)


def _make(
    directory: Path,
    seed: int,
    config_class: Any,
    model_class: Any,
    *,
    tied: bool = False,
    rope_scaling: dict[str, Any] | None = None,
    num_layers: int = 2,
    vocab_size: int = VOCAB_SIZE,
    max_model_len: int = 2048,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
) -> Path:
    rope = {"rope_type": "default", "rope_theta": 10000.0, **(rope_scaling or {})}
    config = config_class(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_model_len,
        rope_parameters=rope,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.1,
    )
    directory.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _perturbed(model_class(config)).to(dtype)
    logging.disable_progress_bar()
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    write_byte_tokenizer(directory)
    return directory


def _perturbed(model: PreTrainedModel) -> PreTrainedModel:
    """Moves norms away from one and biases away from zero, so that losing one shows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                spread = 0.5 if name.endswith("bias") else 0.1
                parameter.add_(torch.randn_like(parameter) * spread)
    return model


def write_gguf(
    directory: Path,
    path: Path,
    *,
    storage: str = "F32",
    split_max_tensors: int = 0,
    pre: str = "gpt-2",
) -> Path:
    """Converts a tiny checkpoint as llama.cpp's converter does and returns the path to open.

    storage: type of the matrices (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0). With
    split_max_tensors the file is split, and the path is its first part.
    """
    config = json.loads((directory / "config.json").read_text())
    writer = gguf.GGUFWriter(path, config["model_type"], split_max_tensors=split_max_tensors)
    _add_hyper_parameters(writer, config, storage)
    _add_tokenizer(writer, directory, config["vocab_size"], pre)
    kind = gguf.GGMLQuantizationType[storage]
    for file in sorted(directory.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            _add_tensor(writer, config, name, tensor.float().numpy(), kind)
    factors = _llama3_factors(config)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))[0]


def _add_hyper_parameters(writer: gguf.GGUFWriter, config: dict[str, Any], storage: str) -> None:
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    file_type = "ALL_F32" if storage == "F32" else f"MOSTLY_{storage}"
    writer.add_file_type(gguf.LlamaFileType[file_type])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if config["model_type"] == "llama":
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_dimension_count(head_dim)
    if config["rope_parameters"]["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config["rope_parameters"]["factor"])


def _add_tokenizer(writer: gguf.GGUFWriter, directory: Path, vocab_size: int, pre: str) -> None:
    stored = json.loads((directory / "tokenizer.json").read_text())
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    tokens = [f"[PAD{number}]" for number in range(vocab_size)]
    types = [gguf.TokenType.UNUSED] * vocab_size
    for token, number in stored["model"]["vocab"].items():
        tokens[number], types[number] = token, gguf.TokenType.NORMAL
    for added in stored["added_tokens"]:
        tokens[added["id"]], types[added["id"]] = added["content"], gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in stored["model"]["merges"]])
    writer.add_bos_token_id(tokens.index(settings["bos_token"]))
    writer.add_eos_token_id(tokens.index(settings["eos_token"]))
    writer.add_add_bos_token(False)
    writer.add_chat_template(settings["chat_template"])


def _add_tensor(
    writer: gguf.GGUFWriter,
    config: dict[str, Any],
    name: str,
    values: np.ndarray,
    kind: gguf.GGMLQuantizationType,
) -> None:
    if config["model_type"] == "llama" and ("q_proj" in name or "k_proj" in name):
        is_query = "q_proj" in name
        values = _permuted(
            values, config["num_attention_heads" if is_query else "num_key_value_heads"]
        )
    if values.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(_gguf_name(name), np.ascontiguousarray(values, dtype=np.float32))
    else:
        stored = gguf.quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(_gguf_name(name), stored, raw_dtype=kind)


def _permuted(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Half-split rows to interleaved rows, as the converter does for arch llama."""
    halves = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def _gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{_TENSOR_NAMES[stem]}.{kind}"
    _, _, number, part = stem.split(".", 3)
    return f"blk.{number}.{_TENSOR_NAMES[part]}.{kind}"


def _llama3_factors(config: dict[str, Any]) -> np.ndarray | None:
    """Divisor of each frequency, which the converter stores in place of llama3 scaling."""
    rope = config["rope_parameters"]
    if rope["rope_type"] != "llama3":
        return None
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    original, low, high = (
        rope["original_max_position_embeddings"],
        rope["low_freq_factor"],
        rope["high_freq_factor"],
    )
    factors = []
    for exponent in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (exponent / head_dim)
        smooth = (original / wavelength - low) / (high - low)
        smooth = min(max(smooth, 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)
