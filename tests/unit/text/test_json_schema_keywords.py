"""Each keyword of JSON Schema: texts that a grammar takes and texts that it does not, judged by jsonschema too."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import random
import re
import uuid
from collections.abc import Callable
from email.headerregistry import Address
from typing import Any
from urllib.parse import urlsplit

import idna
import pytest
from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator
from llguidance import LLMatcher
from pydantic import TypeAdapter

from tessera.errors import RequestError
from tessera.sampling_params import StructuredOutputsParams
from tessera.text.grammar import byte_tokenizer, compile_grammar
from tessera.text.json_schema import FORMATS

BYTES = byte_tokenizer()
OPEN = {"disable_additional_properties": False}
P = {"type": "object", "properties": {"q": {"type": "string"}}}
DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}


def matcher_of(schema: Any, **options: Any) -> LLMatcher:
    return compile_grammar(StructuredOutputsParams(json=schema, **options), BYTES)


def takes(matcher: LLMatcher, text: str) -> bool:
    own = matcher.deep_copy()
    return bool(own.consume_tokens(list(text.encode())) and own.is_accepting())


def tagged(tag: str, more: str, *, required: bool) -> dict[str, Any]:
    properties = {"kind": {"const": tag, "default": tag}, more: {"type": "integer"}}
    return {"type": "object", "properties": properties, "required": ["kind", more] if required else [more]}


CASES: dict[str, tuple[Any, list[str], list[str]]] = {
    "a $ref to anywhere": (
        {
            "properties": {"a": {"$ref": "#/shared/m"}},
            "type": "object",
            "required": ["a"],
            "shared": {
                "m": {
                    "type": "object",
                    "minProperties": 2,
                    "patternProperties": {"^[xy]$": {"type": "boolean"}},
                    "additionalProperties": False,
                }
            },
        },
        ['{"a":{"x":true,"y":true}}'],
        ['{"a":{"x":true}}', '{"a":{"x":1,"y":2}}', '{"a":{"x":true,"x":true}}'],
    ),
    "a format that is unknown, by $ref": (
        {
            "properties": {"u": {"$ref": "#/shared/u"}},
            "type": "object",
            "shared": {"u": {"type": "string", "format": "url"}},
        },
        ['{"u":"x"}'],
        ['{"u":1}'],
    ),
    "an anchor and an $id": (
        {
            "$id": "https://example.com/a",
            "type": "array",
            "items": {"anyOf": [{"$ref": "#here"}, {"$ref": "b#/$defs/c"}]},
            "$defs": {"x": {"$anchor": "here", "type": "null"}, "b": {"$id": "b", "$defs": {"c": {"type": "boolean"}}}},
        },
        ["[null,true]"],
        ["[1]"],
    ),
    "a circular $ref with siblings": (
        {
            "$ref": "#/$defs/n",
            "$defs": {
                "n": {
                    "type": "object",
                    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/n", "required": ["v"]}},
                }
            },
        },
        ['{"v":1,"next":{"v":2,"next":{"v":3}}}', "{}"],
        ['{"next":{}}', '{"next":{"v":1,"next":{}}}'],
    ),
    "one or a list of them": (
        {
            "oneOf": [{"$ref": "#/definitions/p"}, {"type": "array", "items": {"$ref": "#/definitions/p"}}],
            "definitions": {"p": P},
        },
        ['{"q":"x"}', '[{"q":"x"},{}]'],
        ['"x"', "[1]"],
    ),
    "oneOf by tags": (
        {"oneOf": [tagged("a", "x", required=True), tagged("b", "x", required=True)]},
        ['{"kind":"a","x":1}', '{"kind":"b","x":1}'],
        ['{"kind":"c","x":1}', '{"x":1}'],
    ),
    "oneOf by tags with defaults": (
        {"oneOf": [tagged("a", "x", required=False), tagged("b", "x", required=False)]},
        ['{"kind":"a","x":1}', '{"kind":"b","x":1}'],
        ['{"x":1}'],
    ),
    "oneOf by what is required": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a":1}', '{"b":1}'],
        ["{}", '{"a":1,"b":1}'],
    ),
    "oneOf by ranges": (
        {
            "oneOf": [
                {"type": "integer", "maximum": 3},
                {"type": "integer", "minimum": 3},
                {"type": "integer", "minimum": 7},
            ]
        },
        ["2", "-8", "4", "6"],
        ["3", "7", "9"],
    ),
    "oneOf of a number and an integer": (
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        ["1.5", "-0.25"],
        ["1", "1.0"],
    ),
    "oneOf of strings": (
        {"oneOf": [{"type": "string", "maxLength": 4}, {"type": "string", "minLength": 3}]},
        ['"ab"', '"abcde"'],
        ['"abc"', '"abcd"'],
    ),
    "oneOf of values": ({"oneOf": [{"enum": [1, 2, "a"]}, {"enum": [2, 3]}]}, ["1", "3", '"a"'], ["2", "4"]),
    "not of a type": ({"not": {"type": ["string", "object"]}}, ["1", "[]", "null", "true"], ['"a"', "{}"]),
    "not of values": (
        {"type": ["string", "integer"], "not": {"enum": ["a", 5]}},
        ['"b"', "4", '"aa"', "55"],
        ['"a"', "5"],
    ),
    "not of what is required": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a", "b"]}},
        ["{}", '{"a":1}', '{"b":1}'],
        ['{"a":1,"b":1}'],
    ),
    "not of a pattern": ({"type": "string", "not": {"pattern": "^x"}}, ['"ax"', '""'], ['"x"', '"xa"']),
    "if, then, else": (
        {
            "type": "object",
            "properties": {"t": {"enum": ["a", "b"]}, "n": {}},
            "required": ["t"],
            "if": {"properties": {"t": {"const": "a"}}},
            "then": {"required": ["n"]},
            "else": {"properties": {"n": {"type": "null"}}},
        },
        ['{"t":"a","n":1}', '{"t":"b"}', '{"t":"b","n":null}'],
        ['{"t":"a"}', '{"t":"b","n":1}'],
    ),
    "dependencies": (
        {
            **DRAFT_4,
            "type": "object",
            "properties": {"a": {}, "b": {}, "c": {}},
            "dependencies": {"a": ["b"], "c": {"properties": {"b": {"type": "null"}}}},
        },
        ["{}", '{"b":1}', '{"a":1,"b":1}', '{"b":null,"c":1}'],
        ['{"a":1}', '{"b":1,"c":1}'],
    ),
    "dependentRequired and dependentSchemas": (
        {
            "type": "object",
            "properties": {"a": {}, "b": {}},
            "dependentRequired": {"b": ["a"]},
            "dependentSchemas": {"a": {"maxProperties": 1}},
        },
        ["{}", '{"a":1}'],
        ['{"b":1}', '{"a":1,"b":1}'],
    ),
    "names of properties": (
        {
            "type": "object",
            "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 3},
            "additionalProperties": {"type": "null"},
        },
        ["{}", '{"abc":null}', '{"a":null,"b":null}'],
        ['{"abcd":null}', '{"A":null}', '{"a":1}'],
    ),
    "names of properties that are listed": (
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "minProperties": 1},
        ['{"a":1}', '{"b":1}', '{"a":1,"b":1}'],
        ["{}", '{"c":1}'],
    ),
    "counts of properties": (
        {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 1, "maxProperties": 2},
        ['{"a":1}', '{"c":1}', '{"a":1,"c":1}'],
        ["{}", '{"a":1,"b":1,"c":1}'],
    ),
    "counts of properties with any names": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 2, "additionalProperties": True},
        ['{"a":1,"b":1}', '{"a":1,"c":1}', '{"b":1,"c":1,"d":1}'],
        ["{}", '{"a":1}', '{"c":1,"c":1}', '{"b":1,"b":1}'],
    ),
    "names that a pattern spells out": (
        {
            "type": "object",
            "patternProperties": {"^(ab|c-d)$": {"type": "integer"}, "^[ef]$": {"type": "null"}, "^g": {}},
            "additionalProperties": False,
            "minProperties": 2,
        },
        ['{"ab":1,"c-d":2}', '{"ab":1,"gh":2}', '{"e":null,"f":null}'],
        ['{"ab":1}', '{"ab":1,"ab":1}', '{"gh":1,"gh":1}', '{"e":null,"e":null}', '{"ab":null,"e":null}'],
    ),
    "patterns of names that meet": (
        {
            "type": "object",
            "patternProperties": {"^a": {"type": "integer"}, "z$": {"minimum": 5}},
            "additionalProperties": False,
        },
        ['{"a":1}', '{"z":6}', '{"az":5}'],
        ['{"az":1}', '{"z":1}', '{"b":1}'],
    ),
    "not whole, with bounds": (
        {"allOf": [{"minimum": 2}, {"not": {"type": "integer"}}], "type": "number"},
        ["2.5", "10.25"],
        ["3", "3.0", "1.5"],
    ),
    "unique values": (
        {"type": "array", "items": {"enum": ["a", "b", 3]}, "uniqueItems": True, "minItems": 1},
        ['["a"]', '["b","a",3]'],
        ["[]", '["a","a"]', '["a","b","a"]'],
    ),
    "unique booleans": (
        {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True},
        ["[]", "[true,false]"],
        ["[true,true]"],
    ),
    "contains": (
        {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}},
        ["[5]", "[1,7,2]"],
        ["[]", "[1,2]"],
    ),
    "first items": (
        {
            "type": "array",
            "prefixItems": [{"type": "null"}, {"type": "integer"}],
            "items": {"type": "string"},
            "minItems": 1,
        },
        ["[null]", "[null,1]", '[null,1,"a","b"]'],
        ["[]", "[1]", '[null,"a"]', "[null,1,2]"],
    ),
    "bounds of draft 4": (
        {**DRAFT_4, "type": "number", "minimum": 1, "exclusiveMinimum": True, "maximum": 2.5},
        ["1.5", "2.5", "2", "1.01"],
        ["1", "1.0", "2.51", "3", "0"],
    ),
    "large integers": (
        {"type": "integer", "minimum": 9007199254740993},
        ["9007199254740993"],
        ["9007199254740992", "1"],
    ),
    "allOf of closed and open objects": (
        {
            "allOf": [
                {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"b": {}}, "required": ["b"]},
            ]
        },
        ['{"a":1,"b":2}'],
        ['{"a":1}', '{"b":1}'],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_taken_is_valid_and_what_is_valid_is_taken(name: str) -> None:
    schema, taken, refused = CASES[name]
    matcher = matcher_of(schema)
    validator = (Draft4Validator if "$schema" in schema else Draft202012Validator)(schema)
    for text in taken:
        assert takes(matcher, text), text
        validator.validate(json.loads(text))
    for text in refused:
        assert not takes(matcher, text), text


def test_alternatives_that_may_hold_together_are_anyof_unless_strict() -> None:
    schema = {"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "object", "properties": {"b": {}}}]}
    for strict in (None, False):
        matcher = matcher_of(schema, strict=strict)
        assert takes(matcher, '{"a":1}')
        assert takes(matcher, '{"b":1}')
    with pytest.raises(
        RequestError, match=r"json\.oneOf cannot be used: its schemas must exclude one another; use anyOf"
    ):
        matcher_of(schema, strict=True)
    assert takes(matcher_of({"oneOf": [P, {"type": "array"}]}, strict=True), '{"q":""}')


@pytest.mark.parametrize(
    "alternatives", [[True, True], [{"type": "string"}, {"type": "string"}], [{"type": "integer"}, {"multipleOf": 3}]]
)
def test_alternatives_that_are_the_same_or_overlap_are_refused_if_strict(alternatives: list[Any]) -> None:
    with pytest.raises(RequestError, match=r"^structured_outputs\.json(\.oneOf)? cannot be used: "):
        compile_grammar(StructuredOutputsParams(json={"oneOf": alternatives}, strict=True), byte_tokenizer())


def test_items_without_end_are_kept_apart_or_refused() -> None:
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    for strict in (None, True):
        with pytest.raises(RequestError, match=r"json\.uniqueItems cannot be used: only items of at most 64 values"):
            matcher_of(schema, strict=strict)
    assert takes(matcher_of(schema, strict=False), '["a","a"]')
    assert takes(matcher_of({**schema, "maxItems": 1}), '["a"]')


def test_properties_that_cannot_be_told_apart_are_counted_once_or_refused() -> None:
    schema = {"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": False, "minProperties": 2}
    for strict in (None, True):
        with pytest.raises(RequestError, match=r"json\.minProperties cannot be used: a property that is not listed"):
            matcher_of(schema, strict=strict)
    assert takes(matcher_of(schema, strict=False), '{"xa":1,"xb":1}')
    assert takes(matcher_of({**schema, "minProperties": 1}), '{"xa":1}')


def test_names_that_are_not_listed_differ_from_those_that_are() -> None:
    schema = {"type": "object", "properties": {"a": {}}, "additionalProperties": {}, "patternProperties": {"^b": {}}}
    matcher = matcher_of(schema)
    assert takes(matcher, '{"a":1,"b":2,"c":3}')
    for text in ('{"a":1,"a":2}', '{"a":1,"\\u0061":2}', '{"c":1,"a":2}'):
        assert not takes(matcher, text), text


@pytest.mark.parametrize("schema", [{}, {"type": "integer"}, {"type": "number"}, {"type": "number", "minimum": -3.5}])
def test_digits_are_bounded(schema: Any) -> None:
    matcher = matcher_of(schema)
    assert takes(matcher, "1" * 18)
    assert not takes(matcher, "1" * 25)
    assert not takes(matcher, "1." + "3" * 30)
    assert not takes(matcher, "1e1000")


NO_DATES = ("2023-02-29", "1900-02-29", "0000-01-01", "2023-04-31", "2023-13-01", "2023-00-10")
DATES = ("2024-02-29", "2000-02-29", "1996-02-29", "0001-01-01", "9999-12-31", "2023-04-30", "1990-10-10")


def test_dates_are_those_of_the_calendar() -> None:
    dates, times = matcher_of({"type": "string", "format": "date"}), matcher_of({"type": "string", "format": "time"})
    both = matcher_of({"type": "string", "format": "date-time"})
    for date in DATES:
        assert takes(dates, f'"{date}"'), date
        assert takes(both, f'"{date}T23:59:59.5+14:00"'), date
    for date in NO_DATES:
        assert not takes(dates, f'"{date}"'), date
        assert not takes(both, f'"{date}T10:00:00Z"'), date
    for time, right in (("10:00:00Z", True), ("10:00:60Z", False), ("24:00:00Z", False), ("10:00:00+24:00", False)):
        assert takes(times, f'"{time}"') == right, time
    with pytest.raises(RequestError, match="no value is valid by it"):
        matcher_of({"type": "string", "format": "date", "pattern": "^2023-02-29$"})


def read_duration(text: str) -> None:
    """By the rules of RFC 3339, appendix A: each unit is followed by the next smaller one, and weeks stand alone."""
    numbers = re.sub("[0-9]+", "1", text)
    assert TypeAdapter(dt.timedelta).validate_python(numbers) > dt.timedelta()
    date, has_time, time = numbers.replace("1", "").removeprefix("P").partition("T")
    assert date in "YMD" or (date == "W" and not has_time)
    assert time in "HMS"
    assert bool(time) == bool(has_time)


def read_host(text: str) -> None:
    """By a reader of international names, which takes `xx--` for the beginning of an encoded one."""
    assert not re.search(r"(^|\.)-|-(\.|$)", text)
    idna.encode(text.replace("--", "ab"), strict=True)


def read_uri(text: str) -> None:
    assert not re.search(r"[^!-~]|[\"<>\\^`{|}]|%(?![0-9a-fA-F]{2})", text)
    parts = urlsplit(text)
    assert parts.scheme
    assert parts.port is None or 0 <= parts.port < 2**16
    if "[" in parts.netloc:
        ipaddress.IPv6Address(parts.hostname)
    assert re.match(r"[^:/?#]*:", text)


READERS: dict[str, Callable[[str], Any]] = {
    "date": dt.date.fromisoformat,
    "date-time": lambda text: dt.datetime.fromisoformat(text.upper()),
    "time": lambda text: dt.time.fromisoformat(text.upper()),
    "duration": read_duration,
    "email": lambda text: Address(addr_spec=text),
    "hostname": read_host,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "regex": re.compile,
    "uuid": uuid.UUID,
    "uri": read_uri,
}


def test_each_format_has_a_reader() -> None:
    assert READERS.keys() == FORMATS.keys()


def test_regular_expressions_that_are_wrong_are_none() -> None:
    matcher = matcher_of({"type": "string", "format": "regex"})
    right = ["", "a", "^[a-zA-Z0-9_]{3,16}$", r"\d+\.\d*|x", "^(?:[a-z]{2,}|(x|y)?)*?$", "[^/.-]+", "é{2}"]
    wrong = ["*", "\\", "[z-a]", "a{3,1}", "(", "a)", "[", "a**", "[]", "a|*", "(?<=a)b", "a{"]
    for texts, taken in ((right, True), (wrong, False)):
        for text in texts:
            own = matcher.deep_copy()
            assert (
                own.consume_tokens(list(json.dumps(text, ensure_ascii=False).encode())) and own.is_accepting()
            ) is taken, text


@pytest.mark.parametrize("name", READERS)
def test_texts_of_each_format_are_read_by_others(name: str) -> None:
    draw = random.Random(3)
    matcher = matcher_of({"type": "string", "format": name})
    for number in range(40):
        text = json.loads(walked(matcher, draw, *((60, 0.5) if number % 2 else (400, 0.003))))
        READERS[name](text)


def walked(matcher: LLMatcher, draw: random.Random, most: int = 60, ends: float = 0.5) -> bytes:
    """A whole text, byte by byte. Once it is long, the byte that ends something soonest is preferred. ends: how likely
    it ends where it may."""
    own, text = matcher.deep_copy(), bytearray()
    while True:
        mask = int.from_bytes(own.compute_bitmask(), "little")
        allowed = [byte for byte in range(256) if mask >> byte & 1]
        if own.is_accepting() and (not allowed or len(text) > most or draw.random() < ends):
            return bytes(text)
        within = re.sub(rb"\\.", b"", text).count(b'"') % 2  # a string
        if within and len(text) <= most and len(allowed) > 1 and draw.random() > 2 * ends:
            allowed = [byte for byte in allowed if byte != ord('"')]
        closing = [byte for byte in (b'")]}abc:' if within else b"]}") if byte in allowed]
        late = closing and len(text) > most
        plain = [byte for byte in allowed if byte < 128] or allowed
        byte = draw.choice(closing) if late else draw.choice(plain if draw.random() < 0.9 else allowed)
        assert own.consume_token(byte), own.get_error()
        text.append(byte)
        assert len(text) < 20_000


class Schemas:
    """Schemas at random, of few names and values so that their parts meet."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def any(self, depth: int) -> Any:
        kinds = [self.scalar, self.scalar, self.values]
        if depth:
            kinds += [self.object, self.object, self.array, self.combined, self.combined]
        return self.draw.choice(kinds)(depth)

    def scalar(self, _depth: int) -> Any:
        low = self.draw.randint(-3, 9)
        return self.draw.choice(
            [
                {"type": "string", "minLength": self.draw.randint(0, 2), "maxLength": self.draw.randint(1, 5)},
                {"type": "string", "pattern": self.draw.choice(["^a", "b$", "^[a-c]*$"])},
                {"type": "integer", "minimum": low, "exclusiveMaximum": low + self.draw.randint(0, 9)},
                {"type": "number", "exclusiveMinimum": low / 2, "maximum": low + 1.25},
                {"type": self.draw.sample(["null", "boolean", "integer", "string"], 2)},
                {"maximum": low},
                {},
            ]
        )

    def values(self, _depth: int) -> Any:
        return {"enum": self.draw.sample([None, True, 0, 1, 2.5, "a", "ab", [1], {"a": 1}], self.draw.randint(1, 4))}

    def object(self, depth: int) -> Any:
        names = self.draw.sample("abcd", self.draw.randint(0, 3))
        schema: dict[str, Any] = {"type": "object", "properties": {name: self.any(depth - 1) for name in names}}
        schema["required"] = self.draw.sample("abcd", self.draw.randint(0, 2))
        further = {
            "additionalProperties": self.draw.choice([False, True, self.any(depth - 1)]),
            "patternProperties": {self.draw.choice(["^a", "b$", "c"]): self.any(depth - 1)},
            "minProperties": self.draw.randint(0, 2),
            "maxProperties": self.draw.randint(1, 3),
            "propertyNames": {"maxLength": 2},
            "dependentRequired": {self.draw.choice("abcd"): [self.draw.choice("abcd")]},
            "dependentSchemas": {self.draw.choice("abcd"): self.any(0)},
        }
        return schema | {key: further[key] for key in self.draw.sample(sorted(further), self.draw.randint(0, 2))}

    def array(self, depth: int) -> Any:
        schema: dict[str, Any] = {"type": "array", "items": self.any(depth - 1), "maxItems": self.draw.randint(0, 3)}
        further = {"minItems": self.draw.randint(0, 2), "prefixItems": [self.any(0)], "contains": self.any(0)}
        return schema | {key: further[key] for key in self.draw.sample(sorted(further), self.draw.randint(0, 1))}

    def combined(self, depth: int) -> Any:
        parts = [self.any(depth - 1) for _ in range(self.draw.randint(1, 3))]
        beside = self.draw.choice([{}, self.any(depth - 1)])
        made = {
            "anyOf": parts,
            "oneOf": parts,
            "allOf": parts[:2],
            "not": parts[0],
            "if": parts[0],
        }
        keyword = self.draw.choice(sorted(made))
        branches = {"then": parts[-1], "else": self.any(0)} if keyword == "if" else {}
        return {**beside, keyword: made[keyword], **branches} if isinstance(beside, dict) else {keyword: made[keyword]}


@pytest.mark.parametrize("seed", range(8))
def test_texts_drawn_from_schemas_drawn_at_random_are_valid(seed: int) -> None:
    """By jsonschema, which knows nothing of how the grammar was made. strict: nothing is taken as less than it says."""
    draw = random.Random(seed)
    walks = 0
    for _ in range(40):
        schema = Schemas(draw).any(2)
        try:
            matcher = matcher_of(schema, strict=True, **draw.choice([{}, OPEN]))
        except RequestError:
            continue
        for _ in range(4):
            text = walked(matcher, draw)
            Draft202012Validator(schema).validate(json.loads(text))
            walks += 1
    assert walks > 60


def test_a_reference_of_draft_7_stands_alone() -> None:
    properties = {"a": {"$ref": "#/x", "type": "null"}}
    schema = {"type": "object", "properties": properties, "required": ["a"], "x": {"type": "integer"}}
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    Draft7Validator(schema).validate({"a": 1})
    assert takes(matcher_of(schema), '{"a":1}')
