"""Tokenizers from GGUF metadata: byte-level splits, SentencePiece-like merging, refusals."""

import gguf
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from service.pretokenizers import SPLIT_RULES
from service.token_bytes import byte_level_alphabet
from service.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from service.tokenizer_gguf import tokenizer_from_metadata
from tests.service.text.sentencepiece import (
    NUM_FIXED,
    reference_encode,
    sentencepiece_metadata,
    sentencepiece_tokenizer,
)
from tests.support.byte_tokenizer import write_byte_tokenizer

SENTENCEPIECE = sentencepiece_tokenizer()
pieces_text = st.text(alphabet="abc é你<", max_size=16)


def byte_level_metadata(**changes):
    stand_in = sorted(byte_level_alphabet())
    tokens = [*stand_in, "Ġa", "Ġab", "<|im_end|>", "<think>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 258 + [3, 4],
        "tokenizer.ggml.merges": ["Ġ a", "Ġa b"],
        "tokenizer.ggml.eos_token_id": 258,
    }
    return metadata | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


def words(name: str, text: str) -> list[str]:
    stand_in = byte_level_alphabet()
    split = SPLIT_RULES[name].pre_tokenizer().pre_tokenize_str(text)
    return [bytes(stand_in[char] for char in word).decode() for word, _ in split]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "It's 1234  ok!?\n\n", ["It", "'s", " 1234", " ", " ok", "!?", "\n\n"]),
        ("smollm", "It's 1234  ok", ["It", "'s", " ", "1", "2", "3", "4", " ", " ok"]),
        ("qwen2", "IT'S 1234\n\nx", ["IT", "'S", " ", "1", "2", "3", "4", "\n\n", "x"]),
        ("llama-bpe", "IT'S 1234.\nx", ["IT", "'S", " ", "123", "4", ".\n", "x"]),
        ("default", "a+b 1234!", ["a", "+", "b", " ", "123", "4", "!"]),
    ],
)
def test_each_pre_tokenizer_splits_as_its_models_were_trained(name, text, expected):
    assert words(name, text) == expected


@given(st.text(max_size=30))
def test_the_gpt2_split_equals_the_librarys_own(text):
    own = SPLIT_RULES["gpt-2"].pre_tokenizer().pre_tokenize_str(text)
    assert own == pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)


@given(st.text(max_size=30))
def test_the_smollm_split_equals_the_librarys_digits_and_byte_level(text):
    library = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    own = SPLIT_RULES["smollm"].pre_tokenizer().pre_tokenize_str(text)
    assert own == library.pre_tokenize_str(text)


@pytest.mark.parametrize("name", ["qwen2", "deepseek-r1-qwen", "llama-bpe", "llama3", "llama-v3"])
@given(text=st.text(max_size=30) | st.text(alphabet="aB'sSl1٣² \n\r\t.,é日", max_size=30))
def test_splits_equal_those_of_transformers(name, text):
    library = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[name]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    own = SPLIT_RULES[name].pre_tokenizer().pre_tokenize_str(text)
    assert own == library.pre_tokenize_str(text)


def test_an_unknown_pre_tokenizer_is_refused_with_the_known_names():
    with pytest.raises(TokenizerError, match=r"'tekken-9'.*gpt-2.*qwen2.*smollm"):
        tokenizer_from_metadata(byte_level_metadata(pre="tekken-9"))


def test_user_defined_tokens_are_found_in_any_text_and_control_tokens_are_not():
    tokenizer = Tokenizer(tokenizer_from_metadata(byte_level_metadata()))
    assert tokenizer.encode(" ab<think>", parse_special=False) == [257, 259]
    assert 258 not in tokenizer.encode("<|im_end|>", parse_special=False)
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [258]
    assert tokenizer.special_ids == {258}
    assert tokenizer.end_ids == {258}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"add_bos_token": True}, [0]),
        ({"pre": "llama-bpe"}, [0]),
        ({"pre": "llama-bpe", "add_bos_token": False}, []),
    ],
)
def test_bos_comes_first_where_the_file_or_its_kind_says_so(changes, expected):
    metadata = byte_level_metadata(bos_token_id=0, **changes)
    ids = Tokenizer(tokenizer_from_metadata(metadata)).encode("b", parse_special=False)
    assert ids[:-1] == expected


def test_eos_comes_last_where_the_file_says_so():
    tokenizer = sentencepiece_tokenizer(add_eos_token=True)
    assert tokenizer.encode("a", parse_special=False) == [1, *reference_encode("a"), 2]


