"""What a schema says of a parameter: a call that is forced by it is read as it was meant, and so is one that the model
writes by itself."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tessera.parsing.calls import Tool
from tessera.parsing.forced import forced_calls
from tessera.parsing.formats import CALLS
from tessera.parsing.harmony import HARMONY
from tessera.parsing.parameters import Parameters
from tessera.parsing.response import MarkedFormat, Message, ResponseFormat, ResponseParser
from tessera.parsing.response_template.forcing import template_format
from tests.unit.parsing.response_templates import TAGS
from tests.unit.parsing.test_forced import hints, matcher_of
from tests.unit.text.test_json_schema import drawn

DEFS = {
    "Code": {"type": "string", "enum": ["12", "true", "null", "abc"]},
    "Name": {"type": "string"},
    "Level": {"type": "integer", "enum": [1, 2]},
    "Nested": {"$ref": "#/$defs/Code"},
}
# What a parameter may be, and the values that it has if there are few: each comes out of a grammar as it went in.
CODES = DEFS["Code"]["enum"]
ONE = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
HOLDS_CODE = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/Code"}},
    "required": ["x"],
    "additionalProperties": False,
}
INTEGERS = {"type": "array", "items": {"type": "integer"}, "maxItems": 2}
SHAPES: dict[str, tuple[Any, list[Any] | None]] = {
    "text": ({"type": "string"}, None),
    "nullable text": ({"type": ["string", "null"]}, None),
    "text or null": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
    "nullable values": ({"anyOf": [{"type": "string", "enum": ["abc"]}, {"type": "null"}]}, ["abc", None]),
    "values of two types": ({"type": ["string", "null"], "enum": ["abc", None]}, ["abc", None]),
    "an Enum by $ref": ({"$ref": "#/$defs/Code"}, CODES),
    "a text by $ref": ({"$ref": "#/$defs/Name"}, None),
    "allOf of a $ref": ({"allOf": [{"$ref": "#/$defs/Code"}]}, CODES),
    "a $ref of a $ref, narrowed": ({"$ref": "#/$defs/Nested", "enum": ["12", "other"]}, ["12"]),
    "a place of the whole schema": ({"$ref": "#/properties/other"}, ["12", 12.5]),
    "text or integer": ({"type": ["string", "integer"]}, None),
    "constant of a union": ({"type": ["string", "integer"], "const": "abc"}, ["abc"]),
    "texts and numbers": ({"anyOf": [{"$ref": "#/$defs/Code"}, {"$ref": "#/$defs/Level"}]}, [*CODES, 1, 2]),
    "text or list": ({"anyOf": [{"type": "string"}, INTEGERS]}, None),
    "text, object or null": ({"anyOf": [{"type": "string"}, ONE, {"type": "null"}]}, None),
    "constant text": ({"const": "abc"}, ["abc"]),
    "constant number": ({"const": 5}, [5]),
    "values of any type": ({"enum": ["a", 1, True, None]}, ["a", 1, True, None]),
    "integer": ({"type": "integer", "minimum": 1, "maximum": 3}, [1, 2, 3]),
    "integer by $ref": ({"$ref": "#/$defs/Level"}, [1, 2]),
    "boolean": ({"type": "boolean"}, [True, False]),
    "list": (
        {"type": "array", "items": {"$ref": "#/$defs/Code"}, "minItems": 1, "maxItems": 1},
        [[code] for code in CODES],
    ),
    "object": (HOLDS_CODE, [{"x": code} for code in CODES]),
    "many values": ({"enum": [f"v.{number}" for number in range(40)]}, None),
}
FAMILIES: dict[str, ResponseFormat] = {name: MarkedFormat(name, None, calls) for name, calls in CALLS.items()}
FAMILIES["openai"] = HARMONY
FAMILIES["a response_template"] = template_format(json.dumps(TAGS), FAMILIES["qwen3_coder"], ())


def tool_of(schema: Any, *, strict: bool = True) -> Tool:
    parameters = {
        "type": "object",
        "properties": {"p": schema, "other": {"enum": ["12", 12.5]}},
        "required": ["p"],
        "additionalProperties": False,
        "$defs": DEFS,
    }
    return Tool("f", parameters, strict=strict)


def read(known: ResponseFormat, text: str, tool: Tool) -> Message:
    parser = ResponseParser(known, [tool])
    return Message.from_events([*parser.feed(text), *parser.finish()])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_forced_is_read_as_it_was_meant(family: str, shape: str) -> None:
    (schema, values), known = SHAPES[shape], FAMILIES[family]
    tool = tool_of(schema)
    assert known.calls is not None
    ends = hints(family) if family in CALLS else ['"', "\\n", "</parameter>"]
    ends += [written for value in values or () for written in (json.dumps(value), str(value))]
    matcher = matcher_of(forced_calls(known.calls, [tool], required=True, parallel=False))
    draw, seen, wanted = random.Random(5), set(), {json.dumps(value) for value in values or ()}
    for count in range(300):
        if count >= 12 and seen >= wanted:
            break
        text = drawn(matcher.deep_copy(), draw, ends).decode()
        (call,) = read(known, text, tool).calls
        arguments = json.loads(call.arguments)
        Draft202012Validator(tool.parameters).validate(arguments)
        seen.add(json.dumps(arguments["p"]))
    assert values is None or seen == wanted


@pytest.mark.parametrize("family", ["qwen3_coder", "glm45", "deepseek_v32"])
def test_a_parameter_of_any_type_is_a_text_without_quotes(family: str) -> None:
    known, tool = FAMILIES[family], tool_of({"description": "Anything."})
    assert known.calls is not None
    matcher = matcher_of(forced_calls(known.calls, [tool], required=True, parallel=False))
    draw = random.Random(5)
    for _ in range(30):
        (call,) = read(known, drawn(matcher.deep_copy(), draw, hints(family)).decode(), tool).calls
        Draft202012Validator(tool.parameters).validate(json.loads(call.arguments))


TAGGED = {
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=p>\n{}\n</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>f\n<arg_key>p</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
    "a response_template": "<tool_call>\n<function=f>\n<parameter=p>\n{}\n</parameter>\n</function>\n</tool_call>",
}
LOOKS = [
    ({"$ref": "#/$defs/Name"}, "12", "12"),
    ({"$ref": "#/$defs/Code"}, "true", "true"),
    ({"allOf": [{"$ref": "#/$defs/Code"}]}, "null", "null"),
    ({"$ref": "#/$defs/Level"}, "2", 2),
    ({"allOf": [{"$ref": "#/$defs/Level"}, {"description": "How loud."}]}, "2", 2),
    ({"anyOf": [{"$ref": "#/$defs/Name"}, {"type": "null"}]}, "12", "12"),
    ({"anyOf": [{"$ref": "#/$defs/Name"}, {"type": "null"}]}, "null", None),
    ({"type": "integer", "nullable": True}, "null", None),
    ({"enum": [1, 2]}, "1", 1),
    ({"enum": ["1", "2"]}, "1", "1"),
    ({"const": True}, "true", True),
    ({"type": "boolean"}, "true", True),
    ({"type": "array"}, '["a"]', ["a"]),
    ({"type": "object"}, '{"a": 1}', {"a": 1}),
    ({"$ref": "#/$defs/Missing"}, "12", 12),
    ({"$ref": "#/properties/p"}, "12", 12),
]


@pytest.mark.parametrize(("schema", "text", "value"), LOOKS, ids=range(len(LOOKS)))
@pytest.mark.parametrize("family", TAGGED)
def test_a_text_without_quotes_is_read_by_the_types_of_its_parameter(
    family: str, schema: Any, text: str, value: Any
) -> None:
    said = Parameters(tool_of(schema).parameters).declared("p").says_type
    wanted = value if said or family != "a response_template" else text  # there, as transformers has it
    (call,) = read(FAMILIES[family], TAGGED[family].format(text), tool_of(schema, strict=False)).calls
    assert json.loads(call.arguments) == {"p": wanted}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "array"}, "['a', \"b\", None, True]", ["a", "b", None, True]),
        ({"type": "array"}, "('a', 1)", ["a", 1]),
        ({"type": "object"}, "{'a': [1, 'x']}", {"a": [1, "x"]}),
        ({"anyOf": [{"type": "array"}, {"type": "null"}]}, "['a']", ["a"]),
        ({"type": "array"}, "['a'] and more", "['a'] and more"),
        ({"type": "array"}, "[broken", "[broken"),
        ({"type": "string"}, "['a']", "['a']"),
        ({}, "['a']", "['a']"),
        ({"type": ["string", "array"]}, '["a"]', ["a"]),
        ({"type": ["string", "array"]}, "[see below]", "[see below]"),
        ({"type": ["string", "object"]}, '["a"]', '["a"]'),
        ({"type": ["string", "integer"]}, "12", "12"),
    ],
)
def test_lists_and_objects_may_be_written_as_python_does(schema: Any, text: str, value: Any) -> None:
    for family in ("qwen3_coder", "glm45"):
        (call,) = read(FAMILIES[family], TAGGED[family].format(text), tool_of(schema, strict=False)).calls
        assert json.loads(call.arguments) == {"p": value}


def test_the_model_may_say_whether_a_value_is_a_text() -> None:
    mark = "｜DSML｜"
    for string, value in (("true", "12"), ("false", 12)):
        text = (
            f'<{mark}function_calls>\n<{mark}invoke name="f">\n<{mark}parameter name="p" string="{string}">12'
            f"</{mark}parameter>\n</{mark}invoke>\n</{mark}function_calls>"
        )
        for schema in ({"type": ["string", "integer"]}, {}):
            (call,) = read(FAMILIES["deepseek_v32"], text, tool_of(schema)).calls
            assert json.loads(call.arguments) == {"p": value}
        (call,) = read(FAMILIES["deepseek_v32"], text, tool_of({"type": "string"})).calls
        assert json.loads(call.arguments) == {"p": "12"}


def test_parameters_are_those_of_what_a_schema_refers_to() -> None:
    schema = {
        "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}],
        "anyOf": [{"properties": {"c": {"type": "string"}}, "required": ["c"]}, {"properties": {"d": {}}}],
        "additionalProperties": {"type": "string"},
        "$defs": {"Base": {"properties": {"a": {"type": "string"}}, "required": ["a"], "allOf": [{"$ref": "#"}]}},
    }
    own = Parameters(schema)
    assert own.schemas.keys() == {"a", "b", "c", "d"}
    assert [own.required(name) for name in "abcd"] == [True, True, False, False]
    assert own.declared("unknown").types == ("string",)


def test_schemas_that_refer_to_each_other_are_followed_once() -> None:
    names = [f"d{number}" for number in range(60)]
    defs = {
        name: {"anyOf": [{"$ref": f"#/$defs/{after}"}] * 3}
        for name, after in zip(names, [*names[1:], names[0]], strict=True)
    }
    deep: Any = {"type": "string"}
    for _ in range(500):
        deep = {"allOf": [deep]}
    own = Parameters({"properties": {"p": {"$ref": "#/$defs/d0"}, "q": deep}, "$defs": defs})
    assert not own.declared("p").says_type
    assert not own.declared("q").says_type
