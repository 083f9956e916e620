"""What a grammar forces is what the parser reads: texts drawn from the grammar are calls with valid arguments."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tessera.parsing.calls import Tool
from tessera.parsing.custom import parameters
from tessera.parsing.forced import forced_calls
from tessera.parsing.formats import CALLS
from tessera.parsing.harmony import HARMONY
from tessera.parsing.response import MarkedFormat, Message, ParsedCall, ResponseParser
from tessera.sampling_params import StructuredOutputsParams
from tessera.text.grammar import byte_tokenizer, compile_grammar
from tests.unit.text.test_json_schema import drawn

BYTES = byte_tokenizer()
TOOLS = (
    Tool(
        "find",
        {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer", "minimum": 1, "maximum": 9},
                "kind": {"enum": ["a", "b"]},
                "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
            },
            "required": ["text"],
            "additionalProperties": False,
        },
        strict=True,
    ),
    Tool(
        "optional",
        {
            "type": "object",
            "properties": {"a": {"type": "null"}, "b": {"const": 5}},
            "additionalProperties": False,
        },
        strict=True,
    ),
    Tool("now", {"type": "object", "properties": {}, "additionalProperties": False}, strict=True),
)
BY_NAME = {tool.name: tool for tool in TOOLS}


def hints(syntax: str) -> list[str]:
    """Texts that may end a free text."""
    markers = CALLS[syntax].markers
    return [text for marker in markers for text in (marker, f"{marker}\n", f"\n{marker}\n")]


def matcher_of(found: Any) -> Any:
    assert found is not None
    tag = {"type": "structural_tag", "format": found}
    return compile_grammar(StructuredOutputsParams(structural_tag=tag), BYTES)


def message_of(syntax: str, text: str, tools: Sequence[Tool] = TOOLS) -> Message:
    known = HARMONY if syntax == "openai" else MarkedFormat(syntax, None, CALLS[syntax])
    parser = ResponseParser(known, tools)
    return Message.from_events([*parser.feed(text), *parser.finish()])


def check(calls: list[ParsedCall]) -> None:
    for call in calls:
        Draft202012Validator(BY_NAME[call.name].parameters).validate(json.loads(call.arguments))


@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "single"])
@pytest.mark.parametrize("syntax", sorted(CALLS))
def test_a_required_call_is_a_call(syntax: str, parallel: bool) -> None:
    matcher = matcher_of(forced_calls(CALLS[syntax], TOOLS, required=True, parallel=parallel))
    draw = random.Random(3)
    seen = set()
    for _ in range(25):
        text = drawn(matcher.deep_copy(), draw, hints(syntax)).decode()
        message = message_of(syntax, text)
        assert message.content == "", text
        assert message.calls, text
        assert parallel or len(message.calls) == 1, text
        check(message.calls)
        seen.update(call.name for call in message.calls)
    assert seen == BY_NAME.keys()


@pytest.mark.parametrize("syntax", sorted(name for name in CALLS if CALLS[name].begins))
def test_strict_tools_are_called_right_or_not_at_all(syntax: str) -> None:
    matcher = matcher_of(forced_calls(CALLS[syntax], TOOLS, required=False, parallel=True))
    own = matcher.deep_copy()
    assert own.consume_tokens(list(b"Just text, 5 < 6."))
    assert own.is_accepting()
    begin = (CALLS[syntax].around[0] or CALLS[syntax].tag(TOOLS[2])["begin"]).encode()
    assert matcher.consume_tokens(list(b"Well. " + begin)), matcher.get_error()
    draw = random.Random(4)
    for _ in range(8):
        text = "Well. " + begin.decode() + drawn(matcher.deep_copy(), draw, hints(syntax)).decode()
        message = message_of(syntax, text)
        assert message.calls, text
        check(message.calls)


def harmony(text: str) -> Message:
    parser = ResponseParser(HARMONY, TOOLS)
    return Message.from_events([*parser.feed(text), *parser.finish()])


def test_gpt_oss_calls_or_answers_in_messages() -> None:
    """After the reasoning's message has ended."""
    assert HARMONY.calls is not None
    assert HARMONY.before_calls.end == "<|end|>"
    draw = random.Random(6)
    required = matcher_of(forced_calls(HARMONY.calls, TOOLS, required=True, parallel=False))
    for _ in range(15):
        text = "<|channel|>analysis<|message|>Hm.<|end|>" + drawn(required.deep_copy(), draw).decode()
        message = harmony(text)
        assert (message.reasoning, message.content, len(message.calls)) == ("Hm.", "", 1), text
        check(message.calls)
    either = matcher_of(forced_calls(HARMONY.calls, TOOLS, required=False, parallel=True))
    own = either.deep_copy()
    assert own.consume_tokens(list(b"<|start|>assistant<|channel|>final<|message|>Yes, any text."))
    assert own.is_accepting()
    assert either.consume_tokens(list(b"<|start|>assistant<|channel|>commentary to=functions.now"))
    answer = matcher_of(HARMONY.answer({"type": "const_string", "value": "x"}))
    assert answer.consume_tokens(list(b"<|start|>assistant<|channel|>final<|message|>x"))


