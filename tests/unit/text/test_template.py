from __future__ import annotations

from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tessera.errors import RequestError
from tessera.text.template import ChatTemplate
from tests.unit.text.template_shapes import (
    ANSWER,
    CALL,
    CHATML,
    HEADERS,
    INST,
    SHAPES,
    SPECIAL_TOKENS,
    TOOL,
    TOOLS,
    USER,
)

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
PARTS_ONLY = "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}"
TEXT = {"type": "text", "text": "a"}


def render(source: str, *messages: dict[str, Any], **options: Any) -> str:
    return ChatTemplate(source, SPECIAL_TOKENS).render(list(messages), **options)


def test_prompt_of_a_chat() -> None:
    assert render(CHATML, {"role": "user", "content": "Hi "}) == (
        "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(INST, {"role": "user", "content": "Hi"}).startswith("<s>[INST] Hi[/INST]")


def test_error_raised_by_the_template_is_the_message() -> None:
    with pytest.raises(RequestError, match=r"^Roles must alternate: user, assistant, user, \.\.\.$"):
        render(INST, USER, ANSWER, ANSWER)


def test_model_without_a_template() -> None:
    with pytest.raises(RequestError, match=r"no chat template.*--chat-template"):
        ChatTemplate(None).render([USER])


def test_named_templates() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "tools"})
    assert template.render([USER]) == "plain"
    assert template.render([USER], tools=[TOOL]) == "tools"
    with pytest.raises(RequestError, match="only: rag, tool_use"):
        ChatTemplate({"tool_use": "a", "rag": "b"}).render([USER])


@pytest.mark.parametrize(
    ("source", "expected"), [(PLAIN, "string"), (CHATML, "string"), (HEADERS, "openai"), (PARTS_ONLY, "openai")]
)
def test_content_format_is_detected(source: str, expected: str) -> None:
    assert ChatTemplate(source, SPECIAL_TOKENS).content_format == expected


def test_content_format_can_be_told() -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    assert ChatTemplate(source, content_format="string").render([parts]) == "a"
    assert ChatTemplate(source, content_format="openai").render([parts]) == "[{'type': 'text', 'text': 'a'}]"


def test_content_takes_the_form_that_the_template_takes() -> None:
    parts = {"role": "user", "content": [TEXT, {"type": "text", "text": "b"}, "c"]}
    assert render(PLAIN, parts) == "[user]a\nb\nc"
    assert render(PARTS_ONLY, parts) == "<a><b><c>"
    assert render(PARTS_ONLY, {"role": "user", "content": "a"}) == "<a>"
    assert render(HEADERS, parts).endswith("abc<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n")


def test_messages_of_the_caller_are_left_alone() -> None:
    message = {"role": "user", "content": [dict(TEXT)], "name": None}
    for source in (PLAIN, PARTS_ONLY):
        render(source, message, add_generation_prompt=False, continue_final_message=True)
    assert message == {"role": "user", "content": [TEXT], "name": None}


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, r"\[0\]\.content\[0\].*'image_url'"),
        ({"role": "user", "content": [TEXT, {"type": 5}]}, r"\[0\]\.content\[1\].type"),
        ({"role": "user", "content": [{"type": "text"}]}, r"content\[0\]\.text must be a string"),
        ({"role": "user", "content": [5]}, r"content\[0\] must be an object"),
        ({"role": "user", "content": {"a": 1}}, "content must be a string or a list"),
        ({"content": "x"}, r"messages\[0\]\.role must be a string"),
        ("hi", r"messages\[0\] must be an object"),
        ({"role": "user", "content": "x", "at": object()}, "value of type 'object'"),
        ({"role": "user", "content": "x", 5: "y"}, "key that is not a string"),
        ({"role": "assistant", "tool_calls": {}}, r"messages\[0\]\.tool_calls must be a list"),
        ({"role": "assistant", "tool_calls": [{}]}, r"tool_calls\[0\]\.function must be an object"),
    ],
)
def test_bad_message_is_named(message: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint) as caught:
        ChatTemplate(PLAIN).render([message])
    assert caught.value.param == "messages"