def test_only_llama_bpe_takes_a_whole_word_without_merging():
    tokens = byte_level_metadata()["tokenizer.ggml.tokens"]
    tokens[256] = "zq"
    changes = {"tokens": tokens, "merges": [], "add_bos_token": False}
    for pre, expected in (("llama-bpe", 1), ("qwen2", 2)):
        metadata = byte_level_metadata(pre=pre, **changes)
        tokenizer = Tokenizer(tokenizer_from_metadata(metadata))
        assert len(tokenizer.encode("zq", parse_special=False)) == expected


def test_only_qwen2_composes_characters_first():
    for pre, expected in (("qwen2", "\u00e9"), ("gpt-2", "e\u0301")):
        tokenizer = Tokenizer(tokenizer_from_metadata(byte_level_metadata(pre=pre)))
        ids = tokenizer.encode("e\u0301", parse_special=False)
        assert tokenizer.decode(ids, skip_special=False) == expected


@given(pieces_text)
def test_sentencepiece_decoding_of_text_equals_the_librarys_own(text):
    ids = SENTENCEPIECE.encode(text, parse_special=False)
    assert SENTENCEPIECE.decode(ids, skip_special=True) == SENTENCEPIECE._plain.decode(ids)


@given(pieces_text)
def test_sentencepiece_merging_equals_the_plain_algorithm(text):
    ids = SENTENCEPIECE.encode(text, parse_special=False, add_special_tokens=False)
    assert ids == reference_encode(text)


@given(pieces_text)
def test_without_space_prefix_the_text_is_encoded_as_it_is(text):
    tokenizer = sentencepiece_tokenizer(add_space_prefix=False)
    ids = tokenizer.encode(text, parse_special=False, add_special_tokens=False)
    assert ids == reference_encode(text, has_prefix=False)
    assert tokenizer.decode(ids, skip_special=True) == text


@given(st.text(alphabet=st.characters(exclude_characters="▁", exclude_categories=["Cs"])))
def test_sentencepiece_text_survives_and_falls_back_to_bytes(text):
    ids = SENTENCEPIECE.encode(text, parse_special=False)
    assert 0 not in ids
    assert SENTENCEPIECE.decode(ids, skip_special=True) == text


def test_the_space_mark_is_a_space_and_byte_tokens_are_bytes():
    assert SENTENCEPIECE.token_bytes(3 + 0xE4) == b"\xe4"
    assert SENTENCEPIECE.token_bytes(NUM_FIXED + 5) == b" a"
    assert SENTENCEPIECE.token_bytes(1) == b"<s>"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (byte_level_metadata(model="bert"), "'bert'"),
        (byte_level_metadata(tokens=[]), "tokens is missing"),
        (byte_level_metadata(tokens=[1, 2]), "array of str"),
        (byte_level_metadata(token_type=[1]), "token_type has 1 entries for 260"),
        (byte_level_metadata(merges=["Ġ zzz"]), "'Ġ zzz' does not join"),
        (byte_level_metadata(merges=None), "merges must be an array"),
        (byte_level_metadata(eos_token_id=999), "eos_token_id is 999"),
        (sentencepiece_metadata(scores=[0.0]), "scores has 1 entries"),
    ],
)
def test_damaged_metadata_is_named(metadata, message):
    with pytest.raises(TokenizerError, match=message):
        tokenizer_from_metadata(metadata)


def write_gguf(path, metadata):
    writer = gguf.GGUFWriter(str(path), "llama")
    for key, value in metadata.items():
        add = {str: writer.add_string, int: writer.add_uint32, list: writer.add_array}
        add[type(value)](key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_gives_its_tokenizer(tmp_path):
    write_gguf(tmp_path / "model.gguf", sentencepiece_metadata() | {"tokenizer.chat_template": "T"})
    tokenizer = load_tokenizer(str(tmp_path / "model.gguf"))
    assert tokenizer.encode("abc", parse_special=False) == [1, *reference_encode("abc")]
    assert tokenizer.chat_template == "T"


def test_a_refusal_names_the_file(tmp_path):
    write_gguf(tmp_path / "odd.gguf", byte_level_metadata(pre="odd"))
    with pytest.raises(TokenizerError, match=r"odd\.gguf: unknown pre-tokenizer 'odd'"):
        load_tokenizer(str(tmp_path / "odd.gguf"))


def test_a_tokenizer_json_beside_the_file_is_used_only_if_the_tokens_are_the_same(tmp_path):
    write_byte_tokenizer(tmp_path)
    vocab = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    same = byte_level_metadata(
        pre="unknown-here", tokens=tokens, token_type=[3] * 3 + [1] * (len(tokens) - 3)
    )
    write_gguf(tmp_path / "same.gguf", same)
    write_gguf(tmp_path / "other.gguf", byte_level_metadata())
    assert load_tokenizer(str(tmp_path / "same.gguf")).vocab_size == len(tokens)
    assert load_tokenizer(str(tmp_path / "other.gguf")).vocab_size == 260
