"""The frozen description of a decoder: sizes and switches, the same for every family."""

from dataclasses import dataclass, field
from enum import StrEnum


class RopeScaling(StrEnum):
    """How rotary frequencies are stretched beyond the trained context."""

    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding, half-split form.

    frequency_factors: divisors of each of the dim / 2 frequencies (the tensor `rope_freqs.weight`
    of GGUF files), applied after `scaling`.
    """

    theta: float
    dim: int
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_len: int = 8192
    frequency_factors: tuple[float, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder. num_logits: ids below it may be sampled, padding rows of the head lie above or
    are listed in padding_ids. end_token_ids: ids that end an answer.
    """

    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    norm_eps: float
    rope: RopeConfig
    tied_head: bool
    qkv_bias: bool = False
    padding_ids: tuple[int, ...] = ()
    end_token_ids: tuple[int, ...] = ()
    quantization: str = ""

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads "
                f"({self.num_kv_heads})"
            )
        if self.rope.dim > self.head_dim:
            raise ValueError(f"rope.dim ({self.rope.dim}) exceeds head_dim ({self.head_dim})")
