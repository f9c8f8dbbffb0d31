"""A tiny model read from Hugging Face form and from GGUF is the same decoder."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file

from engine.loading import open_checkpoint
from engine.loading.gguf import GgufFile
from engine.models.config import RopeScaling
from tests.support.checkpoints import (
    LINEAR_ROPE,
    LLAMA3_ROPE,
    VOCAB_SIZE,
    make_tiny_llama,
    make_tiny_qwen2,
    write_gguf,
)

MAKERS = {"llama": make_tiny_llama, "qwen2": make_tiny_qwen2}
OPTIONS: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tied": True},
    "linear": {"rope_scaling": LINEAR_ROPE},
    "llama3": {"rope_scaling": LLAMA3_ROPE},
    "shards": {"max_shard_size": "100KB"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("family", MAKERS)
def test_gguf_tensors_equal_those_of_hugging_face(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    directory = MAKERS[family](tmp_path / "hf", **options)
    from_hf = open_checkpoint(str(directory))
    from_gguf = open_checkpoint(str(write_gguf(directory, tmp_path / "model.gguf")))
    expected, found = dict(from_hf.tensors()), dict(from_gguf.tensors())
    assert list(expected) == list(found)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert from_hf.num_parameters == from_gguf.num_parameters
    assert from_gguf.num_parameters == sum(tensor.numel() for tensor in found.values())
    # These say the same in other words: see the tests of each.
    differing = {"quantization": "", "end_token_ids": (), "rope": from_hf.config.rope}
    assert dataclasses.replace(from_hf.config, **differing) == dataclasses.replace(
        from_gguf.config, **differing
    )


def test_hugging_face_tensors_are_those_in_the_file(tmp_path: Path) -> None:
    directory = make_tiny_qwen2(tmp_path)
    stored = load_file(directory / "model.safetensors")
    found = dict(open_checkpoint(str(directory)).tensors())
    assert len(found) == len(stored)
    assert torch.equal(found["layers.1.k.bias"], stored["model.layers.1.self_attn.k_proj.bias"])
    assert torch.equal(found["layers.0.down.weight"], stored["model.layers.0.mlp.down_proj.weight"])
    assert torch.equal(
        found["layers.0.ffn_norm.weight"], stored["model.layers.0.post_attention_layernorm.weight"]
    )
    assert torch.equal(found["head.weight"], stored["lm_head.weight"])


def test_llama3_scaling_is_a_formula_in_one_form_and_factors_in_the_other(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "hf", rope_scaling=LLAMA3_ROPE)
    rope = open_checkpoint(str(directory)).config.rope
    assert (rope.scaling, rope.factor, rope.original_max_len) == (RopeScaling.LLAMA3, 8.0, 64)
    stored = open_checkpoint(str(write_gguf(directory, tmp_path / "model.gguf"))).config.rope
    assert stored.scaling == RopeScaling.NONE
    assert len(stored.frequency_factors) == stored.dim // 2
    assert stored.frequency_factors[0] == 1.0
    assert stored.frequency_factors[-1] == 8.0


def test_the_older_spelling_of_rope_is_read(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path, rope_scaling=LINEAR_ROPE)
    expected = open_checkpoint(str(directory)).config.rope
    config = json.loads((directory / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope["rope_theta"]}
    config["rope_scaling"] = {"type": "linear", "factor": rope["factor"]}
    (directory / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(str(directory)).config.rope == expected


def test_padding_and_end_ids_come_from_the_vocabulary(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "hf")
    from_hf = open_checkpoint(str(directory)).config
    from_gguf = open_checkpoint(str(write_gguf(directory, tmp_path / "model.gguf"))).config
    assert from_hf.padding_ids == from_gguf.padding_ids
    assert from_hf.padding_ids[-1] == VOCAB_SIZE - 1
    assert 0 not in from_hf.padding_ids
    assert from_hf.end_token_ids == (2,)
    assert from_gguf.end_token_ids == (0, 2)  # <|endoftext|> ends an answer too


def test_generation_config_lists_ends_and_sampling_defaults(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path)
    generation = {"eos_token_id": [5, 3], "temperature": 0.7, "top_k": 20, "top_p": 0.8}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    source = open_checkpoint(str(directory))
    assert source.config.end_token_ids == (3, 5)
    defaults = source.sampling_defaults
    assert (defaults.temperature, defaults.top_k, defaults.top_p) == (0.7, 20, 0.8)
    assert (defaults.min_p, defaults.repetition_penalty) == (None, None)


@pytest.mark.parametrize("storage", ["F32", "F16", "BF16", "Q4_1", "Q8_0"])
def test_the_storage_type_is_reported(storage: str, tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "hf")
    source = open_checkpoint(
        str(write_gguf(directory, tmp_path / "model.gguf", storage=storage, split_max_tensors=6))
    )
    assert source.config.quantization == storage


@pytest.mark.parametrize("form", ["hf", "gguf"])
def test_the_digest_changes_with_the_weights_alone(form: str, tmp_path: Path) -> None:
    digests = []
    for run, seed in enumerate((0, 0, 1)):
        path = make_tiny_llama(tmp_path / f"hf{run}", seed=seed)
        if form == "gguf":
            path = write_gguf(path, tmp_path / f"{run}.gguf")
        digests.append(open_checkpoint(str(path)).digest)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.model
def test_smollm2_decodes_as_the_gguf_package_does(smollm2_path: Path) -> None:
    file, oracle = GgufFile(smollm2_path), gguf.GGUFReader(smollm2_path)
    fields = {k: f.contents() for k, f in oracle.fields.items() if not k.startswith("GGUF.")}
    assert fields.keys() == file.metadata.keys()
    for key, held in fields.items():
        assert file.metadata[key] == (pytest.approx(held) if isinstance(held, float) else held)
    for tensor in oracle.tensors:
        decoded = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
        assert torch.equal(file.read(tensor.name), decoded)
    file.close()


@pytest.mark.model
def test_smollm2_is_described(smollm2_path: Path) -> None:
    source = open_checkpoint(str(smollm2_path))
    config = source.config
    assert (config.family, config.num_layers, config.hidden_size) == ("llama", 30, 576)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.tied_head, config.quantization, config.end_token_ids) == (True, "Q4_1", (0, 2))
    assert source.num_parameters == 134_515_008
