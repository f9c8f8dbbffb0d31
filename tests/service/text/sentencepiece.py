"""A small SentencePiece-like vocabulary as GGUF metadata, and a plain algorithm for it."""

from itertools import pairwise

from service.tokenizer import Tokenizer
from service.tokenizer_gguf import tokenizer_from_metadata

# fmt: off
PIECES = (
    "a", "b", "c", "▁", "ab", "▁a", "bc", "abc", "▁ab", "aa", "cc", "ca", "▁▁", "é", "▁é", "aab",
    "bca", "cab", "abca", "▁c", "▁ca", "▁cab", "bb", "abb",
)
# fmt: on
NAMES = ("<unk>", "<s>", "</s>")
NUM_FIXED = len(NAMES) + 256


def sentencepiece_metadata(**changes):
    """Metadata of the vocabulary: names, 256 byte tokens, then pieces of falling scores."""
    tokens = [*NAMES, *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, "<tool>"]
    types = [2, 3, 3] + [6] * 256 + [1] * len(PIECES) + [4]
    scores = [0.0] * NUM_FIXED + [-float(rank) for rank in range(len(PIECES))] + [0.0]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return metadata | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


def sentencepiece_tokenizer(**changes) -> Tokenizer:
    return Tokenizer(tokenizer_from_metadata(sentencepiece_metadata(**changes)))


def reference_encode(text: str, has_prefix: bool = True) -> list[int]:
    """Joins, again and again, the leftmost of the best-scored neighbours; bytes for the rest."""
    if not text:
        return []
    symbols = list((" " + text if has_prefix else text).replace(" ", "▁"))
    rank = {piece: rank for rank, piece in enumerate(PIECES)}
    while True:
        pairs = [
            (rank[left + right], index)
            for index, (left, right) in enumerate(pairwise(symbols))
            if left + right in rank
        ]
        if not pairs:
            break
        _, index = min(pairs)
        symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]
    ids = []
    for symbol in symbols:
        if symbol in rank:
            ids.append(NUM_FIXED + rank[symbol])
        else:
            ids += [len(NAMES) + byte for byte in symbol.encode()]
    return ids
