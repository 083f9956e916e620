"""Rules that need themselves without end are refused before an answer begins them; what only looks like one is not."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.errors import RequestError
from tessera.sampling_params import StructuredOutputsParams
from tessera.text.grammar import byte_tokenizer, compile_grammar

BYTES = byte_tokenizer()


def refusal(**fields: Any) -> str:
    with pytest.raises(RequestError) as refused:
        compile_grammar(StructuredOutputsParams(**fields), BYTES)
    return refused.value.message


@pytest.mark.parametrize(
    ("grammar", "rule"),
    [
        ("start: start", "start"),
        ('start: "a" start', "start"),
        ('start: "a" rest\nrest: rest "b"', "rest"),
        ('start: "a" rest?\nrest: "b" rest', "rest"),
        ('start: ("ab")+ ["c" rest]\nrest: rest "d"', "rest"),
        ('start: "a" | b\nb: "b" c\nc: "c" (b | c)', "b"),
        ('start: "a" b*\nb: ("x" | "y") (c)+\nc: b{2,3}', "b"),
        ('start: "a" b ~ 0..3\n!b[capture]: "x" b // b: "x"\n', "b"),
        ('start: /[?|]/ x\n?x: "|" "?" x\n  | "(" x ")"\ny: "b"', "x"),
        ('start: "a" %lark { start: "b" in\nin: "c" in\n} "d"', "in"),
        ('start: %json {"type": "object", "properties": {"b": {}}} b\nb: <[1]> b', "b"),
        ('start: "a" b::0x0\nb::_: "x" b::incr(_) %if lt(_, 5)', "b"),
        ('root ::= "a" (rest)?\nrest ::= "b" rest', "rest"),
        ('root ::= "a" item-list\nitem-list ::= "[" item-list "]" | [0-9] item-list', "item_list"),
    ],
)
def test_a_rule_that_needs_itself_without_end_is_refused(grammar: str, rule: str) -> None:
    reason = f"the rule {rule} needs itself, without end."
    assert refusal(grammar=grammar) == f"structured_outputs.grammar cannot be used: {reason}"


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a" start | "b"',
        'start: "a" start?',
        'start: "a" start*',
        'start: "a" [start]',
        'start: "a" start{0,2}',
        'start: "a" start{,2}',
        'start: "a" start ~ 0..2',
        'start: "a" (start | )',
        'start: "a" ("" | start)',
        'start: "a" b\nb: "x" c | "y"\nc: "(" b ")"',
        'start: "a"\nb: "b" b',
        'start: b\nb: "x"\n  | b "y"  # | b',
        'start: b\nb[stop="."]: /b/',
        "start: b\nb[max_tokens=3]: /b+/",
        'start: "a" -> start',
        'start: b\n_b: "x"\nb: _b c\n?c: "c" | c',
        "start: B\nB: /b/ & ~/c/\n%ignore / /",
        "%llguidance {}\n%import common.INT start: INT",
        'start: b::0x0\nb::_: "x" b::set_bit(1) %if bit_clear(1) | "y" %if bit_set(1)',
        'root ::= "a" root | "b"',
        'root ::= "a" (root "c")?',
        'root ::= item*\nitem ::= "(" root ")"',
    ],
)
def test_a_rule_that_may_end_is_not(grammar: str) -> None:
    compile_grammar(StructuredOutputsParams(grammar=grammar), BYTES)


def test_a_grammar_within_a_structural_tag_is_refused_where_it_stands() -> None:
    """Also as a JSON string writes it."""
    for quoted in (False, True):
        inner = {"type": "grammar", "grammar": 'start: "a" b?\nb: "\\"" b', "quoted": quoted}
        tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": [inner]}}
        place = "structured_outputs.structural_tag.format.elements[0].grammar"
        said = f"{place} cannot be used: the rule b needs itself, without end."
        assert refusal(structural_tag=json.dumps(tag)) == said


RULES = "abcd"
PARTS = st.recursive(
    st.sampled_from([*RULES, '"x"', "/y/"]),
    lambda part: st.one_of(
        st.lists(part, min_size=1, max_size=3).map(" ".join),
        st.lists(part, min_size=1, max_size=3).map(lambda parts: f"({' | '.join(parts)})"),
        st.tuples(part, st.sampled_from(["?", "*", "+", "{0,2}", "{1,2}"])).map(lambda pair: f"({pair[0]}){pair[1]}"),
        part.map(lambda inner: f"[{inner}]"),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PARTS, min_size=len(RULES), max_size=len(RULES)), st.integers(0, 2**32))
def test_no_answer_to_a_random_grammar_comes_to_a_dead_end(bodies: list[str], seed: int) -> None:
    lines = [f"{name}: {body}" for name, body in zip(RULES, bodies, strict=True)]
    try:
        matcher = compile_grammar(StructuredOutputsParams(grammar="\n".join(("start: a", *lines))), BYTES)
    except RequestError:
        return
    rng = random.Random(seed)
    for _ in range(40):
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [byte for byte in range(256) if bits >> byte & 1]
        assert allowed or matcher.is_accepting(), matcher.get_error()
        if not allowed:
            return
        assert matcher.consume_token(rng.choice(allowed))
