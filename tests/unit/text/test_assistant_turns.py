"""What the assistant has said before, in the form that a template takes."""
# ruff: noqa: E501  (a template is one line)

from __future__ import annotations

import json
from typing import Any

import pytest

from tessera.text.template import ChatTemplate

USER = {"role": "user", "content": "q"}
ARGUMENTS = '{"city":  "Zürich"}'
CALLS = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}]
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "ok"}

JOINS = "{% for m in messages %}[{{ m['role'] + ']' + m['content'] }}{{ m.tool_calls[0].function.name if m.tool_calls }}{% endfor %}"
NULL_TEXT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content if m.content is string else m.content | tojson }}{% endfor %}"
)
SHOWS_BESIDE_NULL = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is none %}"
    "{{ m.tool_calls[0].function.name + ' ' + m.tool_calls[0].function.arguments }}{% else %}{{ m.content + '' }}{% endif %}"
    "{% endfor %}"
)
TELLS_ABSENCE = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is defined %}<{{ m.content }}>{% endif %}"
    "{{ m.tool_calls[0].function.name if m.tool_calls }}{% endfor %}"
)
THINKS = "{% for m in messages %}{% if '</think>' in m.content or not m.tool_calls %}{{ m.content }}{% else %}{{ m.tool_calls[0].function.name }}{% endif %}{% endfor %}"
WITH_TOOLS = "{{ tools[0].function.name }}" + JOINS
PARTS = "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}<{{ p.text }}>{% endfor %}{{ m.tool_calls[0].function.name if m.tool_calls }}{% endfor %}"


def said(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", **fields}


def render(source: str, *messages: dict[str, Any], **options: Any) -> str:
    return ChatTemplate(source).render(list(messages), **options)


@pytest.mark.parametrize("fields", [{"content": None}, {}, {"content": ""}])
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (JOINS, "[user]q[assistant]f[tool]ok"),
        (THINKS, "qfok"),
        (SHOWS_BESIDE_NULL, f"[user]q[assistant]f {ARGUMENTS}[tool]ok"),
        (PARTS, "[user]<q>[assistant]f[tool]<ok>"),
    ],
)
def test_calls_without_content(source: str, expected: str, fields: dict[str, Any]) -> None:
    if source == PARTS and fields.get("content") == "":
        expected = expected.replace("[assistant]", "[assistant]<>")  # an empty text is one
    assert render(source, USER, said(**fields, tool_calls=CALLS), RESULT) == expected


def test_a_template_only_for_tools_is_tried_with_tools() -> None:
    tool = {"type": "function", "function": {"name": "t", "description": "d", "parameters": {}}}
    messages = (USER, said(tool_calls=CALLS), RESULT)
    assert render(WITH_TOOLS, *messages, tools=[tool]) == "t[user]q[assistant]f[tool]ok"


def test_reasoning_alone_and_nothing_at_all() -> None:
    assert render(JOINS, USER, said(content=None, reasoning="hm"), USER) == "[user]q[assistant][user]q"
    assert render(JOINS, USER, said(content=None), USER) == "[user]q[assistant][user]q"
    assert render(NULL_TEXT, USER, said(content=None), USER) == "[user]q[assistant][user]q"


def test_a_template_that_takes_null_is_not_told_of_an_empty_text() -> None:
    assert (
        render(TELLS_ABSENCE, USER, said(content=None, tool_calls=CALLS), RESULT) == "[user]<q>[assistant]f[tool]<ok>"
    )
    assert render(TELLS_ABSENCE, USER, said(content="", tool_calls=CALLS)) == "[user]<q>[assistant]<>f"


def test_content_beside_calls_is_left_alone() -> None:
    assert render(JOINS, USER, said(content="So:", tool_calls=CALLS), RESULT) == "[user]q[assistant]So:f[tool]ok"


# ---- arguments -------------------------------------------------------------------------------------------------------

JOINED = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}"
PRINTED = JOINED.replace("c.function.name + c", "c")
DUMPED = JOINED.replace("c.function.name + c.function.arguments", "c.function.arguments | tojson")
EITHER = PRINTED.replace(
    "{{ c.function.arguments }}",
    "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}",
)
ITEMS = PRINTED.replace(
    "{{ c.function.arguments }}", "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}"
)


def called(source: str, arguments: Any) -> str:
    function = {"name": "f"} if arguments is None else {"name": "f", "arguments": arguments}
    return render(source, USER, said(tool_calls=[{"id": "a", "type": "function", "function": function}]))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (JOINED, f"f{ARGUMENTS}"),
        (PRINTED, ARGUMENTS),
        (DUMPED, json.dumps({"city": "Zürich"}, ensure_ascii=False)),
        (EITHER, json.dumps({"city": "Zürich"}, ensure_ascii=False)),
        (ITEMS, "city=Zürich;"),
    ],
)
def test_arguments_are_a_text_where_a_template_joins_or_prints_them(source: str, expected: str) -> None:
    assert called(source, ARGUMENTS) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"city": "Zürich"}, 'f{"city": "Zürich"}'), (None, "f{}"), ("", "f{}"), ({}, "f{}"), ('{"city":', 'f{"city":')],
)
def test_arguments_of_any_form_as_a_text(arguments: Any, expected: str) -> None:
    assert called(JOINED, arguments) == expected


def test_a_template_is_tried_only_for_a_chat_that_needs_it_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    probe = ChatTemplate._probe
    monkeypatch.setattr(ChatTemplate, "_probe", lambda self, *given: [tried.append(1), probe(self, *given)][1])
    template = ChatTemplate(JOINS)
    tried.clear()
    template.render([USER, said(content="a"), USER])
    assert not tried
    template.render([USER, said(content=None, tool_calls=CALLS), RESULT])
    counted = len(tried)
    assert 0 < counted <= 20
    template.render([USER, said(content=None, tool_calls=CALLS), RESULT])
    assert len(tried) == counted


def test_messages_of_the_caller_are_left_alone() -> None:
    message = said(content=None, tool_calls=[{"id": "a", "function": {"name": "f", "arguments": "{}"}}])
    before = json.dumps(message)
    for source in (JOINS, JOINED):
        render(source, USER, message)
    assert json.dumps(message) == before


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_has_every_name_that_templates_read(name: str) -> None:
    for own in ("reasoning", "reasoning_content", "thinking"):
        assert render("{{ messages[0]." + name + " }}", said(content="a", **{own: "hm"})) == "hm"
