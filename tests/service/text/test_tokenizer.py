"""The tokenizer class over a small real tokenizer.json."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, processors
from transformers import AutoTokenizer

from service.chat_template import load_chat_template
from service.tokenizer import TokenizerError, load_tokenizer
from tests.support.byte_tokenizer import FIRST_BYTE_ID, byte_tokenizer, write_byte_tokenizer

TOKENIZER = byte_tokenizer()
NAMES = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
texts_with_names = st.lists(
    st.one_of(st.text(max_size=8), st.sampled_from((*NAMES, "<|im_", "end|>"))), max_size=6
).map("".join)


@given(texts_with_names)
def test_every_text_survives_encoding_and_decoding(text):
    for parse_special in (True, False):
        ids = TOKENIZER.encode(text, parse_special=parse_special)
        assert TOKENIZER.decode(ids, skip_special=False) == text


@given(texts_with_names)
def test_user_text_never_becomes_a_control_token(text):
    assert not TOKENIZER.special_ids & set(TOKENIZER.encode(text, parse_special=False))


def test_a_rendered_template_gives_control_tokens():
    ids = TOKENIZER.encode("<|im_start|>user\nhi<|im_end|>", parse_special=True)
    assert (ids[0], ids[-1]) == (1, 2)


def test_literal_spans_stay_text_between_real_control_tokens():
    text = "<|im_start|>a<|im_end|>b<|im_end|>"
    inner = text.index("<|im_end|>")
    ids = TOKENIZER.encode(
        text, parse_special=True, literal_spans=[(inner, inner + len("<|im_end|>"))]
    )
    plain = TOKENIZER.encode("a<|im_end|>b", parse_special=False)
    assert ids == [1, *plain, 2]


@given(texts_with_names)
def test_without_a_mention_inside_them_literal_spans_change_nothing(text):
    expected = TOKENIZER.encode(text, parse_special=True)
    past_the_end = [(len(text), len(text) + 1)]
    assert TOKENIZER.encode(text, parse_special=True, literal_spans=past_the_end) == expected


@given(texts_with_names)
def test_text_all_literal_is_encoded_as_plain_text(text):
    everywhere = [(0, len(text))] if text else []
    ids = TOKENIZER.encode(text, parse_special=True, literal_spans=everywhere)
    assert ids == TOKENIZER.encode(text, parse_special=False)


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=20))
def test_decoding_equals_the_librarys_own(ids):
    library = tokenizers.Tokenizer.from_str(TOKENIZER._plain.to_str())
    for skip in (True, False):
        expected = library.decode(ids, skip_special_tokens=skip)
        assert TOKENIZER.decode(ids, skip_special=skip) == expected


def test_a_directory_encodes_and_renders_as_transformers_does(tmp_path):
    write_byte_tokenizer(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    messages = [
        {"role": "system", "content": "the hello é"},
        {"role": "user", "content": "你 and 😀 \x00 ing"},
    ]
    rendered = load_chat_template(TOKENIZER).render(messages)
    assert rendered == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    ids = TOKENIZER.encode(rendered, add_special_tokens=False, parse_special=True)
    assert ids == theirs(rendered, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(ids, skip_special=True) == theirs.decode(ids, skip_special_tokens=True)


def test_token_bytes_are_exact_for_bytes_that_are_not_characters():
    assert [TOKENIZER.token_bytes(FIRST_BYTE_ID + byte) for byte in range(256)] == [
        bytes([byte]) for byte in range(256)
    ]
    assert TOKENIZER.token_bytes(TOKENIZER.encode(" the", parse_special=False)[0]) == b" the"


def test_ids_outside_the_vocabulary_have_no_bytes():
    assert TOKENIZER.token_bytes(TOKENIZER.vocab_size) == b""
    assert TOKENIZER.token_bytes(-1) == b""
    assert TOKENIZER.decode([TOKENIZER.vocab_size + 7], skip_special=False) == ""


def test_the_vocabulary_has_an_entry_for_each_logit():
    vocabulary = TOKENIZER.vocabulary(TOKENIZER.vocab_size + 5)
    assert vocabulary.token_bytes == (*TOKENIZER.all_token_bytes, *[b""] * 5)
    assert (vocabulary.special_ids, vocabulary.end_ids) == ({0, 1, 2}, {2})


def test_the_directory_gives_special_tokens_and_template():
    assert (TOKENIZER.bos_id, TOKENIZER.eos_id) == (1, 2)
    assert TOKENIZER.special_ids == {0, 1, 2}
    assert TOKENIZER.special_tokens == {name: id_ for id_, name in enumerate(NAMES)}
    assert TOKENIZER.token_name(2) == "<|im_end|>"
    assert TOKENIZER.token_id("<|im_start|>") == 1
    assert TOKENIZER.token_id("<|nothing|>") is None
    assert "im_start" in TOKENIZER.chat_template


def test_a_template_file_stands_before_the_one_in_the_config(tmp_path):
    write_byte_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert load_tokenizer(str(tmp_path)).chat_template == "from the file"


def test_of_named_templates_the_default_one_is_taken(tmp_path):
    write_byte_tokenizer(tmp_path)
    templates = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert load_tokenizer(str(tmp_path)).chat_template == "yes"


def test_end_ids_are_those_of_the_generation_config_and_eos(tmp_path):
    write_byte_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    assert load_tokenizer(str(tmp_path)).end_ids == {0, 2}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    assert load_tokenizer(str(tmp_path)).end_ids == {0, 2}


def test_truncation_and_padding_of_the_file_are_off(tmp_path):
    write_byte_tokenizer(tmp_path)
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert len(load_tokenizer(str(tmp_path)).encode("zzzzzzzz", parse_special=False)) == 8


def test_bos_is_added_as_the_tokenizer_defines_unless_told_otherwise(tmp_path):
    write_byte_tokenizer(tmp_path)
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(
        single=["<|im_start|>", "$A", "<|im_end|>"],
        special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)],
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path))
    plain = tokenizer.encode("zq", parse_special=True, add_special_tokens=False)
    assert tokenizer.encode("zq", parse_special=False) == [1, *plain, 2]
    assert tokenizer.encode("zq", parse_special=True, literal_spans=[(0, 1)]) == [1, *plain, 2]
    assert tokenizer.encode("zq", parse_special=True, add_special_tokens=True) == [1, *plain, 2]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", None, "does not exist"),
        ("tokenizer.json", "{", "not a tokenizer"),
        ("tokenizer_config.json", "{", "not valid JSON"),
        ("generation_config.json", "[]", "must hold a JSON object"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, file, content, message):
    write_byte_tokenizer(tmp_path)
    (tmp_path / file).unlink(missing_ok=True)
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(TokenizerError, match=f"{file}.*{message}"):
        load_tokenizer(str(tmp_path))


def test_a_decoder_that_we_cannot_read_is_refused_by_name(tmp_path):
    backend = tokenizers.Tokenizer(models.WordPiece(vocab={"a": 0}))
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="WordPiece"):
        load_tokenizer(str(tmp_path))
