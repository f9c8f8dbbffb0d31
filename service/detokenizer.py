"""Turns a stream of token ids into text, piece by piece, with no byte lost at a border."""

import codecs
from collections.abc import Iterable

from service.tokenizer import Tokenizer


class Detokenizer:
    """Text of one output. The pieces join to exactly what decoding all ids at once gives.

    A character whose bytes come in several tokens is held back until its last one.
    skip_special: control tokens write nothing; otherwise they write their name.
    at_text_start: the ids are a whole text and not the continuation of a prompt, so the space that
    SentencePiece-like tokenizers put before a text is dropped.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special: bool = True, at_text_start: bool = False
    ) -> None:
        self._table = tokenizer.all_token_bytes
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._drops_space = at_text_start and tokenizer.has_space_prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """Text that the tokens complete; may be "". Ids without bytes write nothing."""
        return self._decoder.decode(b"".join(map(self._bytes_of, token_ids)))

    def flush(self) -> str:
        """Ends the output: an unfinished character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._skipped or not 0 <= token_id < len(self._table):
            return b""
        data = self._table[token_id]
        if self._drops_space and data:
            self._drops_space = False
            return data.removeprefix(b" ")
        return data
