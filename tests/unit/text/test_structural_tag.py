"""Structural tags: what each format allows, and what a client is told of one that is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tessera.errors import RequestError
from tessera.sampling_params import StructuredOutputsParams
from tessera.text.grammar import Grammar, TokenTable, byte_tokenizer, compile_grammar, compile_source

BYTES = byte_tokenizer()
NUMBER = {"type": "regex", "pattern": "[0-9]+"}
SCHEMA = {"type": "json_schema", "json_schema": {"type": "object", "properties": {"a": {"type": "integer"}},
                                                 "required": ["a"], "additionalProperties": False}}  # fmt: skip
CALL = {"type": "tag", "begin": "<call>", "content": SCHEMA, "end": "</call>"}
COUNT = {"type": "tag", "begin": "<count>", "content": NUMBER, "end": "</count>"}


def accepts(given: Any, text: str) -> bool:
    tag = given if "structures" in given else {"type": "structural_tag", "format": given}
    matcher = compile_grammar(StructuredOutputsParams(structural_tag=tag), BYTES)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


EITHER = {"type": "or", "elements": [NUMBER, CALL]}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<c"], "tags": [CALL, COUNT]}
LEGACY = {
    "structures": [{"begin": "<f=a>", "schema": SCHEMA["json_schema"], "end": "</f>"}],
    "triggers": ["<f="],
}
ALLOWED: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"type": "const_string", "value": 'say "x"'}, ['say "x"'], ["say x", ""]),
    (NUMBER, ["12"], ["", "a"]),
    (SCHEMA, ['{"a": 1}'], ["{}"]),
    ({"type": "grammar", "grammar": 'start: "a" B\nB: /b+/'}, ["abb"], ["a"]),
    ({"type": "grammar", "grammar": 'root ::= "a" [0-9]'}, ["a1"], ["ab"]),
    ({"type": "any_text"}, ["", "é\n<call>"], []),
    ({"type": "sequence", "elements": [NUMBER, {"type": "const_string", "value": "!"}]}, ["1!"], ["1", "!"]),
    (EITHER, ["1", '<call>{"a":1}</call>'], ["<call>1</call>"]),
    ({"type": "sequence", "elements": [EITHER, {"type": "any_text"}]}, ["1x"], ["x"]),
    (CALL, ['<call>{"a":1}</call>'], ["<call></call>", '<call>{"a":1}']),
    ({**COUNT, "end": ["</a>", ""]}, ["<count>1", "<count>1</a>"], ["<count>1</b>"]),
    ({**COUNT, "content": {"type": "any_text"}}, ["<count></count>", "<count>a<b</count>"], ["<count>a</count>b"]),
    (
        TRIGGERED,
        ["", "hello", '<call>{"a":1}</call> and <count>5</count>!', "a < b"],
        ["<call>5</call>", "<cat>", "<count>5</count><count>"],
    ),
    ({**TRIGGERED, "at_least_one": True}, ["x<count>1</count>y"], ["", "x"]),
    ({**TRIGGERED, "at_least_one": True, "stop_after_first": True}, ["<count>1</count>"], ["x<count>1</count>", ""]),
    ({**TRIGGERED, "stop_after_first": True}, ["x", "x<count>1</count>"], ["x<count>1</count>y"]),
    (
        {"type": "tags_with_separator", "tags": [CALL, COUNT], "separator": "\n"},
        ["", "<count>1</count>", '<count>1</count>\n<call>{"a":1}</call>'],
        ["<count>1</count>\n", "x"],
    ),
    (
        {"type": "tags_with_separator", "tags": [COUNT], "separator": ",", "at_least_one": True},
        ["<count>1</count>,<count>2</count>"],
        [""],
    ),
    (
        {"type": "tags_with_separator", "tags": [COUNT], "stop_after_first": True, "at_least_one": True},
        ["<count>1</count>"],
        ["<count>1</count><count>2</count>"],
    ),
    (LEGACY, ["x", 'x<f=a>{"a":1}</f>y'], ["<f=b>", "<f=a>{}</f>"]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "right", "wrong"), ALLOWED, ids=range(len(ALLOWED)))
def test_a_format_allows_its_texts_and_no_others(given: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    for text in right:
        assert accepts(given, text), text
    for text in wrong:
        assert not accepts(given, text), text


def test_special_tokens_of_the_model_stand_for_themselves() -> None:
    """Their letters do not, and no free text holds them."""
    tokens = [bytes((value,)) for value in range(256)] + [b"<call>", b"</call>", b"<end>"]
    table = TokenTable(tokens, frozenset((256, 257)), (258,))
    asked = StructuredOutputsParams(
        structural_tag={"type": "structural_tag", "format": {**TRIGGERED, "triggers": ["<call>"], "tags": [CALL]}}
    )
    checked = Grammar(asked, BYTES)
    checked.compile()
    for matcher in (
        compile_grammar(asked, table.tokenizer(), table.special),
        compile_source(checked.source(table.special), table.tokenizer()),
    ):
        for tokens, right in (
            ([*b"x", 256, *b'{"a":1}', 257, *b"y"], True),
            ([*b"<call>5</call>"], True),  # free text
            ([256, *b"5"], False),
            ([*b"x", 257], False),
        ):
            own = matcher.deep_copy()
            assert (own.consume_tokens(tokens) and own.is_accepting()) == right, tokens


REFUSED: list[tuple[Any, str, str]] = [
    ({"type": "tags"}, ".structural_tag", 'must be an object with the type "structural_tag"'),
    (
        {"type": "structural_tag", "format": {"type": "x"}},
        ".structural_tag.format.type",
        "must be one of const_string,",
    ),
    ({"type": "structural_tag", "format": []}, ".structural_tag.format.type", "must be one of const_string,"),
    ({"type": "structural_tag"}, ".structural_tag.structures", "must be a list of objects, and not empty"),
    (
        {"structures": [{"begin": "<a"}], "triggers": ["<b"]},
        ".structural_tag.tags[0].begin",
        "must start with a trigger",
    ),
    (
        {"format": {"type": "sequence", "elements": [{"type": "any_text"}, NUMBER]}},
        ".structural_tag.format.elements",
        "may have any_text at its end only",
    ),
    ({"format": {**CALL, "end": 5}}, ".structural_tag.format.end", "must be a text, or several"),
    ({"format": {"type": "const_string"}}, ".structural_tag.format.value", "must be a text"),
    ({"format": {"type": "regex", "pattern": "("}}, ".structural_tag.format.pattern", "unclosed group"),
    (
        {"format": {"type": "json_schema", "json_schema": {"items": {"anyOf": 5}}}},
        ".structural_tag.format.json_schema.items.anyOf",
        "must be a list of schemas",
    ),
    (
        {"format": {"type": "grammar", "grammar": "start: x"}},
        ".structural_tag.format.grammar",
        'unknown name: "x" (at line 1, column 8)',
    ),
    (
        {"format": {**CALL, "content": {"type": "regex", "pattern": r"[^\s\S]"}}},
        ".structural_tag.format.content.pattern",
        "no text is allowed",
    ),
    (
        {"format": {"type": "sequence", "elements": [CALL, {"type": "grammar", "grammar": 'start: start "a"'}]}},
        ".structural_tag.format.elements[1].grammar",
        "the rule start needs itself, without end",
    ),
    (
        {"format": {"type": "sequence", "elements": [CALL, {"type": "grammar", "grammar": "start: T\nT: /a/ & /b/"}]}},
        ".structural_tag.format.elements[1].grammar",
        "no text is allowed",
    ),
]


@pytest.mark.parametrize(("tag", "place", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_a_tag_that_is_wrong_is_refused_by_the_place(tag: Any, place: str, reason: str) -> None:
    with pytest.raises(RequestError) as refused:
        compile_grammar(StructuredOutputsParams(structural_tag=tag), BYTES)
    assert refused.value.message.startswith(f"structured_outputs{place} cannot be used: {reason}")
    assert refused.value.param == f"structured_outputs{place}"


def test_a_tag_has_limits() -> None:
    deep: dict[str, Any] = NUMBER
    for _ in range(40):
        deep = {"type": "or", "elements": [deep]}
    wide = {"type": "or", "elements": [NUMBER] * 10_001}
    for given, reason in ((deep, "nested more than 32 levels deep"), (wide, "more than 10000 formats within it")):
        with pytest.raises(RequestError, match=reason):
            accepts(given, "1")


def test_many_tools_are_served_and_what_says_the_same_is_compiled_once() -> None:
    """256 tools of 8 parameters, as agents bring them. Each parameter has a note of its own."""

    def parameter(tool: int, number: int) -> dict[str, Any]:
        kind = ("integer", "boolean", "number", "null")[number % 4]
        schema = {"type": kind, "description": f"What {tool} does by {number}" + 200 * "."}
        content = {"type": "json_schema", "json_schema": schema}
        return {"type": "tag", "begin": f"<{number}>", "content": content, "end": ""}

    tags = [
        {"type": "tag", "begin": f"<tool_{tool}>", "content": {"type": "sequence", "elements": [
            parameter(tool, number) for number in range(8)
        ]}, "end": "</tool>"}
        for tool in range(256)
    ]  # fmt: skip
    whole = {"type": "structural_tag", "format": {"type": "tags_with_separator", "tags": tags, "at_least_one": True}}
    asked = StructuredOutputsParams(structural_tag=whole)
    grammar = Grammar(asked, BYTES)
    matcher = grammar.compile()
    assert len(json.loads(grammar.source({}).grammars)["grammars"]) == 1 + 4
    said = "<tool_255><0>5<1>true<2>0.5<3>null<4>7<5>false<6>1<7>null</tool>"
    assert matcher.consume_tokens(list(said.encode()))
    assert matcher.is_accepting()


def test_schemas_that_say_something_else_are_not_taken_for_the_same() -> None:
    def allowed(first: Any, second: Any, text: str) -> bool:
        parts = [{"type": "json_schema", **part} for part in (first, second)]
        return accepts({"type": "sequence", "elements": parts}, text)

    one, two = {"const": 1, "title": "a"}, {"const": 2, "title": "a"}
    assert allowed({"json_schema": one}, {"json_schema": two}, "12")
    assert not allowed({"json_schema": one}, {"json_schema": two}, "11")
    led = [{"$ref": "#/default", "default": {"const": number}} for number in (1, 2)]
    assert allowed({"json_schema": led[0]}, {"json_schema": led[1]}, "12")
    twice = {"type": "array", "items": {"type": "number"}, "uniqueItems": True}
    assert allowed({"json_schema": twice, "strict": False}, {"json_schema": twice, "lenient": True}, "[1,1][2,2]")
    with pytest.raises(RequestError, match=r"elements\[1\].json_schema.uniqueItems cannot be used"):
        allowed({"json_schema": twice, "strict": False}, {"json_schema": twice}, "[1][2]")
