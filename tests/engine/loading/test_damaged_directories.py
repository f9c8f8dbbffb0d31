"""Each damage to a Hugging Face directory gives one CheckpointError that names file and field."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.loading import CheckpointError, open_checkpoint
from tests.support.checkpoints import make_tiny_llama, make_tiny_qwen2

Damage = Callable[[Path], object]
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
QUERY = "model.layers.0.self_attn.q_proj.weight"


def _config(**changes: object) -> Damage:
    return lambda directory: _change(directory / CONFIG, changes)


def _change(path: Path, changes: dict[str, object]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _rope(**rope: object) -> Damage:
    return _config(rope_parameters={"rope_theta": 1e4, **rope})


def _text(name: str, text: str) -> Damage:
    return lambda directory: (directory / name).write_text(text)


def _weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def damage(directory: Path) -> None:
        tensors = {name: each.clone() for name, each in load_file(directory / WEIGHTS).items()}
        change(tensors)
        save_file(tensors, directory / WEIGHTS)

    return damage


def _header(stored: bytes) -> Damage:
    return lambda directory: (directory / WEIGHTS).write_bytes(stored)


def _cut(directory: Path) -> None:
    path = directory / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1])


def _index(weight_map: object) -> Damage:
    def damage(directory: Path) -> None:
        (directory / WEIGHTS).rename(directory / "shard.safetensors")
        (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))

    return damage


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no config": (lambda directory: (directory / CONFIG).unlink(), CONFIG),
    "config of no JSON": (_text(CONFIG, "{"), CONFIG),
    "config of deep JSON": (_text(CONFIG, "[" * 100_000), CONFIG),
    "config that is a list": (_text(CONFIG, "[]"), "config.json: must hold a JSON object"),
    "config of invalid UTF-8": (lambda d: (d / CONFIG).write_bytes(b'{"a": "\xff"}'), CONFIG),
    "no architectures": (_config(architectures=None), "architectures"),
    "unknown architecture": (
        _config(architectures=["GemmaForCausalLM"]),
        "not supported; supported: LlamaForCausalLM, Qwen2ForCausalLM",
    ),
    "quantized": (
        _config(quantization_config={"quant_method": "awq"}),
        "quantization_config.quant_method: 'awq' is not supported",
    ),
    "no width": (_config(hidden_size=None), "hidden_size: is missing"),
    "zero heads": (_config(num_attention_heads=0), "num_attention_heads"),
    "width in words": (_config(hidden_size="64"), "hidden_size"),
    "true layers": (_config(num_hidden_layers=True), "num_hidden_layers"),
    "too many layers": (_config(num_hidden_layers=2**31 - 1), "model.layers.2.input_layernorm"),
    "huge vocabulary": (_config(vocab_size=2**31 - 1), "model.embed_tokens.weight': shape"),
    "KV heads that do not divide": (_config(num_key_value_heads=3), "num_key_value_heads"),
    "epsilon of infinity": (_config(rms_norm_eps=float("inf")), "rms_norm_eps"),
    "epsilon of 400 digits": (_config(rms_norm_eps=10**400), "rms_norm_eps"),
    "another activation": (_config(hidden_act="gelu"), "hidden_act: 'gelu' is not supported"),
    "biases": (_config(attention_bias=True), "attention_bias"),
    "tied in words": (_config(tie_word_embeddings="no"), "tie_word_embeddings"),
    "end beyond the vocabulary": (_config(eos_token_id=10**6), "eos_token_id"),
    "yarn": (_rope(rope_type="yarn", factor=4.0), "rope_parameters.rope_type: 'yarn'"),
    "linear without factor": (_rope(rope_type="linear"), "rope_parameters.factor"),
    "llama3 without bounds": (_rope(rope_type="llama3", factor=8.0), "low_freq_factor"),
    "rope that is a list": (_config(rope_parameters=[1]), "rope_parameters"),
    "ends of another type": (
        _text("generation_config.json", '{"eos_token_id": [1, "2"]}'),
        "generation_config.json: eos_token_id[1]",
    ),
    "temperature below zero": (
        _text("generation_config.json", '{"temperature": -1}'),
        "generation_config.json: temperature",
    ),
    "tokenizer without vocabulary": (_text("tokenizer.json", '{"model": {}}'), "model.vocab"),
    "no weights": (lambda directory: (directory / WEIGHTS).unlink(), WEIGHTS),
    "cut weights": (_cut, "safetensors header"),
    "empty weights": (_header(b""), "safetensors header"),
    "huge header": (_header(b"\xff" * 8 + b"{}"), "safetensors header"),
    "header of no JSON": (_header(b"\x02" + bytes(7) + b"[["), "safetensors header"),
    "missing tensor": (_weights(lambda tensors: tensors.pop(QUERY)), f"{QUERY}': is missing"),
    "left-over tensor": (
        _weights(lambda tensors: tensors.update(extra=torch.zeros(1))),
        "tensor 'extra'",
    ),
    "wrong shape": (
        _weights(lambda tensors: tensors.update({QUERY: torch.zeros(1, 64)})),
        f"{QUERY}': shape",
    ),
    "integer weights": (
        _weights(lambda tensors: tensors.update({QUERY: torch.zeros(64, 64, dtype=torch.int8)})),
        f"{QUERY}' (dtype): I8",
    ),
    "index without map": (_index(None), "weight_map"),
    "index out of the directory": (_index({QUERY: "../shard.safetensors"}), f"weight_map.{QUERY}"),
    "index to an absent shard": (_index({QUERY: "absent.safetensors"}), "absent.safetensors"),
    "index to a shard without it": (_index({"other": "shard.safetensors"}), "tensor 'other'"),
}


def _error_of(directory: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(str(directory))
    message = str(caught.value)
    assert str(directory) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_directory_is_refused_by_field(name: str, tmp_path: Path) -> None:
    damage, field = DAMAGES[name]
    directory = make_tiny_llama(tmp_path / "hf")
    damage(directory)
    assert field in _error_of(directory)


@pytest.mark.parametrize(
    ("field", "value"), [("use_sliding_window", True), ("layer_types", ["sliding_attention"])]
)
def test_windows_of_attention_are_refused(field: str, value: object, tmp_path: Path) -> None:
    directory = make_tiny_qwen2(tmp_path / "hf")
    _change(directory / CONFIG, {field: value})
    assert field in _error_of(directory)
