"""Builds an engine from its config: opens the checkpoint, loads the weights, sizes the KV cache."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.attention.backend import AttentionShape
from engine.attention.select import make_attention
from engine.config import EngineConfig, EngineInfo
from engine.engine import Engine
from engine.layers.rotary import Rotary
from engine.layers.weights import assemble
from engine.loading import open_checkpoint
from engine.loading.source import CheckpointSource
from engine.memory import free_bytes
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.runner import CpuRunner
from engine.sampling.sampler import Sampler
from engine.warmup import warm_up

# Called while loading with a stage in words ("loading weights") and progress from 0 to 1.
Progress = Callable[[str, float], None]

# Part of the fingerprint; raised whenever the same input may give other tokens than before.
_ENGINE_VERSION = 1
# Share of the free memory that the KV cache takes when it is not told how much.
_KV_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What the device, the model and the memory together allow."""

    shape: AttentionShape
    num_blocks: int
    max_model_len: int


def build_engine(config: EngineConfig, progress: Progress) -> Engine:
    """Raises CheckpointError for the checkpoint, ValueError naming a field of the config."""
    runner, info = build_runner(config, progress)
    return Engine(runner, config, info)


def build_runner(config: EngineConfig, progress: Progress) -> tuple[CpuRunner, EngineInfo]:
    """The runner of an engine, warmed up, and the facts that loading discovered."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    device = _choose_device(config.device)
    progress("opening checkpoint", 0.0)
    source = open_checkpoint(config.model_path)
    try:
        sizes = _choose_sizes(config, source.config, device)
        info = _describe(source, sizes)
        runner = _load(config, source, sizes, progress)
    finally:
        source.close()
    progress("warming up", 0.0)
    warm_up(runner, sizes.max_model_len)
    progress("warming up", 1.0)
    return runner, info


def _choose_device(wanted: str) -> torch.device:
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch finds no CUDA device")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """auto: bfloat16 where the device multiplies it in hardware, else float32."""
    if wanted != "auto":
        dtype = getattr(torch, wanted)
        assert isinstance(dtype, torch.dtype)
        return dtype
    has_bfloat16 = device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if has_bfloat16 else torch.float32


def _choose_sizes(config: EngineConfig, model: ModelConfig, device: torch.device) -> _Sizes:
    shape = AttentionShape(
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=config.block_size,
        dtype=choose_dtype(config.dtype, device),
        device=device,
    )
    max_model_len = config.max_model_len or model.max_model_len
    if max_model_len > model.max_model_len:
        raise ValueError(
            f"max_model_len is {max_model_len}, more than the {model.max_model_len} of the model"
        )
    num_blocks = _count_blocks(config, shape, max_model_len)
    capacity = num_blocks * config.block_size
    if capacity < max_model_len:
        if config.max_model_len is not None:
            raise ValueError(
                f"kv_cache_bytes holds {capacity} tokens, fewer than max_model_len "
                f"({max_model_len}): raise the one or lower the other"
            )
        max_model_len = capacity
    return _Sizes(shape, num_blocks, max_model_len)


def _count_blocks(config: EngineConfig, shape: AttentionShape, max_model_len: int) -> int:
    """Blocks of the KV cache; by default a share of free memory, but no more than can be used."""
    size, free = config.kv_cache_bytes, free_bytes(shape.device)
    if size is None:
        blocks_per_sequence = -(-max_model_len // config.block_size)
        usable = config.max_num_seqs * blocks_per_sequence * shape.bytes_per_block
        size = min(usable, int(free * _KV_SHARE))
    if size > free:
        raise ValueError(f"kv_cache_bytes is {size}, more than the {free} bytes that are free")
    num_blocks = size // shape.bytes_per_block
    if num_blocks == 0:
        raise ValueError(
            f"kv_cache_bytes is {size}, less than one block of {shape.bytes_per_block} bytes"
        )
    return num_blocks


def _load(
    config: EngineConfig, source: CheckpointSource, sizes: _Sizes, progress: Progress
) -> CpuRunner:
    model, shape = source.config, sizes.shape
    weights = assemble(
        model,
        source.tensors(),
        shape.dtype,
        shape.device,
        lambda share: progress("loading weights", share),
    )
    attention = make_attention(config.attention_backend, shape)
    rotary = Rotary(model.rope, sizes.max_model_len, shape.dtype, shape.device)
    return CpuRunner(
        decoder=Decoder(model, weights, rotary, attention),
        attention=attention,
        sampler=Sampler(model.vocab_size, model.padding_ids),
        num_blocks=sizes.num_blocks,
        max_num_seqs=config.max_num_seqs,
        device=shape.device,
    )


def _describe(source: CheckpointSource, sizes: _Sizes) -> EngineInfo:
    dtype = str(sizes.shape.dtype).removeprefix("torch.")
    device = sizes.shape.device.type
    facts = f"{source.digest} {_ENGINE_VERSION} {dtype} {device}"
    return EngineInfo(
        family=source.config.family,
        num_parameters=source.num_parameters,
        device=device,
        dtype=dtype,
        quantization=source.config.quantization or dtype,
        max_model_len=sizes.max_model_len,
        vocab_size=source.config.vocab_size,
        num_blocks=sizes.num_blocks,
        block_size=sizes.shape.block_size,
        fingerprint=hashlib.sha256(facts.encode()).hexdigest()[:16],
    )
