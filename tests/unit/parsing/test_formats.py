"""Each family's answers: what is read of them, however they are cut."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tessera.parsing.calls import Tool
from tessera.parsing.formats import CALLS, OPENAI, REASONING, response_format
from tessera.parsing.reader import Reader
from tessera.parsing.response import Event, Message, ResponseFormat, ResponseParser
from tessera.parsing.values import arguments_of

WEATHER = Tool(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
    },
)
NOW = Tool("now")
TOOLS = (WEATHER, NOW)
PARIS = ("get_weather", {"city": "Paris", "days": 3})
ROME = ("get_weather", {"city": 'R"ö\\me\n}', "tags": ["a", "</tool_call>"]})

DS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)
P = "｜DSML｜"

# format, the text, its calls, its content
ANSWERS: list[tuple[str, str, list[tuple[str, Any]], str]] = [
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>', [PARIS], ""),
    (
        "hermes",
        'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>\n'
        '<tool_call>{"arguments": ' + json.dumps(ROME[1], ensure_ascii=False) + ', "name": "get_weather"}</tool_call>',
        [PARIS, ROME],
        "Let me see.",
    ),
    ("hermes", '<tool_call>{"name": "now"}</tool_call> done', [("now", {})], "done"),
    ("hermes", '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', [("now", {"a": 1})], ""),
    ("hermes", '<tool_call>\n{"nome": 1}\n</tool_call>', [], '<tool_call>\n{"nome": 1}\n</tool_call>'),
    ("hermes", "a <tool_call> is <b>", [], "a <tool_call> is <b>"),
    ("hermes", " plain text \n", [], " plain text \n"),
    (
        "qwen3_coder",
        "Sure.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>",
        [PARIS],
        "Sure.",
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n" + ROME[1]["city"] + '\n</parameter>\n<parameter=tags>\n["a", '
        '"</tool_call>"]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>',
        [ROME, ("now", {})],
        "",
    ),
    ("qwen3_coder", "<function=get_weather><parameter=city>\nx\n\n</parameter></function>", [("get_weather", {"city": "x\n"})], ""),
    ("qwen3_coder", "<tool_call>\nget_weather\n</tool_call>", [], "<tool_call>\nget_weather\n</tool_call>"),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}', [PARIS], ""),
    ("llama3_json", '<|python_tag|>{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}', [("now", {})] * 2, ""),
    ("llama3_json", '{"name": "now", "parameters": {}}\n{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}\n\n'
     '{"name": "now", "parameters": {}}; done', [("now", {}), PARIS, ("now", {})], "; done"),
    ("llama3_json", '{"name": "now"};\n{"answer": 1}; {"name": "now"}', [("now", {})], ';\n{"answer": 1}; {"name": "now"}'),
    ("llama3_json", '<|python_tag|>{"name": "now"}\n{"name": "now"}\n{"answer": 1}', [("now", {})] * 2, '{"answer": 1}'),
    ("llama3_json", '{"answer": {"city": "Paris"}}', [], '{"answer": {"city": "Paris"}}'),
    ("llama3_json", "{ is a brace", [], "{ is a brace"),
    ("llama4_pythonic", '[get_weather(city="Paris", days=3), now()]', [PARIS, ("now", {})], ""),
    (
        "llama4_pythonic",
        "<|python_start|>[get_weather(city='R\"ö\\\\me\\n}', tags=['a', \"</tool_call>\"])]<|python_end|>",
        [ROME],
        "",
    ),
    ("pythonic", "[1] is a footnote", [], "[1] is a footnote"),
    ("pythonic", '[now(a={"b": None, "c": [True, 1.5]})]', [("now", {"a": {"b": None, "c": [True, 1.5]}})], ""),
    ("mistral_list", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}, '
     '{"name": "now", "arguments": {}}]', [PARIS, ("now", {})], ""),
    ("mistral", 'Hm.[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 3}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}',
     [PARIS, ("now", {})], "Hm."),
    (
        "deepseek_v3",
        f'{DS[0]}{DS[2]}function{DS[4]}get_weather\n```json\n{{"city": "Paris", "days": 3}}\n```{DS[3]}\n'
        f"{DS[2]}function{DS[4]}now\n```json\n{{}}\n```{DS[3]}{DS[1]}",
        [PARIS, ("now", {})],
        "",
    ),
    (
        "deepseek_v31",
        f'x{DS[0]}{DS[2]}get_weather{DS[4]}{{"city": "Paris", "days": 3}}{DS[3]}{DS[2]}now{DS[4]}{{}}{DS[3]}{DS[1]}',
        [PARIS, ("now", {})],
        "x",
    ),
    (
        "deepseek_v32",
        f'<{P}function_calls>\n<{P}invoke name="get_weather">\n<{P}parameter name="city" string="true">Paris</{P}parameter>\n'
        f'<{P}parameter name="days" string="false">3</{P}parameter>\n</{P}invoke>\n<{P}invoke name="now">\n</{P}invoke>\n'
        f"</{P}function_calls>",
        [PARIS, ("now", {})],
        "",
    ),
    (
        "glm45",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        [PARIS, ("now", {})],
        "",
    ),
    ("glm45", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>null</arg_value><arg_key>units</arg_key>"
     "<arg_value>null</arg_value></tool_call>", [("get_weather", {"city": "null", "units": None})], ""),
    (
        "kimi_k2",
        'Ok<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris", '
        '"days": 3}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>'
        "<|tool_calls_section_end|>",
        [PARIS, ("now", {})],
        "Ok",
    ),
    ("granite", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]', [PARIS], ""),
    (
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>",
        [PARIS],
        "",
    ),
    ("gemma4", '<|tool_call>call:get_weather{city:<|"|>R"ö\\me\n}<|"|>,tags:[<|"|>a<|"|>,<|"|></tool_call><|"|>]}<tool_call|>',
     [ROME], ""),
    ("json", '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}', [PARIS], ""),
    ("json", '[{"name": "now", "arguments": {}}, {"arguments": {"city": "Paris", "days": 3}, "name": "get_weather"}]\n',
     [("now", {}), PARIS], ""),
    ("json", 'Sure:\n```json\n{"name": "now", "arguments": {}}\n```\nDone.', [("now", {})], "Sure:Done."),
    ("json", '<tool_call>\n{"name": "now"}\n</tool_call>', [("now", {})], ""),
    ("json", '{"name": "Bob", "arguments": {"age": 3}}', [], '{"name": "Bob", "arguments": {"age": 3}}'),
    ("json", 'Try\n```json\n{"name": "Bob"}\n```\nor\n```\nls\n```', [], 'Try\n```json\n{"name": "Bob"}\n```\nor\n```\nls\n```'),
    ("json", '[{"name": "Bob"}, {"name": "Ann"}]', [], '[{"name": "Bob"}, {"name": "Ann"}]'),
    (
        OPENAI,
        '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>'
        'json<|message|>{"city": "Paris", "days": 3}',
        [PARIS],
        "",
    ),
    (OPENAI, "<|channel|>commentary<|message|>First.<|end|><|start|>assistant<|channel|>final<|message|>Then.", [], "First.Then."),
    (OPENAI, "<|channel|>commentary to=now<|message|>{}<|call|>", [("now", {})], ""),
]  # fmt: skip


def format_of(name: str, reasoning: str = "none") -> ResponseFormat:
    found = response_format(name, reasoning, "")
    assert found is not None
    return found


def cuts(text: str) -> Iterator[list[str]]:
    """Whole, by single characters, in two at each place, and in random pieces."""
    yield [text]
    yield list(text)
    yield from ([text[:at], text[at:]] for at in range(1, len(text)))
    draw = random.Random(len(text))
    for _ in range(20):
        places = sorted({0, len(text), *(draw.randrange(len(text) + 1) for _ in range(9))})
        yield [text[a:b] for a, b in zip(places, places[1:], strict=False)]


def read(pieces: list[str], found: ResponseFormat, *, reasons: bool = False, tools: Any = TOOLS) -> list[Event]:
    parser = ResponseParser(found, tools, reasons=reasons)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish()


@pytest.mark.parametrize(
    ("name", "text", "calls", "content"), ANSWERS, ids=[f"{a[0]}-{n}" for n, a in enumerate(ANSWERS)]
)
def test_calls_and_text_are_what_the_model_meant(name: str, text: str, calls: list[Any], content: str) -> None:
    for pieces in cuts(text):
        message = Message.from_events(read(pieces, format_of(name)))
        assert [(call.name, json.loads(call.arguments)) for call in message.calls] == calls, pieces
        assert message.content == content, pieces
        assert len({call.id for call in message.calls}) == len(calls)


def test_a_family_is_tried_for_each_way_of_writing() -> None:
    assert {name for name, *_ in ANSWERS} == {*CALLS, OPENAI}
    assert {name for name, *_ in THOUGHTS} == {*REASONING, OPENAI}


@pytest.mark.parametrize("name", sorted({name for name, *_ in ANSWERS} - {OPENAI}))
def test_without_tools_everything_is_text(name: str) -> None:
    for other, text, _, _ in ANSWERS:
        if other == name:
            assert Message.from_events(read(list(text), format_of(name), tools=())) == Message(content=text)


def test_ids_are_what_templates_demand() -> None:
    (kimi,) = (text for name, text, *_ in ANSWERS if name == "kimi_k2")
    assert [call[0] for call in Message.from_events(read([kimi], format_of("kimi_k2"))).calls] == [
        "functions.get_weather:0", "functions.now:1",
    ]  # fmt: skip
    (mistral,) = (text for name, text, *_ in ANSWERS if name == "mistral")
    first, second = (call[0] for call in Message.from_events(read([mistral], format_of("mistral"))).calls)
    assert len(first) == 9
    assert first.isalnum()
    assert second == "abcdefghi"


def test_a_name_is_told_before_its_arguments_and_they_come_as_they_are_written() -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    parser = ResponseParser(format_of("hermes"), TOOLS)
    seen = [len(parser.feed(character)) for character in text]
    name_ends, closed = text.index('",') + 1, text.index("}}") + 1
    assert sum(seen[:name_ends]) == 1
    assert sum(seen[name_ends:closed]) > 12  # nearly each character of the arguments


# format, whether it begins within reasoning, the text, its reasoning, its content
THOUGHTS: list[tuple[str, bool, str, str, str]] = [
    ("deepseek_r1", True, "\nLet me\n\nsee.\n</think>\n\nYes.", "Let me\n\nsee.", "Yes."),
    ("deepseek_r1", True, "<think>\nSo.</think>Yes.", "So.", "Yes."),
    ("deepseek_r1", True, "never ends ", "never ends", ""),
    ("qwen3", False, "<think>\nHm < 5 </thin.\n</think>\n\nYes. \n", "Hm < 5 </thin.", "Yes. \n"),
    ("qwen3", False, "No thought.", "", "No thought."),
    ("qwen3", True, "\n</think>\n\nYes.", "", "Yes."),
    ("deepseek_v3", False, "<think>a</think>b", "a", "b"),
    ("glm45", False, "\n<think>a</think>\nb", "a", "b"),
    ("kimi_k2", False, "<think>a</think>b<think>c</think>d", "ac", "bd"),
    ("granite", False, "Here is my thought process: a\nHere is my response: b", "a", "b"),
    ("mistral", False, "[THINK]a[/THINK]b", "a", "b"),
    ("gemma4", False, "<|channel>thought\na<channel|>b", "a", "b"),
    (OPENAI, False, "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b", "a", "b"),
]


@pytest.mark.parametrize(("name", "begun", "text", "thought", "content"), THOUGHTS, ids=range(len(THOUGHTS)))
def test_reasoning_is_apart_from_the_answer(name: str, begun: bool, text: str, thought: str, content: str) -> None:
    found = format_of("none" if name != OPENAI else name, name)
    for pieces in cuts(text):
        message = Message.from_events(read(pieces, found, reasons=begun))
        assert (message.reasoning, message.content) == (thought, content), pieces


def test_calls_are_not_looked_for_within_reasoning() -> None:
    text = '<think>\n<tool_call>{"name": "now"}</tool_call>\n</think>\n<tool_call>{"name": "now"}</tool_call>'
    for pieces in cuts(text):
        message = Message.from_events(read(pieces, format_of("hermes", "qwen3")))
        assert len(message.calls) == 1
        assert message.reasoning == '<tool_call>{"name": "now"}</tool_call>'


@pytest.mark.parametrize("name", sorted({*CALLS, OPENAI}))
def test_no_text_is_lost_or_fails(name: str) -> None:
    """Random texts of markers, braces and words: what is not a call comes out as it went in, but for white space."""
    found = format_of(name, "qwen3" if name != OPENAI else OPENAI)
    draw = random.Random(7)
    parts = [*found.markers, "{", "}", "[", "]", '"', "\\", ":", ",", "name", '"name": "now"', '"arguments": {}', "now(", ")",
             " ", "\n", "x", "é", "call:now", "functions.now:0"]  # fmt: skip
    for _ in range(300):
        text = "".join(draw.choice(parts) for _ in range(draw.randrange(1, 30)))
        whole, single = (Message.from_events(read(pieces, found)) for pieces in ([text], list(text)))
        assert (whole.content, whole.reasoning) == (single.content, single.reasoning), text
        assert [call[1:] for call in whole.calls] == [call[1:] for call in single.calls], text
        if not whole.calls and name != OPENAI and "<think>" not in text:
            assert whole.content.split() == text.split(), text


HALF = "\\ud800"
HALVES = [
    ("hermes", f'<tool_call>{{"name": "now", "arguments": {{"a": "{HALF}"}}}}</tool_call>', "now"),
    ("hermes", f'<tool_call>{{"name": "{HALF}", "arguments": {{"a": "{HALF}"}}}}</tool_call>', HALF),
    ("hermes", f'<tool_call>{{"name": "now", "arguments": "{{\\"a\\": \\"{HALF}\\"}}"}}</tool_call>', "now"),
    ("pythonic", f'[now(a="{HALF}")]', "now"),
    ("qwen3_coder", f"<tool_call>\n<function=now>\n<parameter=a>\n[\"{HALF}\"]\n</parameter>\n</function>\n</tool_call>",
     "now"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "called"), HALVES, ids=range(len(HALVES)))
def test_half_of_a_pair_of_utf_16_stays_an_escape(name: str, text: str, called: str) -> None:
    for pieces in cuts(text):
        ((_, own, arguments, _),) = Message.from_events(read(pieces, format_of(name))).calls
        assert own.encode() == called.encode()
        assert HALF.encode() in arguments.encode()
        assert arguments_of(arguments) == {"arguments": arguments}


@pytest.mark.parametrize("name", ["json", "llama3_json", "pythonic"])
def test_calls_that_are_the_whole_answer_follow_reasoning(name: str) -> None:
    call = "[now()]" if name == "pythonic" else '{"name": "now", "arguments": {}}'
    for pieces in cuts(f"\n<think>\nHm.\n</think>\n\n{call}"):
        message = Message.from_events(read(pieces, format_of(name, "qwen3")))
        assert [call[1:3] for call in message.calls] == [("now", "{}")], pieces
        assert (message.reasoning, message.content) == ("Hm.", "")


def test_a_number_that_json_has_not_is_none() -> None:
    assert Message.from_events(read(["[now(a=1e999)]"], format_of("pythonic"))) == Message("[now(a=1e999)]")
    text = "<tool_call>\n<function=now>\n<parameter=a>\n1e999\n</parameter>\n</function>\n</tool_call>"
    ((_, _, arguments, _),) = Message.from_events(read([text], format_of("qwen3_coder"))).calls
    assert json.loads(arguments) == {"a": "1e999"}


@pytest.mark.parametrize("name", sorted({*CALLS, OPENAI}))
def test_text_is_looked_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the characters that are there whenever the parser goes on: were text held, they would grow with its
    square."""
    seen = 0
    fed: Counter[Reader] = Counter()
    feed = Reader.feed

    def counted(reader: Reader, text: str) -> None:
        nonlocal seen
        feed(reader, text)
        fed[reader] += len(text)
        seen += fed[reader] - reader.place

    monkeypatch.setattr(Reader, "feed", counted)
    found = format_of(name)
    begin = found.calls.begins[0] if found.calls is not None and found.calls.begins else "["
    size = 40_000
    for text in (
        "<" * size,
        begin * (size // len(begin)),
        begin + "{" * size,
        begin + '{"name": "now", "arguments": {"a": "' + "x" * size,
    ):
        seen = 0
        parser = ResponseParser(found, TOOLS)
        for at in range(0, len(text), 7):
            parser.feed(text[at : at + 7])
        parser.finish()
        assert seen < 5 * size, text[:40]
