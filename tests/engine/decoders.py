"""Decoders loaded from tiny checkpoints, and the same models in transformers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from engine.attention.backend import AttentionBackend, AttentionShape
from engine.attention.select import make_attention
from engine.layers.rotary import Rotary
from engine.layers.weights import assemble
from engine.loading import open_checkpoint
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.plan import StepPlan

CPU = torch.device("cpu")


@dataclass(frozen=True)
class LoadedDecoder:
    config: ModelConfig
    decoder: Decoder
    attention: AttentionBackend[Any]

    @torch.inference_mode()
    def all_logits(self, plan: StepPlan) -> torch.Tensor:
        """Logits of every token of a plan, [tokens, vocab_size]."""
        return self.logits(plan, torch.arange(len(plan.input_ids)))

    @torch.inference_mode()
    def logits(self, plan: StepPlan, wanted: torch.Tensor) -> torch.Tensor:
        return self.decoder.forward(
            torch.from_numpy(plan.input_ids),
            torch.from_numpy(plan.positions),
            self.attention.prepare(plan),
            wanted,
        )


def load_decoder(
    path: Path, *, dtype: torch.dtype = torch.float32, backend: str = "cpu", num_blocks: int = 64
) -> LoadedDecoder:
    source = open_checkpoint(str(path))
    config = source.config
    weights = assemble(config, source.tensors(), dtype, CPU, lambda share: None)
    source.close()
    shape = AttentionShape(
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=16,
        dtype=dtype,
        device=CPU,
    )
    attention = make_attention(backend, shape)
    attention.allocate(num_blocks)
    rotary = Rotary(config.rope, config.max_model_len, dtype, CPU)
    return LoadedDecoder(config, Decoder(config, weights, rotary, attention), attention)


def load_reference(path: Path) -> Any:
    """The checkpoint in transformers, in float32."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def random_ids(count: int, vocab_size: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (count,), generator=generator).tolist()
