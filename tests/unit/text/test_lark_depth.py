"""Grammars that are nested deeply: those that llguidance's stack may be too small for are refused, and what is compiled
fits the smallest one."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tessera.errors import RequestError
from tessera.sampling_params import StructuredOutputsParams
from tessera.text.grammar import byte_tokenizer, compile_grammar
from tessera.text.lark_depth import MAX_DEPTH, depth, schema_depth

BYTES = byte_tokenizer()
REASON = f"it is nested more than {MAX_DEPTH} levels deep, by what its parts refer to."
WIDTH = 20
"""Groups around a name in a chain of groups."""


def chain(count: int, line: str, last: str = '"x"', start: str = "start: ") -> str:
    """Rules of which each refers to the next. line: of one, with its number and the next's."""
    lines = [line.format(own=f"a{place}", next=f"a{place + 1}") for place in range(count)]
    return "\n".join((f"{start}a0", *lines, f"a{count}{':' if start == 'start: ' else ' ::='} {last}"))


def groups(count: int, opening: str = "(", closing: str = ")") -> str:
    return chain(count // (WIDTH + 1), "{own}:" + opening * WIDTH + "{next}" + closing * WIDTH)


def terminals(count: int) -> str:
    return chain(count, "{own}:{next}").upper().replace("START", "start").replace('"X"', '"x"')


def gbnf(count: int) -> str:
    return chain(count, "{own} ::= {next}", start="root ::= ")


def of_json(count: int, below: str) -> str:
    """A grammar of a schema in which each definition refers to the next. below: how, as JSON."""
    definitions = [f'"{place}":{below.replace("_", f"#/$defs/{place + 1}")}' for place in range(count)]
    return f'start: %json {{"$ref":"#/$defs/0","$defs":{{{",".join(definitions)},"{count}":true}}}}'


def schema(count: int, below: Any) -> dict[str, Any]:
    """The same as a schema of its own."""
    return json.loads(of_json(count, json.dumps(below)).removeprefix("start: %json "))


REFERENCE = {"$ref": "_"}
SCHEMAS = {
    "items": {"type": "array", "items": REFERENCE},
    "prefixItems": {"prefixItems": [REFERENCE], "minItems": 1},
    "properties": {"properties": {"a": REFERENCE}},
    "required": {"properties": {"a": REFERENCE}, "required": ["a"]},
    "patternProperties": {"patternProperties": {"^a": REFERENCE}},
    "additionalProperties": {"additionalProperties": REFERENCE},
    "anyOf": {"anyOf": [{"type": "null"}, {"items": REFERENCE}]},
}
GRAMMARS = {
    "rules": chain(700, '{own}: "a" {next}'),
    "rules of optional parts": chain(700, '{own}: "a"? {next}'),
    "alternatives": chain(700, '{own}: {next} | "b"'),
    "rules in another order": "\n".join(reversed(chain(700, "{own}: {next}").splitlines())),
    "groups": groups(700),
    "groups in brackets": groups(700, "[", "]"),
    "terminals": terminals(700),
    "GBNF": gbnf(600),
    "JSON": of_json(140, '{"items":{"$ref":"_"}}'),
    "JSON after JSON": of_json(140, '{"allOf":[{"$ref":"_"}]}').replace("start:", "start: %json {} |"),
}


def refusal(**fields: Any) -> str:
    with pytest.raises(RequestError) as refused:
        compile_grammar(StructuredOutputsParams(**fields), BYTES)
    return refused.value.message


@pytest.mark.parametrize("kind", GRAMMARS)
def test_a_grammar_that_is_nested_deeply_by_what_it_refers_to_is_refused(kind: str) -> None:
    assert refusal(grammar=GRAMMARS[kind]) == f"structured_outputs.grammar cannot be used: {REASON}"


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_schema_that_is_nested_deeply_by_what_it_refers_to_is_refused(kind: str) -> None:
    text = json.dumps(schema(700, SCHEMAS[kind]))
    assert (
        refusal(json=text, disable_additional_properties=False) == f"structured_outputs.json cannot be used: {REASON}"
    )


def test_a_grammar_within_a_structural_tag_is_refused_where_it_stands() -> None:
    for fields in ({"grammar": GRAMMARS["rules"]}, {"grammar": GRAMMARS["terminals"], "quoted": True}):
        tag = {"type": "structural_tag", "format": {"type": "grammar", **fields}}
        assert ".structural_tag.format.grammar cannot be used: " in refusal(structural_tag=json.dumps(tag))


@pytest.mark.parametrize("regex", ["(a" * 2_000 + ")?" * 2_000, "(" * 5_000 + ")" * 5_000, "(?:a|b" * 900 + ")" * 900])
def test_a_regex_that_is_nested_deeply_is_refused(regex: str) -> None:
    assert refusal(regex=regex).startswith("structured_outputs.regex cannot be used: ")


@pytest.mark.parametrize("required", [[], ["p0"], ["p150"], ["p70", "p299"]])
def test_a_long_list_of_properties_is_not_deep(required: list[str]) -> None:
    for count in (300, 3_000):
        listed = {f"p{place}": {"type": "null"} for place in range(count)}
        asked = {"type": "object", "properties": listed, "required": required}
        matcher = compile_grammar(StructuredOutputsParams(json=json.dumps(asked)), BYTES)
        given = json.dumps(dict.fromkeys(["p0", *required, "p299"]))
        assert count > 300 or (matcher.consume_tokens(list(given.encode())) and matcher.is_accepting())


def test_what_is_deep_in_one_place_and_long_in_another_is_measured_as_the_compiler_goes() -> None:
    assert depth('start: "a"') == 1
    assert depth('start: a b\na: b\nb: "start: ((((" /((/ // (((\n') == 3
    assert depth('start: b a\na: b\nb: "x"') == 2  # b is there already when a refers to it
    assert depth('start: ((a))\n!a[capture="[:", stop=/]:/]: A\nA.1: "x"') == 5
    assert depth("start: a\na: a | b\nb: a") == 3
    assert schema_depth({"items": {"$ref": "#/$defs/a~1b"}, "$defs": {"a/b": {"items": [{}]}}}) == 4
    assert schema_depth({"$ref": "#"}) == 1


DEEPEST = """
import bisect, json, threading
from tests.unit.text.test_lark_depth import BYTES, of_json, chain, groups, terminals, SCHEMAS
from tessera.text import grammar, lark_depth

def most(make):
    return make(bisect.bisect(range(1, 520), 0, key=lambda count: lark_depth.is_too_deep(make(count))))

def compile_all():
    limits = [lambda n: chain(n, '{own}: "a" {next}'), lambda n: chain(n, "{own}: ({next} | {next})?"), terminals]
    limits += [lambda n, below=json.dumps(below): of_json(n, below) for below in SCHEMAS.values()]
    for lark in (*map(most, limits), most(lambda n: groups(21 * n)), most(lambda n: groups(21 * n, "[", "]"))):
        definition = {"name": "start", "lark_grammar": lark}
        matcher = grammar._matcher(BYTES, json.dumps({"grammars": [definition]}))
        print(matcher.get_error() or "compiled")

threading.stack_size(2 << 20)
thread = threading.Thread(target=compile_all)
thread.start()
thread.join()
"""


def test_what_is_not_too_deep_fits_the_smallest_stack() -> None:
    """In a process of its own, which would end."""
    done = subprocess.run([sys.executable, "-c", DEEPEST], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["compiled"] * (5 + len(SCHEMAS))
