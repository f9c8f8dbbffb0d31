"""Each damage to a GGUF file gives one CheckpointError that names the file and the field."""

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.loading import CheckpointError, open_checkpoint
from tests.engine.loading.drafts import (
    ARRAY,
    BOOL,
    F32,
    STRING,
    U32,
    Draft,
    TensorDraft,
    string,
    tiny_draft,
)

HUGE = 2**63
Damage = Callable[[Draft], object]


def _pair(name: str, kind: int, held: object) -> Damage:
    return lambda draft: draft.pairs.__setitem__(name, (kind, held))


def _without(name: str) -> Damage:
    return lambda draft: draft.pairs.pop(name)


def _tensor(stored: str, /, **changes: object) -> Damage:
    def damage(draft: Draft) -> None:
        for attribute, changed in changes.items():
            setattr(draft.tensors[stored], attribute, changed)

    return damage


def _set(**changes: object) -> Damage:
    def damage(draft: Draft) -> None:
        for attribute, changed in changes.items():
            setattr(draft, attribute, changed)

    return damage


def _extra_pair(stored: bytes) -> Damage:
    return lambda draft: _set(extra_pairs=stored, num_pairs=len(draft.pairs) + 1)(draft)


def _array(element: int, length: int) -> bytes:
    return struct.pack("<IQ", element, length)


NORM, QUERY, EMBEDDING = "output_norm.weight", "blk.0.attn_q.weight", "token_embd.weight"
TOKENS = "tokenizer.ggml.tokens"

DAMAGES: dict[str, tuple[Damage, str]] = {
    "bad magic": (_set(magic=b"GGML"), "magic"),
    "version 1": (_set(version=1), "version"),
    "unknown version": (_set(version=99), "version"),
    "big-endian": (_set(version=3 << 24), "version: the file is big-endian"),
    "huge tensor count": (_set(num_tensors=HUGE), "tensor count"),
    "huge metadata count": (_set(num_pairs=HUGE), "metadata count"),
    "one tensor too many": (_set(num_tensors=12), "tensor"),
    "huge key length": (_extra_pair(string("k", HUGE)), "metadata key 11 (length)"),
    "long key": (_extra_pair(string("k" * 70000)), "metadata key 11 (length)"),
    "key of invalid UTF-8": (_extra_pair(string(b"\xff\xfe") + bytes(8)), "metadata key 11"),
    "key that occurs twice": (
        _extra_pair(string("llama.block_count") + struct.pack("<II", U32, 1)),
        "metadata 'llama.block_count': occurs twice",
    ),
    "unknown value type": (_pair("odd", 77, b""), "metadata 'odd' (type)"),
    "huge string": (_pair("odd", STRING, string("x", HUGE)), "metadata 'odd'"),
    "string of invalid UTF-8": (_pair("odd", STRING, string(b"\xff")), "metadata 'odd'"),
    "huge array": (_pair("odd", ARRAY, _array(U32, HUGE)), "metadata 'odd' (array length)"),
    "huge string array": (_pair("odd", ARRAY, _array(STRING, HUGE)), "'odd' (array length)"),
    "huge string in an array": (
        _pair("odd", ARRAY, _array(STRING, 1) + string("x", HUGE)),
        "metadata 'odd'[0] (length)",
    ),
    "array of arrays": (_pair("odd", ARRAY, _array(ARRAY, 1)), "metadata 'odd' (element type)"),
    "neither true nor false": (_pair("odd", BOOL, b"\x02"), "metadata 'odd'"),
    "alignment of zero": (_pair("general.alignment", U32, 0), "general.alignment"),
    "alignment of 48": (_pair("general.alignment", U32, 48), "general.alignment"),
    "alignment in words": (_pair("general.alignment", STRING, "32"), "general.alignment"),
    "no dimensions": (_tensor(NORM, dims=[]), f"{NORM}' (number of dimensions)"),
    "five dimensions": (_tensor(NORM, dims=[8, 1, 1, 1, 1]), f"{NORM}' (number of dimensions)"),
    "zero dimension": (_tensor(NORM, dims=[0]), f"{NORM}' (dimensions)"),
    "huge dimensions": (_tensor(NORM, dims=[HUGE, HUGE]), f"{NORM}' (offset)"),
    "unknown tensor type": (_tensor(NORM, kind=99), f"{NORM}' (type)"),
    "unsupported tensor type": (_tensor(NORM, kind=16), "IQ2_XXS is not supported"),
    "rows shorter than a block": (_tensor(QUERY, kind=3), f"{QUERY}' (dimensions)"),
    "misaligned offset": (_tensor(NORM, offset=33), f"{NORM}' (offset)"),
    "offset out of range": (_tensor(NORM, offset=2**62), f"{NORM}' (offset)"),
    "overlapping tensors": (_tensor(NORM, offset=0), "(offset): its data at byte"),
    "tensor name twice": (_tensor(NORM, name=QUERY.encode()), f"{QUERY}' (name): occurs twice"),
    "tensor name of invalid UTF-8": (_tensor(NORM, name=b"\xff"), "tensor 10 (name)"),
    "wrong shape": (_tensor(QUERY, dims=[4, 16]), f"{QUERY}': shape"),
    "missing tensor": (lambda draft: draft.tensors.pop(QUERY), f"{QUERY}': is missing"),
    "missing embedding": (lambda draft: draft.tensors.pop(EMBEDDING), EMBEDDING),
    "left-over tensor": (
        lambda draft: draft.tensors.update(extra=TensorDraft(b"blk.0.attn_q_norm.weight", [1])),
        "tensor 'blk.0.attn_q_norm.weight'",
    ),
    "no architecture": (_without("general.architecture"), "general.architecture"),
    "architecture of another type": (_pair("general.architecture", U32, 1), "architecture"),
    "unknown architecture": (
        _pair("general.architecture", STRING, "mamba"),
        "general.architecture: 'mamba' is not supported; supported: llama, qwen2",
    ),
    "no layers": (_pair("llama.block_count", U32, 0), "llama.block_count"),
    "too many layers": (_pair("llama.block_count", U32, 2**31 - 1), "blk.1.attn_norm.weight"),
    "layers in words": (_pair("llama.block_count", STRING, "1"), "llama.block_count"),
    "missing width": (_without("llama.embedding_length"), "llama.embedding_length: is missing"),
    "zero heads": (_pair("llama.attention.head_count", U32, 0), "llama.attention.head_count"),
    "KV heads that do not divide": (
        _pair("llama.attention.head_count_kv", U32, 3),
        "llama.attention.head_count_kv",
    ),
    "epsilon that is no number": (
        _pair("llama.attention.layer_norm_rms_epsilon", F32, float("nan")),
        "layer_norm_rms_epsilon",
    ),
    "unsupported rope scaling": (
        _pair("llama.rope.scaling.type", STRING, "yarn"),
        "llama.rope.scaling.type",
    ),
    "experts": (_pair("llama.expert_count", U32, 8), "llama.expert_count"),
    "more tokens than rows": (_pair(TOKENS, ARRAY, (STRING, ["x"] * 11)), TOKENS),
    "tokens that are numbers": (_pair(TOKENS, ARRAY, (U32, [1] * 10)), TOKENS),
    "too few token types": (
        _pair("tokenizer.ggml.token_type", ARRAY, (U32, [1])),
        "tokenizer.ggml.token_type",
    ),
    "end beyond the vocabulary": (_pair("tokenizer.ggml.eos_token_id", U32, 10), "eos_token_id"),
    "sampling default out of range": (_pair("general.sampling.top_p", F32, 2.0), "sampling.top_p"),
    "split without a part's name": (_pair("split.count", U32, 2), "split.count"),
    "split count of another type": (_pair("split.count", STRING, "2"), "split.count"),
    "tensors that the parts lack": (_pair("split.tensors.count", U32, 99), "split.tensors.count"),
}


