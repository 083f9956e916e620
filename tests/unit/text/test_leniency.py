"""What cannot be enforced of a schema that is not strict is left out, and as little as can be."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tessera.errors import RequestError
from tessera.sampling_params import StructuredOutputsParams
from tessera.text.grammar import byte_tokenizer, compile_grammar
from tessera.text.leniency import MAX_TRIES, compile_leniently, remainder_of
from tests.unit.text.test_json_schema import drawn

BYTES = byte_tokenizer()
LOOKS = {"type": "string", "pattern": "^(?!x).*$", "maxLength": 3}
LEFT = {"type": "string", "maxLength": 3}


def refuses(schema: Any) -> bool:
    """As a compiler that takes no patterns that look around, no foreign references and no unknown types."""
    text = json.dumps(schema)
    return any(wrong in text for wrong in ("(?!", '"https:', '"any"', "uncommon"))


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


TO_A = object_of(a={"$ref": "#/$defs/A"})


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        (object_of(a={"type": "integer"}), object_of(a={"type": "integer"})),
        (object_of(a=LOOKS, b={"type": "integer"}), object_of(a=LEFT, b={"type": "integer"})),
        (object_of(a={"$ref": "https://example.com/x.json"}), object_of(a={})),
        (object_of(a={"type": "any"}), object_of(a={})),
        ({"type": "array", "items": LOOKS}, {"type": "array", "items": LEFT}),
        ({"anyOf": [LOOKS, {"type": "null"}]}, {"anyOf": [LEFT, {"type": "null"}]}),
        ({"type": "object", "additionalProperties": LOOKS}, {"type": "object", "additionalProperties": LEFT}),
        ({"type": "object", "uncommon": 1, "minProperties": 1}, {"type": "object", "minProperties": 1}),
        # Without the patterns, no other names would be left.
        (
            {"type": "object", "patternProperties": {"(?!x)": {}}, "additionalProperties": False},
            {"type": "object"},
        ),
        # What is forbidden is not looked into: less forbidden would be more demanded.
        ({"type": "string", "not": {"pattern": "(?!x)"}}, {"type": "string"}),
        ({**TO_A, "$defs": {"A": {"$ref": "#/$defs/B"}, "B": LOOKS, "C": {"type": "any"}}},
         {**TO_A, "$defs": {"A": {"$ref": "#/$defs/B"}, "B": LEFT}}),
        ("no schema", {}),
        (True, True),
    ],
    ids=range(13),
)  # fmt: skip
def test_as_little_as_can_be_is_left_out(schema: Any, left: Any) -> None:
    assert remainder_of(schema, refuses) == left


def test_schemas_are_tried_a_bounded_number_of_times() -> None:
    tries = 0

    def all_refused(_: Any) -> bool:
        nonlocal tries
        tries += 1
        return True

    many = object_of(**{f"p{number}": {"anyOf": [LOOKS] * 10} for number in range(100)})
    assert remainder_of(many, all_refused) == {"type": ["object"]}
    assert tries == MAX_TRIES


UNENFORCEABLE = {
    "look-ahead": {"type": "string", "pattern": "^(?!x).*$"},
    "another document": {"$ref": "https://example.com/x.json"},
    "a reference to nothing": {"$ref": "#/$defs/Missing"},
    "unknown type": {"type": "any"},
    "range of floats": {"type": "number", "minimum": 1e-7, "maximum": 1e22},
    "wrong pattern": {"type": "string", "pattern": "("},
    "unique": {"type": "array", "uniqueItems": True},
}


@pytest.mark.parametrize("name", UNENFORCEABLE)
def test_what_is_left_is_compiled_and_allows_only_what_else_is_demanded(name: str) -> None:
    schema = object_of(k=UNENFORCEABLE[name], n={"enum": [1, 2]})
    lenient = {"type": "json_schema", "json_schema": schema, "lenient": True}
    strict = {"type": "json_schema", "json_schema": object_of(a={"const": 1})}
    form = {"type": "or", "elements": [{"type": "tag", "begin": "x", "content": lenient, "end": ""}, strict]}
    found = compile_leniently(StructuredOutputsParams(structural_tag={"format": form}), BYTES).params
    assert compile_leniently(found, BYTES).params is found
    matcher = compile_grammar(found, BYTES)
    assert matcher.consume_tokens(list(b"x"))
    left = object_of(k={}, n={"enum": [1, 2]})
    draw = random.Random(1)
    for _ in range(5):
        Draft202012Validator(left).validate(json.loads(drawn(matcher.deep_copy(), draw, ['"'])))


def test_what_is_strict_is_refused_still() -> None:
    form = {"type": "json_schema", "json_schema": object_of(k=LOOKS)}
    for given in (form, {"type": "or", "elements": [form, {**form, "lenient": True}]}):
        with pytest.raises(RequestError, match="cannot be used"):
            compile_leniently(StructuredOutputsParams(structural_tag={"format": given}), BYTES)


def test_schemas_that_are_too_much_together_are_left_out_together() -> None:
    large = {"type": "json_schema", "json_schema": object_of(k={"type": "string", "maxLength": 900}), "lenient": True}
    tags = [{"type": "tag", "begin": f"{number}:", "content": large, "end": ""} for number in range(400)]
    asked = StructuredOutputsParams(structural_tag={"format": {"type": "or", "elements": tags}})
    matcher = compile_grammar(compile_leniently(asked, BYTES).params, BYTES)
    assert matcher.consume_tokens(list(b'7:{"k": "a"}'))
    assert matcher.is_accepting()
