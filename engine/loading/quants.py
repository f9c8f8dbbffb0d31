"""The storage types of GGUF tensors and their decoding to float32, float16 or bfloat16.

A tensor is a row of blocks; each block holds a fixed number of values in a fixed number of bytes.
Products and sums are rounded in the order of ggml's own decoder, so that results are bit-equal.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# Blocks are decoded in groups of about this many values, which keeps the intermediates in cache.
_VALUES_PER_GROUP = 1 << 17


@dataclass(frozen=True, slots=True)
class StorageType:
    """One ggml type. decode: [blocks, block_bytes] uint8 -> [blocks, block_values] float32,
    or None where the bytes are the values in `dtype`.
    """

    name: str
    block_values: int
    block_bytes: int
    dtype: torch.dtype
    decode: Callable[[Bytes], Floats] | None = None

    def num_bytes(self, num_values: int) -> int:
        """Bytes that store num_values, which is a multiple of block_values."""
        return num_values // self.block_values * self.block_bytes


def decode_tensor(kind: StorageType, stored: Bytes, shape: tuple[int, ...]) -> torch.Tensor:
    """Copies the stored bytes of one tensor into a new tensor of that shape."""
    values = torch.empty(shape, dtype=kind.dtype)
    if kind.decode is None:
        values.view(-1).view(torch.uint8).numpy()[:] = stored
        return values
    blocks = stored.reshape(-1, kind.block_bytes)
    out = values.view(-1, kind.block_values).numpy()
    step = _VALUES_PER_GROUP // kind.block_values
    with np.errstate(invalid="ignore", over="ignore"):  # a damaged scale may be NaN or infinite
        for start in range(0, len(blocks), step):
            out[start : start + step] = kind.decode(blocks[start : start + step])
    return values


def _half(blocks: Bytes, start: int) -> Floats:
    """The float16 at byte `start` of each block, as float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[..., n] bytes -> [..., 2n]: all low halves, then all high halves."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=-1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """[blocks, 4] bytes -> [blocks, 32] of 0 or 16: bit i belongs to value i."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    values = _nibbles(blocks[:, 4:]).astype(np.float32)
    values *= _half(blocks, 0)
    values += _half(blocks, 2)
    return values


def _q5_0(blocks: Bytes) -> Floats:
    values = (_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])).astype(np.float32)
    values -= 16
    return _half(blocks, 0) * values


def _q5_1(blocks: Bytes) -> Floats:
    values = (_nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])).astype(np.float32)
    values *= _half(blocks, 0)
    values += _half(blocks, 2)
    return values


def _q8_0(blocks: Bytes) -> Floats:
    values = blocks[:, 2:].view(np.int8).astype(np.float32)
    values *= _half(blocks, 0)
    return values


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """Scales and minima of Q4_K and Q5_K, each [blocks, 8 sub-blocks, 1].

    Bytes 4..15 hold eight pairs of 6 bits: the low six bits of the first four scales and minima,
    then the low four bits of the last four, whose two high bits top the first eight bytes.
    """
    scale, minimum, low = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([scale & 0x3F, (low & 0x0F) | ((scale >> 2) & 0x30)], axis=1)
    minima = np.concatenate([minimum & 0x3F, (low >> 4) | ((minimum >> 2) & 0x30)], axis=1)
    scaled = _half(blocks, 0) * scales.astype(np.float32)
    lowered = _half(blocks, 2) * minima.astype(np.float32)
    return scaled[:, :, None], lowered[:, :, None]


def _q4_k(blocks: Bytes) -> Floats:
    scales, minima = _k_scales(blocks)
    values = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32).astype(np.float32)
    values *= scales
    values -= minima
    return values.reshape(-1, 256)


def _q5_k(blocks: Bytes) -> Floats:
    scales, minima = _k_scales(blocks)
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    # Bit s of byte i is the fifth bit of value i of sub-block s.
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    high = ((blocks[:, None, 16:48] >> shifts) & 1) << 4
    values = (low | high).astype(np.float32)
    values *= scales
    values -= minima
    return values.reshape(-1, 256)


def _q6_k(blocks: Bytes) -> Floats:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = ((blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3) << 4
    values = (low | high).reshape(-1, 16, 16).astype(np.float32)
    values -= 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scales[:, :, None] * values).reshape(-1, 256)


STORAGE_TYPES = {
    0: StorageType("F32", 1, 4, torch.float32),
    1: StorageType("F16", 1, 2, torch.float16),
    2: StorageType("Q4_0", 32, 18, torch.float32, _q4_0),
    3: StorageType("Q4_1", 32, 20, torch.float32, _q4_1),
    6: StorageType("Q5_0", 32, 22, torch.float32, _q5_0),
    7: StorageType("Q5_1", 32, 24, torch.float32, _q5_1),
    8: StorageType("Q8_0", 32, 34, torch.float32, _q8_0),
    12: StorageType("Q4_K", 256, 144, torch.float32, _q4_k),
    13: StorageType("Q5_K", 256, 176, torch.float32, _q5_k),
    14: StorageType("Q6_K", 256, 210, torch.float32, _q6_k),
    30: StorageType("BF16", 1, 2, torch.bfloat16),
}

# Names of the types that are refused, for the message.
UNSUPPORTED_TYPE_NAMES = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}