def test_empty_and_deeply_nested_conversations() -> None:
    with pytest.raises(RequestError, match="at least one message"):
        ChatTemplate(PLAIN).render([])
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(RequestError, match="deeper than 64 levels"):
        ChatTemplate(PLAIN).render([{"role": "user", "content": "x", "extra": deep}])


def test_arguments_of_past_calls_become_objects() -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Zürich", "days": 2}'}
    as_text = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    calls = [{"function": {"name": "f", "arguments": ""}}, {"function": {"name": "g"}}]
    without = {"role": "assistant", "tool_calls": calls}
    assert render(TOOLS, USER, as_text) == render(TOOLS, USER, CALL)
    assert render("{{ messages[0].tool_calls | tojson }}", without) == (
        '[{"function": {"name": "f", "arguments": {}}}, {"function": {"name": "g", "arguments": {}}}]'
    )


def test_arguments_that_no_prompt_can_have_stay_a_text() -> None:
    for text in ('{"city": "\\ud800"}', '{"city": NaN}', '{"city":', "[1]", '{"a":' * 100 + "1" + "}" * 100):
        call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": text}}]}
        prompt = render("{{ messages[0].tool_calls[0].function.arguments.arguments }}", call)
        assert prompt.encode() == text.encode()


def test_fields_without_a_value_are_left_out() -> None:
    assert render("{{ messages[0].content is defined }}", {"role": "assistant", "content": None}) == "False"


def test_continued_message_ends_the_prompt() -> None:
    last = {"role": "assistant", "content": [{"type": "text", "text": "So "}, {"type": "text", "text": "far "}]}
    for source, expected in ((PLAIN, "So \nfar "), (PARTS_ONLY, "far "), (CHATML, "So \nfar")):
        prompt = render(source, last, add_generation_prompt=False, continue_final_message=True)
        assert prompt.endswith(expected)


@pytest.mark.parametrize(
    ("source", "message", "add_prompt", "complaint"),
    [
        (PLAIN, USER, True, "add_generation_prompt must be false"),
        ("nothing", USER, False, "cannot be continued"),
        (PLAIN, {"role": "assistant"}, False, "final message with content"),
        (PARTS_ONLY, {"role": "assistant", "content": []}, False, "final message with content"),
    ],
)
def test_continuing_where_it_is_not_possible(
    source: str, message: dict[str, Any], add_prompt: bool, complaint: str
) -> None:
    with pytest.raises(RequestError, match=complaint):
        render(source, message, add_generation_prompt=add_prompt, continue_final_message=True)


def test_template_kwargs_are_variables() -> None:
    options = {"template_kwargs": {"enable_thinking": False}}
    assert render(CHATML, USER, **options).endswith("<think>\n\n</think>\n\n")
    assert render("{{ bos_token }}", USER, template_kwargs={"bos_token": "other"}) == "other"


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "tokenize", "chat_template", "raise_exception", "_x", "a b"]
)
def test_reserved_kwargs_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match=f"cannot hold '{name}'") as caught:
        render(PLAIN, USER, template_kwargs={name: True})
    assert caught.value.param == "chat_template_kwargs"


def test_kwargs_have_a_limit() -> None:
    with pytest.raises(RequestError, match="more than 64 fields"):
        render(PLAIN, USER, template_kwargs={f"x{number}": 1 for number in range(65)})


def test_template_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    parse = ImmutableSandboxedEnvironment.parse
    monkeypatch.setattr(
        ImmutableSandboxedEnvironment, "parse", lambda self, source: (parsed.append(source), parse(self, source))[1]
    )
    template = ChatTemplate(SHAPES["tools"])
    for _ in range(3):
        template.render([USER], tools=[TOOL])
    assert parsed == [SHAPES["tools"]]
