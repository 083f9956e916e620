"""JSON Schemas: what they allow, byte by byte, and what a client is told of one that cannot be enforced."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tessera.errors import RequestError
from tessera.sampling_params import MAX_SCHEMA_CHARS, StructuredOutputsParams
from tessera.text.grammar import byte_tokenizer, compile_grammar
from tessera.text.json_schema import MAX_DEPTH, cases, subschemas

BYTES = byte_tokenizer()
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": "array", "items": {}}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def accepts(schema: Any, text: str, **options: Any) -> bool:
    matcher = compile_grammar(StructuredOutputsParams(json=schema, **options), BYTES)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


@pytest.mark.parametrize("given", [PERSON, json.dumps(PERSON), json.dumps(PERSON, indent=2)])
def test_a_schema_is_given_as_an_object_or_as_its_json(given: Any) -> None:
    assert StructuredOutputsParams(json=given) == StructuredOutputsParams(json=PERSON)
    assert accepts(given, '{"name":"Ada","age":36}')
    assert not accepts(given, '{"name":"Ada"}')
    assert not accepts(given, '{"name":"Ada","age":36,"more":1}')


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (json.dumps({"name": "x", "age": 1}), True),
        (json.dumps({"name": "x", "age": 1, "tags": [1, {"a": []}]}, indent=4), True),
        (json.dumps({"name": "x", "age": 1}, indent="\t"), True),
        ('{\n\n"name":"x","age":1}', False),
        ('{   "name":"x","age":1}', False),
        (" " + json.dumps({"name": "x", "age": 1}), False),
        (json.dumps({"name": "x", "age": 1}) + "\n", False),
        ('{\n' + " " * 65 + '"name":"x","age":1}', False),
    ],
)  # fmt: skip
def test_white_space_is_bounded(text: str, allowed: bool) -> None:
    assert accepts(PERSON, text) == allowed


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, '"ab"'),
        ({}, "[5]"),
        ({"type": ["string", "integer"], "minLength": 1}, '"ab"'),
        ({"type": ["string", "integer"], "format": "date"}, "5"),
        ({"type": "string", "pattern": "^a"}, '"ab"'),
        ({"type": "number", "multipleOf": 0.5}, "5"),
        ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, '["ab"]'),
    ],
    ids=range(7),
)
def test_no_answer_begins_with_white_space(schema: Any, text: str) -> None:
    assert accepts(schema, text)
    for space in (" ", "\n", "\t"):
        assert not accepts(schema, space + text)
    assert accepts({"type": "array", "items": schema}, f"[ {text}, {text}]")


def test_white_space_is_what_a_request_says() -> None:
    compact, spaced = '{"name":"x","age":1}', '{"name": "x", "age": 1}'
    assert accepts(PERSON, compact, disable_any_whitespace=True)
    assert not accepts(PERSON, spaced, disable_any_whitespace=True)
    assert accepts(PERSON, spaced, whitespace_pattern="[ ]{1,9}")
    assert not accepts(PERSON, json.dumps({"name": "x", "age": 1}, indent=1), whitespace_pattern="[ ]{1,9}")


def test_objects_that_list_their_properties_are_closed_where_a_schema_does_not_say() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "null"}}}}}
    text = '{"a":{"b":null,"c":1}}'
    for closed in (None, True):
        assert not accepts(schema, text, disable_additional_properties=closed)
        assert accepts(schema, '{"a":{"b":null}}', disable_additional_properties=closed)
    assert accepts(schema, text, disable_additional_properties=False)
    schema["properties"]["a"]["additionalProperties"] = True  # type: ignore[index]
    assert accepts(schema, text)
    assert accepts({"type": "object"}, text)


def test_any_object_is_an_object() -> None:
    matcher = compile_grammar(StructuredOutputsParams(json_object=True), BYTES)
    for text, right in (('{"a": [1, 2.5e3, null, "é"]}', True), ("{}", True), ("[]", False), ('"a"', False)):
        own = matcher.deep_copy()
        assert (own.consume_tokens(list(text.encode())) and own.is_accepting()) == right, text


def test_an_unknown_format_is_an_annotation_and_a_client_cannot_loosen_a_schema() -> None:
    assert accepts({"type": "string", "format": "color"}, '"red"')
    assert accepts({"type": "integer", "format": "int64"}, "5")
    assert not accepts({"type": "string", "format": "date"}, '"red"')
    loose = {**PERSON, "x-guidance": {"lenient": True, "whitespace_pattern": "[ ]{1,99}"}}
    assert not accepts(loose, '{     "name":"x","age":1}')
    assert not accepts({"not": {"type": "string"}, "x-guidance": {"lenient": True}}, '"1"')


def test_names_and_values_that_look_like_keywords_are_none() -> None:
    schema = {
        "type": "object",
        "properties": {"not": {"const": {"uniqueItems": True}}, "format": {"type": "string", "format": "uuid"}},
        "required": ["not"],
    }
    assert accepts(schema, '{"not":{"uniqueItems":true}}')
    assert not accepts(schema, '{"not":{"uniqueItems":true},"format":"x"}')
    found = [place for place, _ in subschemas({"properties": {"a": {"items": [{}, True]}}, "enum": [{"not": {}}]})]
    assert found == [(), ("properties", "a"), ("properties", "a", "items", 0), ("properties", "a", "items", 1)]


def spellings(text: str) -> list[str]:
    """All ways in which JSON may write a text within quotation marks."""
    ways = []
    for character in text:
        units = character.encode("utf-16-be").hex(" ", 2).split()
        forms = {"".join(f"\\u{unit}" for unit in units), "".join(f"\\u{unit.upper()}" for unit in units)}
        forms |= {json.dumps(character, ensure_ascii=False)[1:-1]}
        ways.append([*forms, *(["\\/"] if character == "/" else [])])
    return ["".join(way) for way in itertools.product(*ways)]


NAMES = ["a", "\x1b", "x\x1b", "\x7f", "\n", "\u00e9", "\u2028", "\U0001f600", '"', "\\", "/", "</"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_no_other_spelling_of_a_name_passes_by_what_is_said_of_it(name: str) -> None:
    one, pattern = json.dumps(name, ensure_ascii=False), f"^{re.escape(name)}$"
    listed = {"properties": {name: {"const": 1}}, "required": [name], "additionalProperties": {"const": 2}}
    matched = {"patternProperties": {pattern: {"const": 1}}, "additionalProperties": {"const": 2}}
    excluded = [
        {"propertyNames": {"not": {"const": name}}},
        {"propertyNames": {"not": {"pattern": pattern}}},
        {"propertyNames": {"pattern": "^z"}},
        {"propertyNames": {"maxLength": len(name) - 1}},
    ]
    assert accepts({"type": "object", **listed}, f'{{{one}:1,"other":2}}')
    for spelling in spellings(name):
        assert not accepts({"type": "object", **listed}, f'{{{one}:1,"{spelling}":2}}'), spelling
        for schema in (matched, *excluded):
            assert not accepts({"type": "object", **schema}, f'{{"{spelling}":2}}'), (schema, spelling)
        for schema in ({"not": {"const": name}}, {"not": {"enum": [name, "q"]}}, {"not": {"pattern": pattern}}):
            assert not accepts({"type": "string", **schema}, f'"{spelling}"'), (schema, spelling)


def test_what_cannot_be_written_is_left_out() -> None:
    threes = {"type": "number", "multipleOf": 3}
    schema = {"type": "object", "properties": {"a": {**threes, "not": {"const": 3}}, "b": {"type": "null"}}}
    assert accepts(schema, '{"b":null}')
    for text in ('{"a":}', '{"a":,"b":null}', '{"a":3}'):
        assert not accepts(schema, text), text
    with pytest.raises(RequestError, match="no value is valid by it"):
        accepts({**schema, "required": ["a"]}, "{}")
    assert accepts({**threes, "not": {"enum": [0.25, "x"]}}, "6")


def test_a_value_of_any_string_may_have_what_must_be_escaped() -> None:
    for spelling in ("\u00e9/", r"\u001b", r"\n", r"\"", r"\\"):
        assert accepts({"type": "object", "properties": {"a": {"type": "string"}}}, f'{{"a":"{spelling}"}}'), spelling


def test_a_schema_with_too_many_choices_in_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each property has few of them."""
    either = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    schema = {"type": "object", "properties": {name: {**either, "title": name} for name in "abcdefghij"}}
    assert accepts(schema, '{"j":null}')
    monkeypatch.setattr(cases, "MAX_SPLITS", 20)
    with pytest.raises(RequestError, match="json cannot be used: it is too large or too complex"):
        accepts(schema, '{"j":null}')


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


