"""Chats that a template does not take as they are."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.text.template import ChatTemplate

ANY = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
DROPS = FIRST_ONLY.replace("{{ raise_exception('late') }}{% endif %}", "{% continue %}{% endif %}")
ALTERNATE = (
    "{% set first = messages[0].role == 'system' %}{% for m in (messages[1:] if first else messages) %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}{{ messages[0].content if first }}"
)
PARTS = FIRST_ONLY.replace("{{ m.content }}", "{% for p in m.content %}<{{ p.text }}>{% endfor %}")


def said(*pairs: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in pairs]


AGENT = said(("system", "a"), ("system", "b"), ("user", "c"), ("user", "d"), ("system", "e"), ("assistant", "f"))


def test_a_template_that_takes_them_gets_messages_as_they_are():
    assert ChatTemplate(ANY).render(AGENT) == "[system]a[system]b[user]c[user]d[system]e[assistant]f"


@pytest.mark.parametrize("template", [FIRST_ONLY, DROPS])
def test_system_messages_that_a_template_refuses_or_drops_are_moved(template):
    assert ChatTemplate(template).render(AGENT) == (
        "[system]a\n\nb[user]c[user]d[user]<system>\ne\n</system>[assistant]f"
    )


def test_what_users_say_at_once_is_one_message_where_roles_alternate():
    assert ChatTemplate(ALTERNATE).render(AGENT) == "[user]c\n\nd\n\n<system>\ne\n</system>[assistant]fa\n\nb"


def test_parts_stay_parts():
    text = [{"type": "text", "text": "e"}]
    assert ChatTemplate(PARTS).render(said(("system", "a"), ("user", "c"), ("system", text))) == (
        "[system]<a>[user]<c>[user]<<system>\n><e><\n</system>>"
    )
    assert ChatTemplate(PARTS).render(said(("system", "a"), ("system", text))) == "[system]<a><\n\n><e>"


def test_the_caller_s_messages_are_left_alone():
    chat = said(("system", "a"), ("system", "b"), ("user", "c"))
    ChatTemplate(FIRST_ONLY).render(chat)
    assert [message["content"] for message in chat] == ["a", "b", "c"]


def test_a_template_is_tried_only_for_a_chat_that_needs_it_and_once(monkeypatch):
    tried = []
    probe = ChatTemplate._probe
    monkeypatch.setattr(ChatTemplate, "_probe", lambda self, *given: [tried.append(1), probe(self, *given)][1])
    template = ChatTemplate(FIRST_ONLY)
    tried.clear()
    template.render(said(("system", "a"), ("user", "b"), ("assistant", "c"), ("user", "d")))
    assert not tried
    for _ in range(2):
        template.render(said(("system", "a"), ("system", "b"), ("user", "c")))
    assert len(tried) == 1
