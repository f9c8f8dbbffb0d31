"""A small real tokenizer: 256 bytes, ChatML specials and a few merges, the same on every run.

Ids: 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|> (eos), 3 + b for byte b, then merged tokens.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from service.token_bytes import byte_level_alphabet
from service.tokenizer import Tokenizer, load_tokenizer

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
FIRST_BYTE_ID = len(SPECIALS)
MERGED_WORDS = (
    "the",
    " the",
    "ing",
    " and",
    "user",
    "system",
    "assistant",
    " hello",
    "é",
    "你",
    "😀",
)

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """The tokenizer, loaded as a model directory's is."""
    with TemporaryDirectory() as directory:
        write_byte_tokenizer(directory)
        return load_tokenizer(directory)


def write_byte_tokenizer(directory: str | Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json (with a ChatML template) to a directory."""
    backend = _build()
    backend.save(str(Path(directory) / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "chat_template": CHATML,
    }
    (Path(directory) / "tokenizer_config.json").write_text(json.dumps(config))


def _build() -> tokenizers.Tokenizer:
    stand_in = {byte: char for char, byte in byte_level_alphabet().items()}
    tokens = [*SPECIALS, *(stand_in[byte] for byte in range(256))]
    merges: list[tuple[str, str]] = []
    for word in MERGED_WORDS:
        for merge in _merges_of([stand_in[byte] for byte in word.encode()], tokens):
            if merge not in merges:
                merges.append(merge)
                tokens.append("".join(merge))
    vocab = {token: id_ for id_, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in SPECIALS])
    return backend


def _merges_of(chars: list[str], tokens: list[str]) -> list[tuple[str, str]]:
    """Merges that build a word from its bytes, from its tail if that is a word already."""
    tail = "".join(chars[1:])
    if len(chars) > 2 and tail in tokens:
        return [(chars[0], tail)]
    return [("".join(chars[:end]), chars[end]) for end in range(1, len(chars))]