REFUSED: list[tuple[Any, str, str]] = [
    (
        {"properties": {"tags": {"uniqueItems": True}}},
        ".properties.tags.uniqueItems",
        "only items of at most 64 values",
    ),
    ({"anyOf": {"a": {}}}, ".anyOf", "must be a list of schemas"),
    ({"properties": {"a": 5}}, ".properties.a", "must be an object, true or false"),
    ({"properties": {"a": {"contains": {}, "minContains": 2}}}, ".properties.a.contains", "is supported once, for one"),
    (
        {"properties": {"a": {"maxLength": -1}}},
        ".properties.a.maxLength",
        "must be a whole number that is not negative",
    ),
    ({"items": {"$ref": "https://example.com/x"}}, ".items.$ref", "it leads to another document, and none is loaded"),
    ({"items": {"$ref": "#/$defs/none"}}, ".items.$ref", "it leads to nothing"),
    ({"properties": {"a": {"pattern": "(?=x)"}}}, ".properties.a.pattern", "the regular expression is wrong, or looks"),
    ({"properties": {"a": {"pattern": "(x"}}}, ".properties.a.pattern", "the regular expression is wrong, or looks"),
    ({"properties": {"a": {"type": "strin"}}}, ".properties.a.type", "there is no type 'strin'"),
    ({"enum": []}, "", "no value is valid by it"),
    (False, "", "no value is valid by it"),
    ({"$ref": "#"}, ".$ref", "it leads to itself"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "", "no value is valid by it"),
    (
        {"items": {"pattern": r"^(\S+\s+){0,499}\S+$", "maxLength": 5000, "type": "string"}},
        ".items.pattern",
        "it is too complex beside maxLength; lower its counts",
    ),
    (
        {"type": "object", "patternProperties": {"^.{1,9999}$": {}}},
        ".patternProperties",
        "it is too complex; lower its counts",
    ),
    (
        {"allOf": [{"properties": {"a": {}}, "unevaluatedProperties": False}]},
        ".allOf[0].unevaluatedProperties",
        "unevaluatedProperties is not supported",
    ),
    ({"multipleOf": 3, "type": "number", "not": {"const": 3}}, "", "multipleOf is not supported beside a not that"),
    ({"items": {"$dynamicRef": "#a"}}, ".items.$dynamicRef", "$dynamicRef is not supported"),
    ({"items": {"$ref": "#/a", "$id": "b"}, "a": {}}, ".items.$ref", "a $ref beside an $id is not supported"),
    (nested(MAX_DEPTH + 1), "", f"it is nested more than {MAX_DEPTH} levels deep"),
    ({"anyOf": [{"const": number} for number in range(10_001)]}, "", "it has more than 10000 schemas within it"),
]


