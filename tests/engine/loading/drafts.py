"""A GGUF file in pieces that tests damage before it is written."""

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10
_LAYOUTS = {U8: "<B", U32: "<I", F32: "<f", BOOL: "<B", U64: "<Q"}


@dataclass
class TensorDraft:
    name: bytes
    dims: list[int]  # innermost first, as the file has them
    kind: int = 0
    offset: int = 0
    values: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))


@dataclass
class Draft:
    """Counts are those of the lists unless they are set."""

    pairs: dict[str, tuple[int, Any]] = field(default_factory=dict)
    tensors: dict[str, TensorDraft] = field(default_factory=dict)
    magic: bytes = b"GGUF"
    version: int = 3
    num_pairs: int | None = None
    num_tensors: int | None = None
    extra_pairs: bytes = b""

    def write(self, path: Path, size: int | None = None) -> Path:
        """Writes the file, cut to `size` bytes."""
        path.write_bytes(self.encode()[:size])
        return path

    def sections(self) -> dict[str, int]:
        """Where each section of the encoded file ends."""
        head = 24
        metadata = head + len(self._metadata())
        index = metadata + len(self._index())
        return {"header": head, "metadata": metadata, "index": index, "data": len(self.encode())}

    def encode(self) -> bytes:
        num_pairs = len(self.pairs) if self.num_pairs is None else self.num_pairs
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        head = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_pairs)
        front = head + self._metadata() + self._index()
        front += bytes(-len(front) % 32)
        size = max((each.offset + each.values.nbytes for each in self._placed()), default=0)
        data = bytearray(size)
        for tensor in self._placed():
            data[tensor.offset : tensor.offset + tensor.values.nbytes] = tensor.values.tobytes()
        return front + bytes(data)

    def _placed(self) -> list[TensorDraft]:
        return [each for each in self.tensors.values() if each.offset < 1 << 20]

    def _metadata(self) -> bytes:
        pairs = (string(key) + value(kind, held) for key, (kind, held) in self.pairs.items())
        return b"".join(pairs) + self.extra_pairs

    def _index(self) -> bytes:
        return b"".join(
            struct.pack("<Q", len(each.name))
            + each.name
            + struct.pack(
                f"<I{len(each.dims)}QIQ", len(each.dims), *each.dims, each.kind, each.offset
            )
            for each in self.tensors.values()
        )


def string(text: str | bytes, length: int | None = None) -> bytes:
    stored = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(stored) if length is None else length) + stored


def value(kind: int, held: Any) -> bytes:
    """A typed value; bytes stand for themselves."""
    head = struct.pack("<I", kind)
    if isinstance(held, bytes):
        return head + held
    if kind == STRING:
        return head + string(held)
    if kind == ARRAY:
        element, items = held
        body = b"".join(value(element, item)[4:] for item in items)
        return head + struct.pack("<IQ", element, len(items)) + body
    return head + struct.pack(_LAYOUTS[kind], held)


def tiny_draft() -> Draft:
    """A whole llama: width 8, 2 heads, 1 KV head, 1 layer, 10 tokens."""
    shapes = {
        "token_embd": (10, 8),
        "blk.0.attn_norm": (8,),
        "blk.0.attn_q": (8, 8),
        "blk.0.attn_k": (4, 8),
        "blk.0.attn_v": (4, 8),
        "blk.0.attn_output": (8, 8),
        "blk.0.ffn_norm": (8,),
        "blk.0.ffn_gate": (16, 8),
        "blk.0.ffn_up": (16, 8),
        "blk.0.ffn_down": (8, 16),
        "output_norm": (8,),
    }
    draft = Draft(
        pairs={
            "general.architecture": (STRING, "llama"),
            "llama.block_count": (U32, 1),
            "llama.context_length": (U32, 64),
            "llama.embedding_length": (U32, 8),
            "llama.feed_forward_length": (U32, 16),
            "llama.attention.head_count": (U32, 2),
            "llama.attention.head_count_kv": (U32, 1),
            "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
            "tokenizer.ggml.tokens": (ARRAY, (STRING, [f"t{number}" for number in range(10)])),
            "tokenizer.ggml.token_type": (ARRAY, (U32, [1] * 10)),
            "tokenizer.ggml.eos_token_id": (U32, 2),
        }
    )
    offset = 0
    for name, shape in shapes.items():
        values = np.arange(np.prod(shape), dtype=np.float32)
        stored = f"{name}.weight"
        draft.tensors[stored] = TensorDraft(stored.encode(), list(shape[::-1]), 0, offset, values)
        offset += -(-values.nbytes // 32) * 32
    return draft
