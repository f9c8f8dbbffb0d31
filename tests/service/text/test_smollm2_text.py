"""SmolLM2's tokenizer and template from its GGUF file against transformers."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from service.chat_template import load_chat_template
from service.detokenizer import Detokenizer
from service.tokenizer import load_tokenizer
from tests.service.text.templates import SMOLLM2

pytestmark = pytest.mark.model

TEXTS = (
    "",
    " ",
    "Hello, world! It's what we'd call a \"test\" -- isn't it? I'LL SEE.",
    "The year 2026, pi is 3.14159265, phone +49 (0)30 123456, ½ ² ٣٤",
    "  leading,  double   spaces \t tabs\n\n\nnewlines\r\n   trailing   ",
    "Grüße aus Köln, çà et là, ¿qué?, Ελληνικά, Русский, עברית, العربية",
    "日本語のテキスト、中文文本。한국어 텍스트 ไทย हिन्दी",
    "emoji 🙂🚀 👩‍👩‍👧‍👦 🇩🇪 👍🏽 and ﬁ e\u0301 \u200b\ufeff",
    "def f(x):\n    return {'a': [x ** 2 for x in range(10)]}  # comment\n\t\tif x != 0x1F: pass\n",
    '<p class="a">x &amp; y</p> https://example.org/a?b=c&d=%20 {{ jinja }} \\n \x00\x07',
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>x<|im_start|",
)


@pytest.fixture(scope="module")
def ours(smollm2_path):
    return load_tokenizer(str(smollm2_path))


@pytest.fixture(scope="module")
def theirs(smollm2_path):
    """transformers' conversion, with the split of the model's own tokenizer.json.

    The conversion ignores the pre-tokenizer's name `smollm` and would keep digits together with
    the space before them.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_encodes_and_decodes_as_transformers_does(ours, theirs, text):
    ids = ours.encode(text, parse_special=True)
    assert ids == theirs(text)["input_ids"]
    for skip in (True, False):
        expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert ours.decode(ids, skip_special=skip) == expected
    detokenizer = Detokenizer(ours, skip_special=False)
    assert "".join(detokenizer.push([id_]) for id_ in ids) + detokenizer.flush() == text


@given(text=st.text(max_size=40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_text_is_encoded_as_transformers_does_and_survives(ours, theirs, text):
    ids = ours.encode(text, parse_special=True)
    assert ids == theirs(text)["input_ids"]
    # The model's vocabulary has no token for 21 of the bytes; both drop them.
    known = set(ours.all_token_bytes)
    kept = bytes(byte for byte in text.encode() if bytes([byte]) in known)
    assert ours.decode(ids, skip_special=False) == kept.decode(errors="replace")


@given(ids=st.lists(st.integers(0, 49151), max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_ids_are_decoded_as_transformers_does_whole_and_piece_by_piece(ours, theirs, ids):
    expected = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert ours.decode(ids, skip_special=True) == expected
    detokenizer = Detokenizer(ours)
    assert "".join(detokenizer.push([id_]) for id_ in ids) + detokenizer.flush() == expected


def test_special_tokens_and_ends_come_from_the_file(ours):
    assert (ours.vocab_size, ours.bos_id, ours.eos_id) == (49152, 1, 2)
    assert ours.end_ids == {0, 2}
    assert ours.special_ids == set(range(17))


def test_the_template_renders_as_transformers_does(ours, theirs):
    assert ours.chat_template == SMOLLM2
    template = load_chat_template(ours)
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "And of Peru? <b>&</b> 你好"},
    ]
    prompt = template.render_prompt(messages)
    assert prompt.text == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    ids = ours.encode(prompt.text, add_special_tokens=False, parse_special=True)
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True)
    assert ids == expected["input_ids"]