@pytest.mark.parametrize(("schema", "place", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_a_schema_that_cannot_be_enforced_is_refused_by_the_place(schema: Any, place: str, reason: str) -> None:
    with pytest.raises(RequestError) as refused:
        compile_grammar(StructuredOutputsParams(json=schema), BYTES)
    assert refused.value.message.startswith(f"structured_outputs.json{place} cannot be used: {reason}")
    assert refused.value.param == f"structured_outputs.json{place}"
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    "given", ["{", "[]", 5, "5.0", {"a": object()}, {"a": "x" * MAX_SCHEMA_CHARS}, '{"a":NaN}'], ids=range(7)
)
def test_what_is_no_schema_is_refused(given: Any) -> None:
    with pytest.raises(RequestError, match=r"^structured_outputs\.json ") as refused:
        StructuredOutputsParams(json=given)
    assert refused.value.param == "structured_outputs.json"


def test_texts_drawn_at_random_are_valid() -> None:
    """Byte by byte from the mask; jsonschema, which knows nothing of llguidance, judges the text."""
    from jsonschema import Draft202012Validator, FormatChecker

    schemas = [
        PERSON,
        {"type": "array", "items": {"type": "integer", "minimum": -3, "maximum": 1200}, "minItems": 2, "maxItems": 5},
        {
            "$ref": "#/$defs/tree",
            "$defs": {"tree": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/tree"}}},
        },
        {"type": "string", "pattern": "^[a-c]{2,4}-[0-9]+$", "maxLength": 9},
        {"type": "object", "patternProperties": {"^x_": {"type": "boolean"}}, "additionalProperties": {"type": "null"}},
        {"type": "number", "multipleOf": 0.25, "exclusiveMinimum": 0, "exclusiveMaximum": 10},
        {"type": "string", "format": "date-time"},
        {"anyOf": [{"const": {"a": [1, "x"]}}, {"enum": [None, 2.5, "y"]}]},
    ]
    draw = random.Random(5)
    for schema in schemas:
        matcher = compile_grammar(StructuredOutputsParams(json=schema), BYTES)
        validator = Draft202012Validator(schema, format_checker=FormatChecker())
        for _ in range(12):
            text = drawn(matcher.deep_copy(), draw)
            validator.validate(json.loads(text))


def drawn(matcher: Any, draw: random.Random, hints: Sequence[str] = ()) -> bytes:
    """A whole text. Once it is long, the byte that ends something soonest is preferred. hints: texts to try, because
    no draw of bytes would meet them."""
    text = bytearray()
    while True:
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [byte for byte in range(256) if mask >> byte & 1]
        if matcher.is_accepting() and (not allowed or draw.random() < 0.5 or len(text) > 60):
            return bytes(text)
        hint = draw.choice(hints).encode() if hints else b""
        if hint and draw.random() < 0.3 and matcher.validate_tokens(list(hint)) == len(hint):
            assert matcher.consume_tokens(list(hint))
            text += hint
            continue
        closing = [byte for byte in b'"]},:0' if byte in allowed]
        byte = closing[0] if closing and len(text) > 40 else draw.choice(allowed)
        assert matcher.consume_token(byte), matcher.get_error()
        text.append(byte)


@pytest.mark.parametrize(
    ("schema", "begun", "letters"),
    [
        ({"type": "string", "pattern": r"^(?:\S+\s+){0,29}\S+$", "maxLength": 300}, '"', "one two "),
        ({"type": "string", "pattern": r"^(?:\S+\s+){0,99}\S+$", "maxLength": 1000}, '"', "one two "),
        ({"type": "object", "patternProperties": {"^.{1,255}$": {}}}, '{"', "name"),
    ],
)
def test_texts_of_counted_words_and_long_names_are_followed_to_their_bounds(
    schema: Any, begun: str, letters: str
) -> None:
    """They exceeded the limits after a few tokens."""
    matcher = compile_grammar(StructuredOutputsParams(json=schema), BYTES).deep_copy()
    bound = schema.get("maxLength", 255)
    text = f"{begun}{(letters * bound)[:bound]}"
    taken = 0
    for byte in text.encode():
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error() or not bits >> byte & 1:
            break
        assert matcher.consume_token(byte)
        taken += 1
    assert not matcher.is_error(), matcher.get_error()
    words = text[:taken].count(" ")
    assert taken == len(text) or words == int(schema["pattern"].partition("{0,")[2].partition("}")[0])
