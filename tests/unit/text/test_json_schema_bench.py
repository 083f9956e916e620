"""The figures of JSONSchemaBench are counted as they say."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from tessera.sampling_params import StructuredOutputsParams
from tessera.text.grammar import byte_tokenizer, compile_grammar
from tools.json_schema_bench import Entry, Reordered, Text, check, read, report

NAMED = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
ROWS = [
    {"name": "One---x", "schema": NAMED, "tests": [
        {"valid": True, "data": {"b": "", "a": 1}},
        {"valid": True, "data": {"a": 1.0}},
        {"valid": False, "data": {"a": "1"}},
        {"valid": False, "data": {"a": 1}},
    ]},
    {"name": "Two---y", "schema": {"type": "wrong 'name'"}, "tests": [{"valid": True, "data": 1}]},
]  # fmt: skip


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.xz"])
def test_each_text_is_judged(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows{suffix}"
    with lzma.open(path, "wt") if suffix.endswith(".xz") else path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in ROWS)
    entries = read(path)
    assert [entry.set for entry in entries] == ["One", "Two"]
    assert len(read(path, sample=1)) == 1
    one, two = (check(entry, {}) for entry in entries)
    assert one.counts == {"valid accepted": 1, "valid": 1, "invalid": 1, "invalid accepted": 1}
    assert [kind for kind, _ in one.wrong] == ["valid, not accepted", "invalid, accepted"]
    assert two.refused is not None
    lines = report([one, two]).splitlines()
    assert lines[1].split()[:10] == ["One", "1", "100.0%", "1", "of", "2", "50.00%", "of", "2", lines[1].split()[9]]
    assert lines[3].startswith("altogether            2     50.0%")


@pytest.mark.parametrize(("value", "taken"), [
    ({"a": [{"y": "1", "x": 2}], "b": {"x": 1, "y": "2"}}, True),
    ({"a": [], "b": {"x": 1, "y": "2"}}, True),
    ({"b": {"y": "2", "x": 1}, "a": []}, True),
    ({"b": {"y": 2, "x": 1}, "a": []}, False),
])  # fmt: skip
def test_a_text_is_tried_in_the_order_that_the_grammar_wants(value: object, taken: bool) -> None:
    inner = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}}
    schema = {"type": "object", "properties": {"b": inner, "a": {"type": "array", "items": inner}}}
    matcher = compile_grammar(StructuredOutputsParams(json=schema), byte_tokenizer())
    assert Reordered().taken(matcher, value) is taken


def test_a_long_list_is_tried_as_the_schema_has_it_and_what_nothing_lists_where_it_fits() -> None:
    names = [f"n{number}" for number in range(60)]
    listed = {name: {"type": "integer"} for name in names}
    schema = {"type": "object", "properties": listed, "required": names[::7], "additionalProperties": True}
    matcher = compile_grammar(StructuredOutputsParams(json=schema), byte_tokenizer())
    value = {"other": 0, **dict.fromkeys(reversed(names), 1)}
    assert Reordered(schema).taken(matcher, value)
    del value["n49"]
    assert not Reordered(schema).taken(matcher, value)


def test_a_text_that_exhausts_the_lexer_leaves_the_others_alone() -> None:
    roles = [{"pattern": role} for role in ("customer", "maker", "operator", "admin", "designer")]
    schema = {"properties": {"a": {"type": "integer"}, "b": {"type": "string", "oneOf": roles}}}
    found = check(Entry("One---roles", schema, (Text(True, {"b": "customer"}), Text(True, {"a": 1}))), {})
    assert [text for _, text in found.wrong] in ([], ['{"b": "customer"}'])