@pytest.mark.parametrize("syntax", sorted(name for name in CALLS if CALLS[name].begins))
def test_one_call_is_one_call_where_the_model_chooses(syntax: str) -> None:
    loose = [Tool(tool.name, tool.parameters) for tool in TOOLS]
    matcher = matcher_of(forced_calls(CALLS[syntax], loose, required=False, parallel=False))
    begin, end = CALLS[syntax].around
    tag = CALLS[syntax].tag(TOOLS[2])
    arguments = "{}" if tag["content"]["type"] == "json_schema" else ""
    text = f"Well. {begin}{tag['begin']}{arguments}{tag['end']}{end}"
    assert matcher.consume_tokens(list(text.encode())), text
    assert len(message_of(syntax, text).calls) == 1
    assert matcher.is_stopped()


def test_tools_that_are_not_strict_are_not_forced_where_the_model_may_choose() -> None:
    loose = [Tool("now"), Tool("find", {"type": "object", "properties": {"a": {"uniqueItems": True}}})]
    assert forced_calls(CALLS["hermes"], loose, required=False, parallel=True) is None
    matcher = matcher_of(forced_calls(CALLS["hermes"], loose, required=True, parallel=True))
    assert matcher.consume_tokens(list(b'<tool_call>\n{"name": "find", "arguments": {"a": [1, 1]}}\n</tool_call>'))


NOTES = 'start: (KEY ": " /[^\\n<]{0,8}/ NL){1,2}\nKEY: /[a-z]{1,4}/\nNL: "\\n"'
SQL = r'SELECT "[A-Za-z_\\ ]{1,8}"\n?'
CUSTOM = (
    Tool("note", parameters(), strict=True, custom=True, form={"type": "grammar", "grammar": NOTES}),
    Tool("sql", parameters(), strict=True, custom=True, form={"type": "regex", "pattern": SQL}),
)
RULES = {"note": re.compile(r"(?:[a-z]{1,4}: [^\n<]{0,8}\n){1,2}"), "sql": re.compile(SQL)}


@pytest.mark.parametrize("syntax", [*sorted(CALLS), "openai"])
def test_the_input_of_a_custom_tool_follows_its_format(syntax: str) -> None:
    """Whether a model writes it as JSON, as a text of Python or as it is."""
    calls = HARMONY.calls if syntax == "openai" else CALLS[syntax]
    assert calls is not None
    matcher = matcher_of(forced_calls(calls, CUSTOM, required=True, parallel=False))
    draw, seen = random.Random(8), set()
    for _ in range(25):
        text = drawn(matcher.deep_copy(), draw, ['"', "\\n"] if syntax == "openai" else hints(syntax)).decode()
        message = message_of(syntax, text, CUSTOM)
        (call,) = message.calls
        assert call.custom
        assert RULES[call.name].fullmatch(call.arguments), (text, call.arguments)
        seen.add(call.name)
    assert seen == RULES.keys()
