"""Schemas that no finite value is valid by, and names of properties that are all taken: refused, or never begun."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tessera.errors import RequestError
from tessera.sampling_params import StructuredOutputsParams
from tessera.text.grammar import byte_tokenizer, compile_grammar

BYTES = byte_tokenizer()
CIRCLE = {"$defs": {"n": {"$ref": "#/$defs/n"}}}
LIST = {"type": "object", "properties": {"next": {"$ref": "#/$defs/list"}}, "required": ["next"]}
INTEGER = {"type": "integer"}


def compiled(schema: Any) -> Any:
    return compile_grammar(StructuredOutputsParams(json=json.dumps(schema)), BYTES)


def answer(matcher: Any, rng: random.Random, most: int = 400) -> str | None:
    """A random text by the grammar; None if it was cut."""
    own, said = matcher.deep_copy(), bytearray()
    while len(said) < most:
        bits = int.from_bytes(own.compute_bitmask(), "little")
        allowed = [byte for byte in range(256) if bits >> byte & 1]
        if own.is_stopped() or (own.is_accepting() and not allowed):
            assert own.is_accepting(), (bytes(said), own.get_error())
            return said.decode(errors="replace")
        assert allowed, (bytes(said), own.get_error())
        # What closes is chosen more often, so that most answers end.
        closing = [byte for byte in allowed if byte in b'}]",:']
        byte = rng.choice(closing if closing and rng.random() < 0.4 else allowed)
        assert own.consume_token(byte)
        said.append(byte)
    return None


def takes(matcher: Any, text: str) -> bool:
    own = matcher.deep_copy()
    return bool(own.consume_tokens(list(text.encode())) and own.is_accepting())


@pytest.mark.parametrize(
    ("schema", "place", "reason"),
    [
        ({"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}, **CIRCLE}, ".$defs.n.$ref", "leads to itself"),
        ({"$ref": "#/$defs/n", **CIRCLE}, ".$defs.n.$ref", "leads to itself"),
        ({"$ref": "#"}, ".$ref", "leads to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, ".$defs.a.$ref",
         "leads to itself"),
        ({"$ref": "#/$defs/list", "$defs": {"list": LIST}}, "", "demands itself"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "", "demands itself"),
        ({"allOf": [{"$ref": "#"}, {"type": "string"}]}, "", "demands itself"),
        ({"type": "object", "required": ["a"], "additionalProperties": {"$ref": "#"}}, "", "demands itself"),
        ({"type": "object", "required": ["ab"], "patternProperties": {"^a": {"$ref": "#/shared/m"}},
          "shared": {"m": {"anyOf": [{"$ref": "#"}]}}}, "", "demands itself"),
    ],
)  # fmt: skip
def test_a_schema_without_a_finite_value_is_refused(schema: Any, place: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        compiled(schema)
    assert refused.value.param == f"structured_outputs.json{place}"


def test_strings_of_which_all_are_excluded_are_never_begun() -> None:
    """As by oneOf: a time of the first schema that is none of the second."""
    time, hexadecimal = {"type": "string", "format": "date-time"}, {"type": "string", "pattern": "^[a-f]{4}$"}
    for both in (time, hexadecimal):
        first = {"type": "object", "properties": {"id": {"type": "integer"}, "at": both}}
        other = {"type": "object", "properties": {"at": both, "count": {"type": "number"}}}
        matcher = compiled({"oneOf": [{**first, "patternProperties": {"^[a-z]{1,9}$": {}}}, other]})
        for seed in range(40):
            answer(matcher, random.Random(seed))
    assert not takes(compiled({"anyOf": [{**hexadecimal, "not": hexadecimal}, {"type": "null"}]}), '"abcd"')
    few = {"type": "string", "pattern": "^(a|b)$", "not": {"enum": ["a", "b"]}}
    with pytest.raises(RequestError, match="no value is valid by it"):
        compiled({"type": "array", "items": few, "minItems": 1})


OUTSIDE = {"enum": [1], "const": 2}
CROSSED = {"type": "number", "minimum": 3, "maximum": 2}
SHORT = {"type": "string", "pattern": "^a$", "minLength": 3}
BOTH = {"allOf": [{"type": "integer"}, {"type": "string"}]}


def demands(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        *(({**impossible}, "") for impossible in (OUTSIDE, CROSSED, SHORT, BOTH)),
        *((demands(a={}, x=impossible), ".properties.x") for impossible in (OUTSIDE, CROSSED, SHORT, BOTH, False)),
        (demands(x=demands(y=CROSSED)), ".properties.x.properties.y"),
        (demands(x=demands(y=OUTSIDE)), ".properties.x.properties.y"),
        (demands(again={"$ref": "#"}, x=SHORT), ".properties.x"),
        (demands(x={"$ref": "#/$defs/m"}) | {"$defs": {"m": demands(y=SHORT)}}, ".$defs.m.properties.y"),
        ({"type": "array", "items": CROSSED, "minItems": 1}, ".items"),
        ({"type": "array", "prefixItems": [{}, SHORT], "minItems": 2}, ".prefixItems[1]"),
        ({"type": "array", "contains": OUTSIDE}, ".contains"),
        ({"type": "array", "items": demands(x=SHORT), "minItems": 2}, ".items.properties.x"),
    ],
)
def test_what_is_impossible_by_itself_is_named_where_it_stands(schema: Any, place: str) -> None:
    with pytest.raises(RequestError) as refused:
        compiled(schema)
    assert refused.value.message == f"structured_outputs.json{place} cannot be used: no value is valid by it."


@pytest.mark.parametrize(
    ("schema", "valid"),
    [
        ({"type": "object", "properties": {"x": {"$ref": "#/$defs/list"}, "z": INTEGER}, "required": ["z"],
          "additionalProperties": False, "$defs": {"list": LIST}}, {"z": 1}),
        ({"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}], "$defs": {"list": LIST}}, None),
        ({"type": "array", "items": {"$ref": "#/$defs/list"}, "$defs": {"list": LIST}}, []),
        ({"type": "array", "items": {"$ref": "#"}}, [[], [[]]]),
        ({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"],
          "additionalProperties": False}, {"next": {"next": None}}),
        ({"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"],
          "additionalProperties": False}, {"next": None}),
        ({"$ref": "#/shared/m", "shared": {"m": {"type": "object", "properties": {"a": {"$ref": "#/shared/m"}},
          "additionalProperties": False}}}, {"a": {"a": {}}}),
        ({"type": "object", "properties": {"score": {"type": "integer", "multipleOf": 5}}, "required": ["score"],
          "additionalProperties": False, "patternProperties": {"^score$": {"maximum": 50}}}, {"score": 45}),
        ({"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "additionalProperties": False,
          "patternProperties": {"^[ab]$": {"maximum": 9}, "^c+$": {"type": "null"}}}, {"b": 3, "cc": None}),
    ],
)  # fmt: skip
def test_no_answer_comes_to_a_dead_end(schema: Any, valid: Any) -> None:
    matcher = compiled(schema)
    assert takes(matcher, json.dumps(valid))
    rng = random.Random(5)
    answers = [text for _ in range(60) if (text := answer(matcher, rng)) is not None]
    assert len(answers) > 5
    for text in answers:
        Draft202012Validator(schema).validate(json.loads(text))


def test_what_a_pattern_asks_of_a_named_property_is_kept() -> None:
    matcher = compiled(
        {
            "type": "object",
            "properties": {"score": INTEGER},
            "patternProperties": {"^score$": {"maximum": 50}},
            "additionalProperties": False,
        }
    )
    assert takes(matcher, '{"score": 50}')
    assert not takes(matcher, '{"score": 51}')


NAMES = ("a", "b")
SMALL: st.SearchStrategy[Any] = st.deferred(
    lambda: st.one_of(
        st.sampled_from([{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}, {"const": "x"}]),
        st.sampled_from([{"$ref": "#/$defs/d0"}, {"$ref": "#/$defs/d1"}]),
        st.builds(
            lambda properties, required, rest: {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": rest,
            },
            st.dictionaries(st.sampled_from(NAMES), SMALL, max_size=2),
            st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
            st.just(False) | SMALL,
        ),
        st.builds(lambda items, least: {"type": "array", "items": items, "minItems": least, "maxItems": least + 1},
                  SMALL, st.integers(0, 2)),
        st.builds(lambda options: {"anyOf": options}, st.lists(SMALL, min_size=1, max_size=2)),
    )
)  # fmt: skip


@given(st.tuples(SMALL, SMALL, SMALL), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_random_schemas_that_refer_to_themselves_never_lead_to_a_dead_end(
    schemas: tuple[Any, Any, Any], seed: int
) -> None:
    schema = {**schemas[0], "$defs": {"d0": schemas[1], "d1": schemas[2]}}
    try:
        matcher = compiled(schema)
    except RequestError:
        return
    rng = random.Random(seed)
    for _ in range(10):
        text = answer(matcher, rng, 200)
        if text is not None:
            assert Draft202012Validator(schema).is_valid(json.loads(text)), text
