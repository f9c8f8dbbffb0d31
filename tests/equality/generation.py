"""Greedy generation with our engine, judged token by token by transformers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.loading import open_checkpoint
from engine.request import FinishReason, RequestSpec, SamplingParams

GREEDY = SamplingParams(temperature=0.0)
# Where the reference's two best logits are closer than this, rounding may decide.
TIE = 1e-3

_HF_NAMES = {
    "embed": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{name: f"self_attn.{name}_proj" for name in "qkvo"},
    **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}


def make_engine(path: Path, **fields: Any) -> Engine:
    config = EngineConfig(model_path=str(path), device="cpu", dtype="float32", **fields)
    return build_engine(config, lambda stage, share: None)


def generate(engine: Engine, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """Output ids of all prompts, run together; nothing ends before max_tokens."""
    for number, prompt in enumerate(prompts):
        engine.add(RequestSpec(str(number), tuple(prompt), GREEDY, max_tokens))
    outputs: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    while engine.has_work:
        for output in engine.step():
            outputs[output.request_id].extend(output.token_ids)
            assert output.finish_reason in (None, FinishReason.LENGTH), output
        engine.check()
    return list(outputs.values())


def padding_ids(path: Path) -> tuple[int, ...]:
    """Ids of a checkpoint that stand for no token."""
    source = open_checkpoint(str(path))
    source.close()
    return source.config.padding_ids


@dataclass(frozen=True)
class Difference:
    """A token that the reference would not have taken. margin: by how much, in its logits."""

    run: int
    position: int
    margin: float


@torch.inference_mode()
def differences(
    reference: Any,
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    padding_ids: Sequence[int] = (),
) -> list[Difference]:
    """The first token of each output that is not the reference's best for what came before it.

    padding_ids: rows of the head that stand for no token; we never draw them, transformers may.

    As all tokens before it are the reference's own, this is where its greedy text would differ.
    """
    found = []
    for run, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        ids = torch.tensor([[*prompt, *output]])
        logits = reference(ids).logits[0, len(prompt) - 1 : -1]
        logits[:, list(padding_ids)] = float("-inf")
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        margins = logits.amax(1) - chosen
        wrong = (margins > 0).nonzero()
        if len(wrong):
            position = int(wrong[0])
            found.append(Difference(run, position, float(margins[position])))
    return found


def load_dequantised(path: Path) -> Any:
    """A llama checkpoint of any storage in transformers, from our own dequantised tensors."""
    source = open_checkpoint(str(path))
    config = source.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_model_len,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            tie_word_embeddings=config.tied_head,
        )
    )
    state = {_hf_name(name): tensor.float() for name, tensor in source.tensors()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if config.tied_head else set())
    source.close()
    return model.eval()


def _hf_name(name: str) -> str:
    *layer, part, kind = name.split(".")
    prefix = f"model.{'.'.join(layer)}." if layer else ""
    return f"{prefix}{_HF_NAMES[part]}.{kind}"
