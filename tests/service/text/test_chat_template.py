"""Chat templates: equality with transformers, normalisation, capabilities, the sandbox."""

import json

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from service.chat_environment import MAX_RENDERED_CHARACTERS
from service.chat_template import (
    ChatTemplate,
    ChatTemplateError,
    ChatTemplateRefused,
    load_chat_template,
)
from tests.service.text.templates import GEMMA, LLAMA3, PARTS_ONLY, QWEN3, QWEN25, SMOLLM2
from tests.support.byte_tokenizer import CHATML, byte_tokenizer

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "It's <b>weather</b> & more: é",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hi <there> & 'you' é"}
ASSISTANT = {"role": "assistant", "content": "Hello."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "Zürich"}},
        }
    ],
}
RESULT = {"role": "tool", "content": "12 °C", "tool_call_id": "call00001"}
CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ASSISTANT, USER],
    "assistant last": [USER, ASSISTANT],
}
TEMPLATES = {
    "smollm2": SMOLLM2,
    "chatml": CHATML,
    "qwen2.5": QWEN25,
    "qwen3": QWEN3,
    "llama3": LLAMA3,
}


def theirs(source, messages, tools=None, **settings):
    rendered, _ = render_jinja_template(
        conversations=[messages],
        tools=tools,
        chat_template=source,
        bos_token="<s>",
        eos_token="</s>",
        **settings,
    )
    return rendered[0]


@pytest.mark.parametrize("generates", [True, False])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_renders_as_transformers_does(name, conversation, generates):
    messages = CONVERSATIONS[conversation]
    ours = ChatTemplate(TEMPLATES[name], "<s>", "</s>").render(
        messages, add_generation_prompt=generates
    )
    assert ours == theirs(TEMPLATES[name], messages, add_generation_prompt=generates)


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3"])
def test_renders_tools_as_transformers_does(name):
    messages = [SYSTEM, USER, CALL, RESULT, RESULT, USER]
    template = ChatTemplate(TEMPLATES[name])
    expected = theirs(TEMPLATES[name], messages, [WEATHER], add_generation_prompt=True)
    assert "<b>weather</b> & more: é" in expected
    if template.capabilities.object_arguments:
        as_text = json.loads(json.dumps(messages))
        function = as_text[2]["tool_calls"][0]["function"]
        function["arguments"] = json.dumps(function["arguments"])
        assert template.render(as_text, [WEATHER]) == expected
    assert template.render(messages, [WEATHER]) == expected


