"""What an engine is told when it is built, and the facts it reports once it is loaded."""

from dataclasses import dataclass

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "bfloat16", "float16", "float32")
# Above what any machine has; more would exhaust the system's threads instead of being refused.
MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine. Validated when it is made; a ValueError names the field.

    model_path: a .gguf file or a Hugging Face model directory.
    max_model_len: prompt plus output in tokens; None takes the model's own context length.
    kv_cache_bytes: memory of the KV cache; None takes a share of what is free.
    max_num_seqs: rows of one step. max_num_batched_tokens: tokens of one step.
    max_waiting_requests, max_waiting_tokens: bounds of the queue.
    num_threads: torch's intra-op threads; None takes the physical cores.
    """

    model_path: str
    device: str = "auto"
    dtype: str = "auto"
    max_model_len: int | None = None
    kv_cache_bytes: int | None = None
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_waiting_requests: int = 1024
    max_waiting_tokens: int = 1_000_000
    enable_prefix_caching: bool = True
    attention_backend: str = "auto"
    num_threads: int | None = None

    def __post_init__(self) -> None:
        _check_choice("device", self.device, DEVICES)
        _check_choice("dtype", self.dtype, DTYPES)
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            _check_positive(name, getattr(self, name))
        for name in ("max_model_len", "kv_cache_bytes", "num_threads"):
            if getattr(self, name) is not None:
                _check_positive(name, getattr(self, name))
        for name in ("max_waiting_requests", "max_waiting_tokens"):
            _check_positive(name, getattr(self, name))
        if self.num_threads is not None and self.num_threads > MAX_THREADS:
            raise ValueError(f"num_threads is {self.num_threads}; it must be at most {MAX_THREADS}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): each running request needs a token a step"
            )


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts that loading discovered.

    vocab_size: ids 0 .. vocab_size-1 have a logit. num_blocks: KV blocks of block_size tokens.
    quantization: storage type of the weights file ("Q4_1"), or its dtype.
    fingerprint: digest of weights, engine version, dtype and device.
    """

    family: str
    num_parameters: int
    device: str
    dtype: str
    quantization: str
    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    fingerprint: str


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed are {', '.join(allowed)}")


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")
