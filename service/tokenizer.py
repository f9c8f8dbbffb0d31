"""Text to token ids and back, byte-exact, for every tokenizer that we can read."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import tokenizers

from engine.loading.gguf import GgufFile
from grammar.vocabulary import Vocabulary, padded_vocabulary
from service.token_bytes import build_token_table
from service.tokenizer_gguf import read_chat_template, read_tokens, tokenizer_from_metadata
from service.tokenizer_source import (
    TokenizerError,
    TokenizerSource,
    read_tokenizer_directory,
    read_tokenizer_json,
)

__all__ = ["Tokenizer", "TokenizerError", "load_tokenizer"]


class Tokenizer:
    """A tokenizer with the model's special tokens, end ids and chat template.

    Immutable; may be shared by threads. An id below `vocab_size` without a token has no bytes.
    """

    def __init__(self, source: TokenizerSource) -> None:
        self._parsing = source.backend
        # Whether control tokens are read from text is a setting of the whole library object, so
        # threads must not switch it: each setting has its own object.
        self._plain = tokenizers.Tokenizer.from_str(source.backend.to_str())
        self._plain.encode_special_tokens = True
        self._table, self.has_space_prefix = build_token_table(source.backend)
        added = source.backend.get_added_tokens_decoder()
        self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        self.bos_id = source.bos_id
        self.eos_id = source.eos_id
        self.end_ids = source.end_ids
        self.chat_template = source.chat_template

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return len(self._table)

    @property
    def all_token_bytes(self) -> tuple[bytes, ...]:
        """The bytes of every id; special tokens have those of their name."""
        return self._table

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of a token; b"" for ids without one (padding rows of a model's head)."""
        return self._table[token_id] if 0 <= token_id < len(self._table) else b""

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name, such as "<|im_end|>"."""
        return self._parsing.token_to_id(token)

    def token_name(self, token_id: int | None) -> str | None:
        """The name of a token by its id, as templates write special ones."""
        return None if token_id is None else self._parsing.id_to_token(token_id)

    def vocabulary(self, num_logits: int) -> Vocabulary:
        """The vocabulary as grammars see it, one entry for each logit of the model's head."""
        return padded_vocabulary(self._table, self.special_ids, self.end_ids, num_logits)

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool | None = None,
        parse_special: bool,
        literal_spans: Sequence[tuple[int, int]] = (),
    ) -> list[int]:
        """Token ids of a text.

        add_special_tokens: add BOS and EOS as the model's tokenizer defines; None is True. A
        rendered chat template is encoded with False: it writes its own.
        parse_special: whether names of control tokens in `text` become control tokens. False for
        what a user wrote, True for a rendered template.
        literal_spans: sorted character ranges of `text` in which they do not in spite of
        parse_special, because the text there came from a message.
        """
        if parse_special and literal_spans:
            return self._encode_guarded(text, add_special_tokens is not False, literal_spans)
        backend = self._parsing if parse_special else self._plain
        return list(backend.encode(text, add_special_tokens=add_special_tokens is not False).ids)

    def decode(self, token_ids: Iterable[int], *, skip_special: bool) -> str:
        """Text of a whole sequence; bytes that are not UTF-8 become U+FFFD."""
        skipped = self.special_ids if skip_special else frozenset()
        data = b"".join(self.token_bytes(id_) for id_ in token_ids if id_ not in skipped)
        if self.has_space_prefix:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Ids of the control tokens by name."""
        added = self._parsing.get_added_tokens_decoder()
        return {added[id_].content: id_ for id_ in sorted(self.special_ids)}

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        return control_token_pattern(self.special_tokens)

    def _encode_guarded(
        self, text: str, add_special_tokens: bool, literal_spans: Sequence[tuple[int, int]]
    ) -> list[int]:
        """Cuts the text at the control tokens outside `literal_spans`; the rest is plain text."""
        ids: list[int] = []
        start = 0
        for match in self._special_pattern.finditer(text):
            if _overlaps(match.span(), literal_spans):
                continue
            ids += self._plain.encode(text[start : match.start()], add_special_tokens=False).ids
            ids.append(self.special_tokens[match[0]])
            start = match.end()
        ids += self._plain.encode(text[start:], add_special_tokens=False).ids
        if not add_special_tokens:
            return ids
        empty = list(self._parsing.encode("", add_special_tokens=True).ids)
        num_before = 1 if empty[:1] == [self.bos_id] else 0
        return [*empty[:num_before], *ids, *empty[num_before:]]


def load_tokenizer(model_path: str) -> Tokenizer:
    """Loads the tokenizer of a model directory or of a .gguf file.

    Raises TokenizerError (a ValueError) naming the file or the unknown pre-tokenizer.
    """
    path = Path(model_path)
    if path.suffix == ".gguf":
        return Tokenizer(_read_gguf(path))
    return Tokenizer(read_tokenizer_directory(path))


def _read_gguf(path: Path) -> TokenizerSource:
    """A tokenizer.json beside the file is used if it has the file's tokens: it says more."""
    file = GgufFile(path)
    try:
        metadata = dict(file.metadata)
    finally:
        file.close()
    try:
        beside = path.with_name("tokenizer.json")
        if beside.is_file() and _has_tokens(beside, read_tokens(metadata)):
            source = read_tokenizer_directory(path.parent)
            template = source.chat_template or read_chat_template(metadata)
            return replace(source, chat_template=template)
        return tokenizer_from_metadata(metadata)
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from error


def _has_tokens(tokenizer_json: Path, tokens: list[str]) -> bool:
    """Whether a tokenizer gives the tokens their ids; a folder may hold files of several models."""
    vocab = read_tokenizer_json(tokenizer_json).get_vocab(with_added_tokens=True)
    return bool(vocab) and all(
        id_ < len(tokens) and tokens[id_] == token for token, id_ in vocab.items()
    )


def control_token_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Matches any of the names, the longest where several begin at one place."""
    longest_first = sorted((name for name in names if name), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _overlaps(span: tuple[int, int], sorted_spans: Sequence[tuple[int, int]]) -> bool:
    """Whether `span` shares a character with one of the disjoint `sorted_spans`."""
    following = bisect_left(sorted_spans, (span[1], 0))
    return following > 0 and sorted_spans[following - 1][1] > span[0]
