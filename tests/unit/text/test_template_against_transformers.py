"""The one test of tessera.text that loads transformers: its apply_chat_template is what models were trained with."""
# ruff: noqa: E501  (a template is one line)

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from jinja2 import TemplateError
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from tessera.errors import RequestError
from tessera.text.template import ChatTemplate
from tests.unit.text.template_shapes import (
    ANSWER,
    CONVERSATIONS,
    SHAPES,
    SPECIAL_TOKENS,
    SYSTEM,
    TOOL,
    USER,
)

FAILED = "(the template refuses this)"


@pytest.fixture(scope="module")
def oracle() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(models.BPE()), **SPECIAL_TOKENS)


def theirs(oracle: PreTrainedTokenizerFast, source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    try:
        return oracle.apply_chat_template(messages, chat_template=source, tokenize=False, **options)
    except (TemplateError, TypeError, ValueError):
        return FAILED


def ours(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    try:
        return ChatTemplate(source, SPECIAL_TOKENS).render(messages, **options)
    except RequestError:
        return FAILED


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_prompt_is_the_same(oracle: PreTrainedTokenizerFast, shape: str, conversation: str) -> None:
    source, messages = SHAPES[shape], CONVERSATIONS[conversation]
    for prompted in (False, True):
        expected = theirs(oracle, source, messages, add_generation_prompt=prompted)
        assert ours(source, messages, add_generation_prompt=prompted) == expected


def test_every_shape_renders_something(oracle: PreTrainedTokenizerFast) -> None:
    for source in SHAPES.values():
        assert FAILED not in [theirs(oracle, source, CONVERSATIONS[name]) for name in ("one", "turns")]


@pytest.mark.parametrize("shape", SHAPES)
def test_tools_documents_and_kwargs(oracle: PreTrainedTokenizerFast, shape: str) -> None:
    documents = [{"title": "Ä <t>", "text": "x"}, {"title": "b", "text": "y"}]
    kwargs = {"enable_thinking": False, "date_string": "1 Jan 2000"}
    options: dict[str, Any] = {"tools": [TOOL, TOOL], "documents": documents, "add_generation_prompt": True}
    for messages in ([USER], CONVERSATIONS["call"]):
        expected = theirs(oracle, SHAPES[shape], messages, **options, **kwargs)
        assert ours(SHAPES[shape], messages, **options, template_kwargs=kwargs) == expected


@pytest.mark.parametrize("tail", ["", "   ", "\n", "two  words "])
@pytest.mark.parametrize("shape", SHAPES)
def test_continued_final_message(oracle: PreTrainedTokenizerFast, shape: str, tail: str) -> None:
    messages = [USER, {"role": "assistant", "content": "The answer is" + tail}]
    expected = theirs(oracle, SHAPES[shape], messages, continue_final_message=True)
    actual = ours(SHAPES[shape], messages, continue_final_message=True, add_generation_prompt=False)
    assert actual == expected != FAILED


def test_parts_where_the_template_takes_them(oracle: PreTrainedTokenizerFast) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [SYSTEM, {"role": "user", "content": parts}, ANSWER]
    expected = theirs(oracle, SHAPES["headers"], messages, add_generation_prompt=True)
    assert ours(SHAPES["headers"], messages) == expected
    assert "onetwo" in expected


# Jinja itself: each construct that the compiler, the filters or the methods take in hand, against the original.
EXPRESSIONS = [
    "{{ 1 + 2 * 3 - 4 / 2 // 1 % 5 }} {{ 2 ** 10 }} {{ -3 }} {{ +3 }} {{ 7 // 2 }} {{ 7 % 4 }}",
    "{{ 'a' * 3 + 'b' }} {{ [1] * 2 + [3] }} {{ (1,) + (2,) }} {{ 'x%sy%5.2f' % ('q', 3.14159) }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ [1, 'b'] ~ {'k': 2.5} }}",
    "{{ 1 < 2 < 3 }} {{ 3 > 2 >= 2 != 1 }} {{ 'a' in 'cat' }} {{ 4 not in [1, 2] }} {{ [1, [2]] == [1, [2]] }}",
    "{{ 'yes' if messages else 'no' }} {{ missing is defined }} {{ missing }} {{ missing | default('d') }}",
    "{{ 'abcdef'[1:4] }} {{ 'abcdef'[::-1] }} {{ [1, 2, 3][-1] }} {{ {'a': 1}['a'] }} {{ {'a': {'b': 2}}.a.b }}",
    "{{ [3, 1, 2] | sort }} {{ [3, 1, 2] | sort(reverse=true) }} {{ ['b', 'A'] | sort }} {{ [1, 1, 2] | unique | list }}",
    "{{ [1, 2, 3] | sum }} {{ [1, 2, 3] | max }} {{ [1, 2] | min }} {{ [1, 2, 3] | join('-') }} {{ 'abc' | join('.') }}",
    "{{ messages | map(attribute='role') | list }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{{ messages | rejectattr('role', 'in', ['user']) | list }} {{ [1, 2, 3, 4] | select('odd') | list }}",
    "{{ [1, 2, 3] | reject('gt', 1) | list }} {{ ['a', 'b'] | map('upper') | join }} {{ range(5) | list }}",
    "{% set s = messages | selectattr('role', 'equalto', 'nobody') %}{{ 'true even if empty' if s else 'false' }}",
    "{{ [1, 2, 3, 4, 5] | batch(2, 'x') | list }} {{ [1, 2, 3, 4, 5] | slice(2) | list }}",
    "{% for g in messages | groupby('role') %}{{ g.grouper }}={{ g.list | length }};{% endfor %}",
    "{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %} {{ {'a': 1} | items | list }}",
    "{{ '  x ' | trim }}|{{ 'xxaxx' | trim('x') }} {{ 'a b' | title }} {{ 'aB' | upper }} {{ 'aB' | lower }}",
    "{{ 'one\ntwo\n\nthree' | indent }} {{ 'one\ntwo' | indent(2, true) }} {{ 'a\n\nb' | indent('> ', blank=true) }}",
    "{{ 'hello world foo' | truncate(9) }} {{ 'x' | center(5) }}| {{ 'a a a' | replace('a', 'bb', 2) }}",
    "{{ '<a href=\"x\">' | escape }} {{ '<x>' | safe }} {{ ('<x>' | safe) + '<y>' }} {{ '<z>' | e | upper }}",
    "{{ {'a': [1, 'ü', none, true]} | tojson }} {{ {'b': 1, 'a': 2} | tojson(indent=2) }} {{ '<&>' | tojson }}",
    "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }} {{ 'ü' | tojson(ensure_ascii=true) }}",
    "{{ '3' | int + 1 }} {{ 'x' | int(7) }} {{ 'ff' | int(0, 16) }} {{ '2.5' | float }} {{ 2.567 | round(1) }}",
    "{{ [1, 2] | first }} {{ [1, 2] | last }} {{ [1, 2] | length }} {{ 'abc' | reverse }} {{ [1, 2] | reverse | list }}",
    "{{ 'a=%s b=%d' | format('x', 3) }} {{ '{} {:>4} {k!r}'.format('a', 1, k='v') }} {{ '{a}'.format_map({'a': 1}) }}",
    "{{ 'a,b,c'.split(',') }} {{ 'a b  c'.split() }} {{ 'a\nb'.splitlines() }} {{ 'a-b-c'.rsplit('-', 1) }}",
    "{{ 'x'.join(['a', 'b']) }} {{ 'abc'.startswith('a') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.find('c') }}",
    "{{ ' x '.strip() }}|{{ 'xax'.lstrip('x') }}|{{ 'ab'.ljust(4) }}|{{ '7'.zfill(3) }}|{{ 'a.b'.partition('.') }}",
    "{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('z', 'd') }} {{ {'a': 1}.keys() | list }} {{ {'a': 1}.items() | list }}",
    "{{ [1, 2, 1].count(1) }} {{ [1, 2].index(2) }} {{ dict(a=1, b=2) }} {{ dict([('x', 1)]) }}",
    "{% for i in range(3) %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% else %}none{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}{% for i in range(9) if i is even %}{{ i }}{{ loop.revindex }};{% endfor %}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in range(4) %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i // 2) }}{% endfor %}",
    "{% for n in [[1, [2]], [3]] recursive %}{% if n is iterable %}<{{ loop(n) }}>{% else %}{{ n }}{% endif %}{% endfor %}",
    "{% macro m(a, b='x') %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, 2, 3, k=4) }}",
    "{% macro m() %}[{{ caller('in') }}]{% endmacro %}{% call(x) m() %}{{ x }}side{% endcall %}",
    "{% set ns = namespace(n=0, t='') %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% set ns.t = ns.t ~ i %}{% endfor %}{{ ns.n }} {{ ns.t }}",
    "{% set x %}block {{ 1 }}{% endset %}{{ x }} {% set y | upper %}abc{% endset %}{{ y }}{% filter upper %}q{{ x }}{% endfilter %}",
    "{% set a, b = (1, 2) %}{{ a }}{{ b }}{% with c = 3 %}{{ c }}{% endwith %}{{ c is defined }}",
    "{% if messages[0].role == 'user' and not messages[0].name %}a{% elif true %}b{% else %}c{% endif %}",
    "{{ 1 is number }} {{ 'a' is string }} {{ {} is mapping }} {{ [] is sequence }} {{ 4 is divisibleby 2 }} {{ 'a' is lower }}",
    "{{ 3 is eq 3 }} {{ 1 is in [1] }} {{ none is none }} {{ 1.5 is float }} {{ true is boolean }} {{ 'f' is filter }}",
    "  {% if true %}  \n  kept\n  {% endif %}  \n{#- comment -#} tail\n",
    "{{ 'a' is eq('a') and 'b' or 'c' }} {{ messages.append }} {{ {'a': 1}.b }} {{ '%(k)s' % {'k': 1} }}",
]
# Wrong in both: the sandbox is not more lenient.
REFUSED = [
    "{{ messages[0].missing.deeper }}",
    "{{ 'a' + 1 }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'a': 1}) }}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{{ undefined_function() }}",
    "{{ raise_exception('no') }}",
]


@pytest.mark.parametrize("source", EXPRESSIONS)
def test_jinja_works_as_ever(oracle: PreTrainedTokenizerFast, source: str) -> None:
    messages = [USER, ANSWER, USER]
    assert ours(source, messages, add_generation_prompt=False) == theirs(oracle, source, messages) != FAILED


@pytest.mark.parametrize("source", REFUSED)
def test_what_jinja_refuses_is_refused(oracle: PreTrainedTokenizerFast, source: str) -> None:
    assert ours(source, [USER], add_generation_prompt=False) == theirs(oracle, source, [USER]) == FAILED