def _error_of(path: Path) -> str:
    """The message, after checking that nothing large was allocated on the way to it."""
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(str(path))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert str(path.parent) in message
    assert "\n" not in message
    return message


def test_the_undamaged_draft_opens(tmp_path: Path) -> None:
    source = open_checkpoint(str(tiny_draft().write(tmp_path / "model.gguf")))
    assert len(dict(source.tensors())) == 11
    source.close()


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_refused_by_field(name: str, tmp_path: Path) -> None:
    damage, field = DAMAGES[name]
    draft = tiny_draft()
    damage(draft)
    assert field in _error_of(draft.write(tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("section", "field"),
    [("header", "count"), ("metadata", "metadata"), ("index", "tensor"), ("data", "(offset)")],
)
def test_a_file_cut_in_any_section_is_refused(section: str, field: str, tmp_path: Path) -> None:
    draft = tiny_draft()
    end = draft.sections()[section]
    assert field in _error_of(draft.write(tmp_path / "model.gguf", end - 1))


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = tiny_draft().encode()
    path = tmp_path / "model.gguf"
    for size in range(1, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"model\.gguf"):
            open_checkpoint(str(path))


def test_any_flipped_byte_of_the_index_is_refused_or_read(tmp_path: Path) -> None:
    draft = tiny_draft()
    whole, end = draft.encode(), draft.sections()["index"]
    path = tmp_path / "model.gguf"
    for position in range(end):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            source = open_checkpoint(str(path))
        except CheckpointError:
            continue
        assert len(dict(source.tensors())) == 11
        source.close()


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    assert "does not exist" in _error_of(tmp_path / "absent.gguf")
    (tmp_path / "empty.gguf").touch()
    assert "empty" in _error_of(tmp_path / "empty.gguf")


def _write_parts(directory: Path) -> list[Path]:
    """The tiny model in two parts; the second holds the last tensor alone."""
    first, last = tiny_draft(), Draft()
    last.tensors[NORM] = first.tensors.pop(NORM)
    last.tensors[NORM].offset = 0
    paths = []
    for number, draft in enumerate((first, last)):
        draft.pairs |= {"split.no": (U32, number), "split.count": (U32, 2)}
        draft.pairs["split.tensors.count"] = (U32, 11)
        paths.append(draft.write(directory / f"model-0000{number + 1}-of-00002.gguf"))
    return paths


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = _write_parts(tmp_path)
    paths[1].unlink()
    assert paths[1].name in _error_of(paths[0])


def test_a_part_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    paths = _write_parts(tmp_path)
    paths[1].write_bytes(paths[0].read_bytes())
    assert "split.no" in _error_of(paths[0])


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    paths = _write_parts(tmp_path)
    draft = tiny_draft()
    draft.pairs |= {"split.no": (U32, 1), "split.count": (U32, 2)}
    draft.write(paths[1])
    assert "(name)" in _error_of(paths[0])


def test_a_split_model_opens_through_any_part(tmp_path: Path) -> None:
    digests = set()
    for path in _write_parts(tmp_path):
        source = open_checkpoint(str(path))
        assert len(dict(source.tensors())) == 11
        digests.add(source.digest)
        source.close()
    assert len(digests) == 1