@pytest.mark.parametrize("ending", ["", " ", "\n"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_continues_the_final_message_as_transformers_does(name, ending):
    messages = [USER, {"role": "assistant", "content": "The answer is" + ending}]
    ours = ChatTemplate(TEMPLATES[name], "<s>", "</s>").render(
        messages, continue_final_message=True
    )
    assert ours == theirs(TEMPLATES[name], messages, continue_final_message=True)


def test_only_an_assistants_message_can_be_continued():
    with pytest.raises(ChatTemplateRefused, match="assistant"):
        ChatTemplate(CHATML).render([USER], continue_final_message=True)


def test_a_dropped_final_message_cannot_be_continued():
    with pytest.raises(ChatTemplateError, match="drops the final message"):
        ChatTemplate("nothing").render([USER, ASSISTANT], continue_final_message=True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (SMOLLM2, {"system_role", "string_content"}),
        (QWEN25, {"system_role", "tools", "tool_role", "string_content", "object_arguments"}),
        (QWEN3, {"system_role", "tools", "tool_role", "string_content"}),
        (LLAMA3, {"system_role", "string_content"}),
        (GEMMA, {"string_content"}),
        (PARTS_ONLY, {"system_role", "typed_content"}),
        ("{{ messages[0].content.nothing.at_all }}", {"string_content"}),
    ],
)
def test_capabilities_are_learnt_by_rendering(source, expected):
    capabilities = ChatTemplate(source).capabilities
    names = [name for name in capabilities.__slots__ if getattr(capabilities, name) is True]
    assert set(names) == expected


def test_the_reasoning_switch_is_found():
    template = ChatTemplate(QWEN3)
    assert template.capabilities.reasoning_switch == "enable_thinking"
    assert template.render([USER], variables={"enable_thinking": False}).endswith("</think>\n\n")
    assert ChatTemplate(QWEN25).capabilities.reasoning_switch is None


@pytest.mark.parametrize("absent", [{"content": None}, {}, {"content": []}, {"content": ""}])
def test_absent_content_is_empty_text(absent):
    rendered = ChatTemplate(CHATML).render([USER, {"role": "assistant", **absent}])
    assert "<|im_start|>assistant\n<|im_end|>" in rendered
    assert "None" not in rendered


def test_text_parts_are_joined_in_order():
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    rendered = ChatTemplate(CHATML).render([{"role": "user", "content": parts}])
    assert "user\none two<|im_end|>" in rendered


def test_text_becomes_a_part_where_the_template_wants_parts():
    template = ChatTemplate(PARTS_ONLY)
    assert template.render([USER], add_generation_prompt=False) == f"[user]{USER['content']};"
    continued = template.render([USER, ASSISTANT], continue_final_message=True)
    assert continued.endswith("[assistant]Hello.")


def test_a_developer_is_a_system_where_the_template_does_not_know_developers():
    messages = [{"role": "developer", "content": "Be brief."}, USER]
    assert ChatTemplate(QWEN25).render(messages) == ChatTemplate(QWEN25).render([SYSTEM, USER])
    knows = "{% for m in messages %}{% if m.role == 'developer' %}D:{% endif %}{{ m.content }};"
    assert "D:Be brief." in ChatTemplate(knows + "{% endfor %}").render(messages)


def test_leading_system_messages_become_one():
    messages = [SYSTEM, {"role": "developer", "content": "Be kind."}, USER]
    merged = [{"role": "system", "content": "Be brief.\n\nBe kind."}, USER]
    assert ChatTemplate(QWEN25).render(messages) == ChatTemplate(QWEN25).render(merged)


def test_without_a_system_role_its_text_goes_before_the_users():
    rendered = ChatTemplate(GEMMA, "<bos>").render([SYSTEM, {"role": "user", "content": "Hi"}])
    assert "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>" in rendered


def test_messages_of_the_caller_are_not_changed():
    messages = [SYSTEM, SYSTEM, USER, {**CALL, "reasoning": "hm"}, RESULT]
    before = json.dumps(messages)
    ChatTemplate(QWEN25).render(messages)
    assert json.dumps(messages) == before


def test_arguments_that_are_no_json_do_not_break_the_template():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{not json"}}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert "{not json" in ChatTemplate(QWEN25).render(messages)


def test_the_templates_own_refusal_comes_in_its_own_words():
    source = "{{ raise_exception('Roles must alternate') }}"
    with pytest.raises(ChatTemplateRefused, match=r"^Roles must alternate$"):
        ChatTemplate(source).render([USER])


def test_a_refusal_is_short_whatever_the_template_puts_into_it():
    with pytest.raises(ChatTemplateRefused) as caught:
        ChatTemplate("{{ raise_exception('x' * 100000) }}").render([USER])
    assert str(caught.value) == "x" * 1000


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{{ messages[0].content.x.y }}", "line 2: 'str object' has no attribute 'x'"),
        ("a\n\n{{ messages[0].content + 1 }}", "line 3: the conversation does not fit it"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "line 1: access to attribute 'append'"),
        ("{% for i in range(10000000) %}{% endfor %}", "line 1"),
        ("{{ 'a' * 100000000 }}", "not allowed"),
        ("{% for i in range(90000) %}{{ 'a' * 100 }}{% endfor %}", str(MAX_RENDERED_CHARACTERS)),
    ],
)
def test_a_failing_template_names_the_line_and_shows_no_internals(source, message):
    with pytest.raises(ChatTemplateError, match=message) as caught:
        ChatTemplate(source).render([USER])
    assert not isinstance(caught.value, ChatTemplateRefused)
    assert "File" not in str(caught.value)


def test_a_template_that_is_no_jinja_is_refused_when_it_is_made():
    with pytest.raises(ChatTemplateError, match="line 2"):
        ChatTemplate("a\n{% if %}")


def test_generation_tags_and_loop_controls_are_understood():
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    assert ChatTemplate(source).render([USER, ASSISTANT]) == "Hello."


def test_the_servers_own_variables_cannot_be_set():
    with pytest.raises(ChatTemplateRefused, match="'messages'"):
        ChatTemplate(CHATML).render([USER], variables={"messages": []})


def test_a_model_without_a_template_has_none_unless_one_is_given():
    tokenizer = byte_tokenizer()
    assert load_chat_template(tokenizer).source == CHATML
    assert load_chat_template(tokenizer, "other").source == "other"
    tokenizer.chat_template = None
    assert load_chat_template(tokenizer) is None
