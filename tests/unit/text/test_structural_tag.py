"""Structural tags: what each format allows, and what a client is told of one that is wrong."""

from __future__ import annotations

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
    wide = {"type": "or", "elements": [NUMBER] * 2_001}
    for given, reason in ((deep, "nested more than 32 levels deep"), (wide, "more than 2000 formats within it")):
        with pytest.raises(RequestError, match=reason):
            accepts(given, "1")
