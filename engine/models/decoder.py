"""The one decoder network; a model family is only a ModelConfig and tensor names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from engine.attention.backend import AttentionBackend
from engine.layers.linear import Linear
from engine.layers.norm import rms_norm
from engine.layers.rotary import Rotary
from engine.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer. qkv: the outputs of q, k and v one after another."""

    attn_norm: torch.Tensor  # [hidden_size]
    qkv: Linear
    o: Linear
    ffn_norm: torch.Tensor  # [hidden_size]
    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a decoder. Norms are float32; head_dtype is that of the head's input."""

    embed: torch.Tensor  # [vocab_size, hidden_size]
    layers: Sequence[DecoderLayer]
    norm: torch.Tensor  # [hidden_size]
    head: Linear
    head_dtype: torch.dtype


class Decoder:
    """Tokens in, logits out. The attention backend holds all state.

    The residual stream is float32 whatever the weights are: bfloat16 there adds up to errors in
    the logits that flip the best token of near ties. gate and up stay two products: their
    epilogues (SiLU, product) are fused, which is faster than one product of twice the size and
    three more operations.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        rotary: Rotary,
        attention: AttentionBackend[Any],
    ) -> None:
        self._config = config
        self._weights = weights
        self._dtype = weights.embed.dtype
        self._rotary = rotary
        self._attention = attention

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, metadata: Any, wanted: torch.Tensor
    ) -> torch.Tensor:
        """Logits of the tokens at places `wanted` [S] among ids [tokens]: [S, vocab_size], float32.

        metadata is what the attention backend prepared for this step.
        """
        cosine, sine = self._rotary.at(positions)
        hidden = F.embedding(ids, self._weights.embed).float()  # [tokens, hidden_size]
        last = len(self._weights.layers) - 1
        for index, layer in enumerate(self._weights.layers):
            attended = self._attend(index, layer, hidden, (cosine, sine), metadata)
            if index == last and len(wanted) < len(ids):
                attended, hidden = attended[wanted], hidden[wanted]
            hidden.add_(layer.o(attended))
            hidden.add_(self._feed_forward(layer, hidden))
        normed = self._norm(hidden, self._weights.norm, self._weights.head_dtype)
        return self._weights.head(normed).float()

    def _attend(
        self,
        index: int,
        layer: DecoderLayer,
        hidden: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        metadata: Any,
    ) -> torch.Tensor:
        heads, kv_heads = self._config.num_heads, self._config.num_kv_heads
        qkv = layer.qkv(self._norm(hidden, layer.attn_norm, self._dtype))
        qkv = qkv.view(-1, heads + 2 * kv_heads, self._config.head_dim)
        self._rotary.rotate_(qkv[:, : heads + kv_heads], *rotation)
        query, keys_values = qkv[:, :heads], qkv[:, heads:]
        self._attention.write(index, keys_values, metadata)
        return self._attention.attend(index, query, keys_values, metadata)

    def _feed_forward(self, layer: DecoderLayer, hidden: torch.Tensor) -> torch.Tensor:
        normed = self._norm(hidden, layer.ffn_norm, self._dtype)
        gated = layer.up.multiply(normed, layer.gate.silu(normed))
        return layer.down(gated)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return rms_norm(x, weight, self._config.norm_eps, dtype)
