"""The tool that holds published templates against transformers', on templates written for this test."""

from __future__ import annotations

import pytest

from tessera.text.template import ChatTemplate
from tools.template_table import CHATS, Oracle, explained

PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
)
JOINS = PLAIN.replace("{{ m.content }}", "{{ '' + m.content }}")
PRINTS = PLAIN.replace(" | tojson", "")
THIRD = PLAIN.replace("{{ m.content }}", "{{ m.content }}{{ m.reasoning }}")
REFUSES = "{{ raise_exception('no') }}"


@pytest.mark.parametrize(
    ("source", "chat", "how"),
    [
        (PLAIN, "a call", "equal"),
        (JOINS, "a call", "an empty content"),
        (PRINTS, "a call", "arguments as text"),
        (THIRD, "reasoning", "reasoning by its third name"),
        (PLAIN, "parts", "parts joined"),
        (REFUSES, "a question", "refused by both"),
    ],
)
def test_a_difference_has_a_reason(source: str, chat: str, how: str) -> None:
    said, difference = explained(Oracle(), source, chat)
    assert said.startswith(how)
    assert difference is None


def test_a_difference_without_a_reason_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatTemplate, "render", lambda self, messages, **options: "wrong")
    for chat in CHATS:
        said, difference = explained(Oracle(), PLAIN, chat)
        assert said == "not explained"
        assert difference is not None
        assert "wrong" in difference
