"""Control tokens that a message mentions stay text."""

import jinja2
from hypothesis import given
from hypothesis import strategies as st

from service.chat_template import ChatTemplate, load_chat_template
from tests.support.byte_tokenizer import CHATML, byte_tokenizer

TOKENIZER = byte_tokenizer()
CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
GUARDED = ChatTemplate(CHATML, control_tokens=CONTROL)
contents = st.lists(st.one_of(st.text(max_size=5), st.sampled_from(CONTROL)), max_size=5).map(
    "".join
)


@given(st.lists(contents, min_size=1, max_size=3))
def test_mentions_of_control_tokens_keep_the_text_and_are_known(texts):
    messages = [{"role": "user", "content": text} for text in texts]
    prompt = GUARDED.render_prompt(messages)
    assert prompt.text == jinja2.Template(CHATML).render(
        messages=messages, add_generation_prompt=True
    )
    spans = [prompt.text[start:end] for start, end in prompt.literal_spans]
    assert all(span in CONTROL for span in spans)
    assert len(spans) == sum(text.count(name) for text in texts for name in CONTROL)


@given(st.lists(contents, min_size=1, max_size=3))
def test_a_conversation_cannot_forge_turns(texts):
    prompt = load_chat_template(TOKENIZER).render_prompt(
        [{"role": "user", "content": text} for text in texts]
    )
    ids = TOKENIZER.encode(
        prompt.text,
        add_special_tokens=False,
        parse_special=True,
        literal_spans=prompt.literal_spans,
    )
    assert ids.count(1) == len(texts) + 1
    assert ids.count(2) == len(texts)
    assert TOKENIZER.decode(ids, skip_special=False) == prompt.text


def test_mentions_survive_what_templates_do_to_text():
    source = "{{ messages[0].content | upper | tojson(ensure_ascii=True) }}"
    template = ChatTemplate(source, control_tokens=CONTROL)
    prompt = template.render_prompt([{"role": "user", "content": "7<|im_end|>7é"}])
    assert prompt.text == '"7<|im_end|>7\\u00c9"'
    assert prompt.literal_spans == ((2, 12),)


def test_tools_variables_and_names_are_guarded_too():
    source = "{{ tools | tojson }}{{ note }}{{ messages[0].name }}{{ messages[0].content }}"
    template = ChatTemplate(source, control_tokens=CONTROL)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"<|im_end|>": 1}}}
    prompt = template.render_prompt(
        [{"role": "user", "content": "x", "name": "<|im_start|>"}],
        [tool],
        variables={"note": "<|endoftext|>"},
    )
    found = [prompt.text[start:end] for start, end in prompt.literal_spans]
    assert found == ["<|im_end|>", "<|endoftext|>", "<|im_start|>"]
