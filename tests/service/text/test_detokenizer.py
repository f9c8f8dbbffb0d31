"""The incremental detokenizer against decoding everything at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.detokenizer import Detokenizer
from tests.service.text.sentencepiece import sentencepiece_tokenizer
from tests.support.byte_tokenizer import FIRST_BYTE_ID, byte_tokenizer

BYTES = byte_tokenizer()
SENTENCEPIECE = sentencepiece_tokenizer()


def streamed(detokenizer, pieces):
    return "".join(detokenizer.push(piece) for piece in pieces) + detokenizer.flush()


@pytest.mark.parametrize("tokenizer", [BYTES, SENTENCEPIECE], ids=["bytes", "sentencepiece"])
@given(data=st.data(), skip_special=st.booleans())
def test_deltas_join_to_what_decoding_at_once_gives(tokenizer, data, skip_special):
    ids = st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=5)
    pieces = data.draw(st.lists(ids, max_size=8))
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special, at_text_start=True)
    whole = [id_ for piece in pieces for id_ in piece]
    expected = tokenizer.decode(whole, skip_special=skip_special)
    assert streamed(detokenizer, pieces) == expected


@given(st.binary(max_size=40))
def test_any_bytes_become_text_exactly_as_in_one_piece(data):
    ids = [FIRST_BYTE_ID + byte for byte in data]
    pieces = [[id_] for id_ in ids]
    assert streamed(Detokenizer(BYTES), pieces) == data.decode("utf-8", errors="replace")


def test_a_character_is_held_until_its_last_byte():
    detokenizer = Detokenizer(BYTES)
    pieces = [detokenizer.push([FIRST_BYTE_ID + byte]) for byte in "a🙂b".encode()]
    assert pieces == ["a", "", "", "", "🙂", "b"]


def test_an_unfinished_character_ends_as_one_replacement():
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.push([FIRST_BYTE_ID + byte for byte in "x🙂".encode()[:-1]]) == "x"
    assert detokenizer.flush() == "�"
    assert detokenizer.flush() == ""


def test_special_tokens_are_skipped_or_written_by_name():
    assert Detokenizer(BYTES).push([1, FIRST_BYTE_ID + 97, 2]) == "a"
    kept = Detokenizer(BYTES, skip_special=False)
    assert kept.push([1, FIRST_BYTE_ID + 97, 2]) == "<|im_start|>a<|im_end|>"


def test_a_continuation_keeps_its_leading_space_and_a_whole_text_drops_it():
    ids = SENTENCEPIECE.encode("ab", parse_special=False, add_special_tokens=False)
    assert Detokenizer(SENTENCEPIECE).push(ids) == " ab"
    assert Detokenizer(SENTENCEPIECE, at_text_start=True).push(ids) == "ab"
