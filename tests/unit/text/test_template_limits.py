"""A template cannot take more time, memory or output than it is given, nor reach anything but its values."""

from __future__ import annotations

import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from tessera.errors import ModelError, RequestError
from tessera.text import ChatTemplate
from tessera.text.sandbox.budget import TemplateLimits
from tests.unit.text.hostile_templates import ESCAPES, HOSTILE, MALFORMED, NESTED

LIMITS = TemplateLimits(seconds=0.15, output_chars=200_000, memory_bytes=16 << 20)
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def without_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading renders a template twice to see which content it takes; here that would only cost time."""
    monkeypatch.setattr(ChatTemplate, "_detect_content_form", lambda self, code: "either")


@pytest.mark.usefixtures("without_probe")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_template_is_stopped_in_time_and_memory(name: str) -> None:
    template = ChatTemplate(HOSTILE[name], limits=LIMITS)
    tracemalloc.start()
    start = time.monotonic()
    try:
        with pytest.raises(RequestError) as caught:
            template.render(MESSAGES)
        seconds = time.monotonic() - start
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith("The chat template ")
    assert caught.value.param == "messages"
    assert seconds < LIMITS.seconds + 1  # a busy machine, and tracemalloc
    assert peak < 2 * LIMITS.memory_bytes


@pytest.mark.usefixtures("without_probe")
@pytest.mark.parametrize("name", [name for name in HOSTILE if name.startswith("deep_tuple") and "item" not in name])
def test_deep_tuples_are_never_hashed(name: str) -> None:
    """Their hash recurses in C without a check: a deep enough one ends the process, so depth is what stops them."""
    with pytest.raises(RequestError, match="deeper than 100 levels"):
        ChatTemplate(HOSTILE[name]).render(MESSAGES)


def test_tuple_as_subscript_is_not_looked_up() -> None:
    with pytest.raises(RequestError, match="has no attribute 'tuple'"):
        ChatTemplate(HOSTILE["deep_tuple_item"]).render(MESSAGES)


@pytest.mark.usefixtures("without_probe")
@pytest.mark.parametrize("name", [name for name in HOSTILE if name.startswith("keep_")])
def test_what_a_template_keeps_is_paid_for(name: str) -> None:
    """Given time enough, memory is what stops it, and before much more than the limit is alive."""
    limits = TemplateLimits(seconds=60, memory_bytes=2 << 20)
    template = ChatTemplate(HOSTILE[name], limits=limits)
    with pytest.raises(RequestError):
        template.render(MESSAGES)  # what Python and Jinja set up once does not count
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="needs more than 2 MiB of memory"):
            template.render(MESSAGES)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * limits.memory_bytes


def test_output_may_be_as_long_as_the_limit_and_no_longer() -> None:
    limits = TemplateLimits(output_chars=30)
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    messages = [{"role": "user", "content": "0123456789"}] * 4
    assert ChatTemplate(source, limits=limits).render(messages[:3]) == "0123456789" * 3
    with pytest.raises(RequestError, match="writes more than 30 characters"):
        ChatTemplate(source, limits=limits).render(messages)


def test_attributes_that_are_not_listed_are_undefined() -> None:
    source = "{{ (5).numerator is defined }}{{ 'a'.encode is defined }}{{ messages.sort is defined }}{{ 'a'.upper() }}"
    assert ChatTemplate(source).render(MESSAGES) == "FalseFalseFalseA"


def test_default_limits_hold() -> None:
    template = ChatTemplate("{{ 'start' if messages[0].content == 'tessera content probe' }}" + NESTED)
    start = time.monotonic()
    with pytest.raises(RequestError, match=r"stopped: it (took longer than 1 s|writes more than 1000000 characters)"):
        template.render(MESSAGES)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("name", ESCAPES)
def test_internals_are_out_of_reach(name: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(RequestError, match=r"^The chat template cannot render these messages: ") as caught:
        ChatTemplate(ESCAPES[name]).render(messages)
    assert " at 0x" not in str(caught.value)
    assert messages == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_template_is_refused_at_load(name: str) -> None:
    with pytest.raises(ModelError, match=r"^The chat template .*[.']?") as caught:
        ChatTemplate(MALFORMED[name])
    assert "\n" not in str(caught.value)


def test_error_names_the_line() -> None:
    with pytest.raises(ModelError, match="in line 3: "):
        ChatTemplate("a\nb\n{% for %}")


def test_long_conversation_stays_within_the_limits() -> None:
    source = (
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content | trim + '\n' }}{% if m.tool_calls %}x{% endif %}"
        "{% endfor %}"
    )
    messages = [{"role": "user", "content": "word " * 90}] * 2000
    assert len(ChatTemplate(source).render(messages)) == 2000 * (len("<|user|>\n") + 449)
    single = [{"role": "user", "content": "x" * 900_000}]
    assert len(ChatTemplate(source).render(single)) == 900_009


def test_template_may_be_used_from_several_threads_at_once() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content ~ '!' }}{% endfor %}")
    conversations = [[{"role": "user", "content": str(number)}] * 50 for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        prompts = list(pool.map(template.render, conversations))
    assert prompts == [f"{number}!" * 50 for number in range(40)]
