"""The vocabulary as grammars see it."""

import pytest

from grammar.vocabulary import Vocabulary, padded_vocabulary

TOKENS = (b"", b"<s>", b"</s>", b"a", b"\xff")


def vocabulary(tokens=TOKENS, special=(1, 2), ends=(2,)):
    return Vocabulary(tokens, frozenset(special), frozenset(ends))


def test_equal_contents_have_equal_hashes_whatever_the_order_of_the_ids():
    assert vocabulary(special=(2, 1)).hash == vocabulary().hash
    assert vocabulary(special=(2, 1)) == vocabulary()


@pytest.mark.parametrize(
    "other",
    [
        vocabulary(tokens=(*TOKENS, b"")),
        vocabulary(tokens=(b"<s", b">", *TOKENS[2:])),
        vocabulary(special=(1,)),
        vocabulary(ends=(1, 2)),
        vocabulary(special=(1,), ends=(2, 2)),
        vocabulary(special=(), ends=(1, 2)),
    ],
)
def test_any_difference_changes_the_hash(other):
    assert other.hash != vocabulary().hash


def test_text_ids_are_neither_special_nor_ends_nor_empty():
    assert list(vocabulary().text_ids()) == [3, 4]


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match="end_ids holds 5; ids are below 5"):
        vocabulary(ends=(5,))


def test_a_vocabulary_follows_the_size_of_the_models_head():
    wider = padded_vocabulary(TOKENS, {1, 2}, {2}, 8)
    assert wider.token_bytes == (*TOKENS, b"", b"", b"")
    narrower = padded_vocabulary(TOKENS, {1, 4}, {2}, 3)
    assert narrower == Vocabulary(TOKENS[:3], frozenset({1}), frozenset({2}))


def test_a_vocabulary_cannot_be_changed():
    with pytest.raises(AttributeError):
        vocabulary().token_bytes = ()
