"""Finds the exact bytes that each token of a tokenizer stands for."""

import json
import re
from typing import Any, NamedTuple

import tokenizers

from service.tokenizer_source import TokenizerError

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "▁"


class TokenTable(NamedTuple):
    """token_bytes: one entry per id, b"" for an id without a token.

    has_space_prefix: encoding puts one space before a text, and decoding a whole text drops it.
    """

    token_bytes: tuple[bytes, ...]
    has_space_prefix: bool


def build_token_table(backend: tokenizers.Tokenizer) -> TokenTable:
    """Reads the decoder of a byte-level BPE or of a SentencePiece-like tokenizer.

    Raises TokenizerError naming the decoder if it is neither.
    """
    decoder = json.loads(backend.to_str())["decoder"]
    kinds = _decoder_kinds(decoder)
    if "ByteLevel" in kinds:
        to_bytes, has_space_prefix = _byte_level_bytes, False
    elif kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        to_bytes, has_space_prefix = _space_mark_bytes, _strips_space(decoder)
    else:
        raise TokenizerError(f"unsupported tokenizer decoder: {', '.join(sorted(kinds)) or 'none'}")
    added = {
        id_: token.content.encode() for id_, token in backend.get_added_tokens_decoder().items()
    }
    vocab = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocab.values(), default=-1) + 1)
    for token, id_ in vocab.items():
        table[id_] = added[id_] if id_ in added else to_bytes(token)
    return TokenTable(tuple(table), has_space_prefix)


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's stand-in of each byte: printable Latin-1 is itself, the rest count from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if chr(byte) not in alphabet)
    alphabet |= {chr(256 + offset): byte for offset, byte in enumerate(others)}
    return alphabet


_ALPHABET = byte_level_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:  # a token outside the alphabet stands for its own text
        return token.encode()


def _space_mark_bytes(token: str) -> bytes:
    match = _BYTE_FALLBACK.fullmatch(token)
    if match:
        return bytes([int(match[1], 16)])
    return token.replace(_SPACE_MARK, " ").encode()


def _parts(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    return {part["type"] for part in _parts(decoder)}


def _strips_space(decoder: dict[str, Any] | None) -> bool:
    return any(
        (part["type"] == "Strip" and part["content"] == " " and part["start"] == 1)
        or (part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never")
        for part in _parts(decoder)
    )
