"""Answers read by a checkpoint's response_template: the same as by transformers' parser, however they are cut."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from transformers.utils.chat_parsing import ResponseParser as Theirs

from tessera.errors import ModelError
from tessera.parsing.calls import Tool
from tessera.parsing.forced import forced_calls
from tessera.parsing.formats import response_format
from tessera.parsing.response import Content, Event, Message, ResponseParser
from tessera.parsing.response_template.forcing import TemplateFormat, template_format
from tessera.parsing.response_template.spec import MAX_BYTES, load
from tessera.sampling_params import StructuredOutputsParams
from tessera.text.grammar import byte_tokenizer, compile_grammar
from tests.unit.parsing.response_templates import CALL, CHANNELS, CHATML, MARKED, QUOTED, TEMPLATES
from tests.unit.parsing.test_formats import NOW, WEATHER, cuts
from tests.unit.text.test_json_schema import drawn

TOOLS = (WEATHER, NOW)
PARIS = '{"name": "get_weather", "arguments": {"city": "Paris", "days": "3"}}'
CALLED = f"<tool_call>{PARIS}</tool_call>"

# template, the prompt's end, the text
ANSWERS: list[tuple[str, str, str]] = [
    ("chatml", "", "Hello there.\n"),
    ("chatml", "", f"<think>\nI < 5\n</think>\n\nSure.\n<tool_call>\n{PARIS}\n</tool_call>\n{CALLED}"),
    ("chatml", "<think>\n", "So it is.</think> Yes. <thin <|im_end|>"),
    ("chatml", "<think>\n\n</think>\n\n", " Yes."),
    ("chatml", "", f"<tool_call>{PARIS}"),
    ("chatml", "", "<think>never ends "),
    ("chatml", "", "Sure.\n<tool_call>\n{not json}\n</tool_call>\n More."),
    ("chatml", "", '<tool_call>{"nome": 1}</tool_call> \n <tool_call>[]</tool_call>'),
    ("marked", "", "dropped <plan> why </plan> dropped <say> a </say><say more>b <say></say>"),
    ("marked", "", '<act>[{"tool": "now", "with": {}}, {"tool": "get_weather", "with": {"days": "2"}}]</act>'),
    ("marked", "", '<act>[{"tool": "now", "with": {}}]</act> <say>x</say>'),
    ("marked", "", '<act>{"tool": "now"}</act>'),
    (
        "channels",
        "",
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.now "
         '<|constrain|>json<|message|>{"city": "Paris", "days": 3}<|call|>'),
    ),
    ("channels", "", "<|channel|>final<|message|>Yes.<|return|>"),
    ("channels", "<|channel|>final<|message|>Well, ", "yes."),
    (
        "tags",
        "",
        ("<think>a</think>\n\n b \n<tool_call>\n<function=get_weather>\n<parameter=city>\nR\"ö\\me\n</parameter>\n"
         "<parameter=days>\n3\n</parameter>\n<parameter=tags>x</parameter><parameter=tags>y</parameter>\n</function>\n"
         "</tool_call>\n"),
    ),
    ("tags", "", "<tool_call>\n<function=now>\n</function>\n</tool_call>"),
    ("quoted", "", 'Ok. <call>call:get_weather{city:<q>R"ö\\me\n}<q>,days:3,tags:[<q>a,b:<q>]}</call><end of turn>'),
    ("quoted", "", "<call>call:now{}</call><call>call:now{a:<q>}</call>"),
    ("quoted", "", "\x01<call>call:now{a:<q>\x01<q>}</call>"),
    ("lines", "", "thought</think><response>\n a \n</response>@get_weather( city = Rome ; days=7;x)"),
    ("lines", "<think>", "thought</think>@now()"),
]  # fmt: skip


def known(name: str) -> TemplateFormat:
    return template_format(json.dumps(TEMPLATES[name]), None, ())


def read(pieces: list[str], found: TemplateFormat, prompt: str = "", tools: Any = TOOLS) -> list[Event]:
    parser = ResponseParser(found, tools, prompt=prompt)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish()


def theirs(name: str, text: str, prompt: str = "") -> tuple[str, str, list[tuple[str, Any]]] | None:
    """Reasoning, content and calls by transformers; None for what is no call, where it raises or has something else.
    A region that comes again takes the place of the one before in its message, so the regions are joined."""
    tools = [{"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}} for tool in TOOLS]
    parser = Theirs(TEMPLATES[name], prompt, tools=tools)
    # What the prompt has written is not the model's.
    parser._body = ""
    try:
        events = parser.feed(text)
        events += parser.finalize()[1]
    except (ValueError, KeyError):
        return None
    texts: dict[str, list[str]] = {"content": [], "thinking": []}
    calls: list[tuple[str, Any]] = []
    names = {"reasoning": "thinking", "reasoning_content": "thinking"}
    for event in events:
        if event["type"] != "region_close":
            continue
        if event["field"] != "tool_calls":
            texts[names.get(event["field"], event["field"])].append(event["value"])
            continue
        for one in event["value"] if isinstance(event["value"], list) else [event["value"]]:
            function = one.get("function") if isinstance(one, dict) else None
            if not isinstance(function, dict) or "name" not in function:
                return None
            calls.append((function["name"], function.get("arguments", {})))
        if not event["value"]:
            return None
    join = "\n" if name == "marked" else ""
    return "".join(texts["thinking"]), join.join(texts["content"]), calls


def ours(message: Message) -> tuple[str, str, list[tuple[str, Any]]]:
    return message.reasoning, message.content, [(call.name, json.loads(call.arguments)) for call in message.calls]


@pytest.mark.parametrize(("name", "prompt", "text"), ANSWERS, ids=[f"{a[0]}-{n}" for n, a in enumerate(ANSWERS)])
def test_an_answer_is_read_as_transformers_reads_it_however_it_is_cut(name: str, prompt: str, text: str) -> None:
    expected = theirs(name, text, prompt)
    whole = ours(Message.from_events(read([text], known(name), prompt)))
    if expected is not None:
        assert whole == expected
    for pieces in cuts(text):
        assert ours(Message.from_events(read(pieces, known(name), prompt))) == whole, pieces


def test_each_template_has_calls_reasoning_and_content_among_its_answers() -> None:
    for name in TEMPLATES:
        read_ = [theirs(name, text, prompt) for own, prompt, text in ANSWERS if own == name]
        assert any(one is not None and one[1] for one in read_), name
        assert any(one is not None and one[2] for one in read_), name


def test_what_is_no_call_is_content_as_it_was_written() -> None:
    for text in (
        "Sure.\n<tool_call>\n{not json}\n</tool_call>\n More.",
        '<tool_call>{"nome": 1}</tool_call> \n x',
        '<tool_call>{"name": "now", "arguments": 5}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>',
        "<tool_call>" + "[" * 5000 + "</tool_call>",
        '<tool_call>{"name": "now"',
        "<tool_call>",
    ):
        assert Message.from_events(read([text], known("chatml"))) == Message(text)


def test_white_space_around_what_is_no_call_stays() -> None:
    for name in ("tags", "chatml", "quoted"):
        begin, end = (
            ("<call>call:now", "</call>") if name == "quoted" else ("<tool_call><function=now>", "</tool_call>")
        )
        text = f"a \n{begin}{{{end} \n b \n{begin}{{"
        tools = () if name == "tags" else TOOLS
        for pieces in cuts(text):
            assert Message.from_events(read(pieces, known(name), tools=tools)) == Message(text), pieces


def test_without_tools_nothing_is_a_call() -> None:
    text = f"<think>a</think>Sure. <tool_call>{PARIS}</tool_call> b"
    message = Message.from_events(read(list(text), known("chatml"), tools=()))
    assert message == Message(f"Sure. <tool_call>{PARIS}</tool_call> b", "a")


def test_a_call_has_the_model_s_own_id() -> None:
    calls = {**MARKED["fields"]["tool_calls"], "transform": {"name": "{tool}", "arguments": "{with}", "id": "{number}"}}
    spec = {**MARKED, "fields": {"tool_calls": calls}}
    found = template_format(json.dumps(spec), None, ())
    (call,) = Message.from_events(read(['<act>[{"tool": "now", "with": {}, "number": "a1"}]</act>'], found)).calls
    assert (call.id, call.name) == ("a1", "now")
    assert not found.forces


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_text_comes_as_it_is_written(name: str) -> None:
    begin = {"marked": "<say>", "channels": "<|channel|>final<|message|>", "lines": "</think><response>\n"}.get(
        name, ""
    )
    parser = ResponseParser(known(name), TOOLS)
    parser.feed(begin)
    for word in ("a", "b", "c"):
        assert parser.feed(word) == [Content(word)]


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_any_text_is_read_the_same_however_it_is_cut_and_never_fails(name: str) -> None:
    draw = random.Random(11)
    strings = load(json.dumps(TEMPLATES[name])).strings
    parts = [*(text.replace("\\", "") for text in strings), "<", "</", "{", "}", '"', "\\", ":", " ", "\n", "x", "é",
             '{"name": "now"}', "<function=now>", "call:now", "<|channel|>commentary to=functions.now<|message|>{}",
             "@now(", ")", "<parameter=a>", "</parameter>", "[]", "{}"]  # fmt: skip
    compared = 0
    for _ in range(400):
        text = "".join(draw.choice(parts) for _ in range(draw.randrange(1, 25)))
        whole, single = (ours(Message.from_events(read(pieces, known(name)))) for pieces in ([text], list(text)))
        assert whole == single, text
        expected = theirs(name, text)
        if expected is not None:
            compared += 1
            assert whole == expected, text
    assert compared > 100


# ---- time


@pytest.mark.parametrize(
    "pattern", [r"(?:a|aa)+$", r"(?:x+x+)+y", r"(?:foo){e<=3}(?:bar){e<=5}", r"(?P<name>(?:\w+\s*)+):"]
)
def test_a_pattern_that_takes_too_long_ends_the_reading_and_nothing_is_lost(pattern: str) -> None:
    spec = {"start_anchor": "A", "fields": {"content": {}, "tool_calls": {
        "open_pattern": pattern, "close": "<end>", "content": "json", "transform": CALL}}}  # fmt: skip
    found = template_format(json.dumps(spec), None, ())
    for letter in ("a", "x", "f", "word "):
        text = letter * 3000 + "!"
        for pieces in ([text], [text[at : at + 5] for at in range(0, len(text), 5)]):
            began = time.process_time()
            message = Message.from_events(read(pieces, found))
            assert time.process_time() - began < 15
            assert message.content == text


def test_a_call_whose_tags_take_too_long_is_content() -> None:
    args = {"tag_pattern": r"<(?P<key>\w+)>(?P<value>(?:\s*.*?\s*)*)</x>"}
    spec = {"start_anchor": "A", "fields": {"content": {}, "tool_calls": {
        "open_pattern": r"<call (?P<name>\w+)>", "close": "</call>", "content": "xml-inline", "content_args": args,
        "transform": CALL}}}  # fmt: skip
    text = "<call now>" + "<a> " * 2000 + "</call> after <call now></call>"
    began = time.process_time()
    assert Message.from_events(read([text], template_format(json.dumps(spec), None, ()))).content == text
    assert time.process_time() - began < 15


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_time_is_linear_in_the_answer_s_length(name: str) -> None:
    """Ten times the text takes about ten times as long: with the square of it, it would be a hundred times."""
    found = known(name)
    for part in ("<", "<tool_call>", "word ", "<think></think>", "<call>call:now", '{"a": "', "<|channel|>commentary",
                 "<q>", "<parameter=a>x"):  # fmt: skip
        took = []
        for size in (4_000, 40_000):
            text = part * (size // len(part))
            pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
            best = min(_seconds(lambda pieces=pieces: read(pieces, found)) for _ in range(2))
            took.append(best)
        assert took[1] < 30 * took[0] + 0.02, (part, took)


def _seconds(run: Any) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


# ---- what a grammar demands

GRAMMARS = [
    ("chatml", "<tool_call><think>"),
    ("chatml", "<tool_call>"),
    ("tags", "<function=<think>"),
    ("channels", "<|channel|>"),
    ("marked", ""),
    ("chatml", ""),
]


@pytest.mark.parametrize(("name", "chat_template"), GRAMMARS)
def test_what_a_grammar_forces_is_read(name: str, chat_template: str) -> None:
    """Written as the family is, or as the template's own markers suggest."""
    family = response_format("auto", "auto", chat_template)
    found = template_format(json.dumps(TEMPLATES[name]), family, ())
    assert found.forces
    assert found.family is family
    assert found.calls is not None
    closed = {"type": "object", **(WEATHER.parameters or {}), "additionalProperties": False}
    tools = (Tool("get_weather", closed, strict=True), Tool("now", {"type": "object", "properties": {}}, strict=True))
    form = forced_calls(found.calls, tools, required=True, parallel=True)
    tag = StructuredOutputsParams(structural_tag={"type": "structural_tag", "format": form})
    matcher = compile_grammar(tag, byte_tokenizer())
    draw = random.Random(5)
    for _ in range(20):
        text = drawn(matcher.deep_copy(), draw, ["</parameter>\n"]).decode()
        message = Message.from_events(read([text], found, tools=tools))
        assert message.content.strip() == "", text
        assert message.calls, text
        assert {call.name for call in message.calls} <= {"now", "get_weather"}, text


def test_an_answer_s_own_format_stands_between_the_template_s_markers() -> None:
    found = known("marked")
    assert found.marks_answers
    assert found.answer({"type": "any_text"}) == {
        "type": "tag", "begin": "<say>", "content": {"type": "any_text"}, "end": "</say>",
    }  # fmt: skip
    assert not known("chatml").marks_answers


def test_what_cannot_be_forced_is_said() -> None:
    assert not known("tags").forces
    assert not known("quoted").forces
    recognised = response_format("auto", "auto", "[TOOL_CALLS]")
    assert not template_format(json.dumps(QUOTED), recognised, ()).forces


def test_special_tokens_are_kept_where_the_template_names_them() -> None:
    tokens = ["<|im_end|>", "<|channel|>", "<|call|>", "<|other|>", "<q>"]
    assert template_format(json.dumps(CHANNELS), None, tokens).markers == ("<|channel|>", "<|call|>")
    assert template_format(json.dumps(QUOTED), None, tokens).markers == ("<q>",)


# ---- templates that are wrong

WRONG: list[tuple[Any, str]] = [
    (5, "must be an object"),
    ({**CHATML, "version": 2}, "its version is not 1"),
    ({**CHATML, "more": 1}, "it has the unknown key more"),
    ({**CHATML, "defaults": []}, "defaults must be an object"),
    ({**CHATML, "fields": {}}, "fields must be an object"),
    ({"fields": CHATML["fields"]}, "start_anchor or start_anchor_pattern is missing"),
    ({**CHATML, "start_anchor": ""}, "start_anchor must be a text"),
    ({**CHATML, "fields": {"content": 5}}, "fields.content must be an object"),
    ({**CHATML, "fields": {"content": {"opens": "x"}}}, "fields.content has the unknown key opens"),
    ({**CHATML, "fields": {"content": {}, "thinking": {}}}, "more than one field"),
    ({**CHATML, "fields": {"a": {"open": "x", "open_pattern": "x"}}}, "cannot both be there"),
    ({**CHATML, "fields": {"a": {"open_pattern": "(x"}}}, "fields.a.open_pattern is no pattern"),
    ({**CHATML, "fields": {"a": {"open_pattern": "((a{999}){999}){999}"}}}, "is too large"),
    ({**CHATML, "fields": {"a": {"open_pattern": "a{" + "9" * 5000 + "}"}}}, "is too large"),
    ({**CHATML, "fields": {"a": {"open_pattern": "(?P<b>x)"}}}, "fields.a.transform is missing"),
    ({**CHATML, "fields": {"a": {"open": []}}}, "fields.a.open must be a text"),
    ({**CHATML, "fields": {"a": {"content": "yaml"}}}, "fields.a.content must be one of text"),
    ({**CHATML, "fields": {"a": {"join": ""}}}, "fields.a.join must be a text, and needs repeats"),
    ({**CHATML, "fields": {"a": {"transform_each": True}}}, "fields.a.transform_each"),
    ({**CHATML, "fields": {"a": {"transform": "x {content}"}}}, "fields.a.transform may have"),
    ({**CHATML, "fields": {"a": {"content": "xml-inline"}}}, "fields.a.content_args.tag_pattern must be a text"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "reason"), WRONG, ids=range(len(WRONG)))
def test_a_template_that_is_wrong_is_refused_by_name(spec: Any, reason: str) -> None:
    with pytest.raises(ModelError, match=".*") as refused:
        load(json.dumps(spec))
    assert reason in str(refused.value)


def test_transformers_refuses_them_too() -> None:
    """But for what it only finds when it parses, and for what is refused for its size."""
    later = ("is too large", "tag_pattern")
    for spec, reason in WRONG:
        if not reason.endswith(later) and "tag_pattern" not in reason:
            with pytest.raises(ValueError, match="."):
                Theirs(spec, "")


def test_a_template_has_a_largest_size() -> None:
    with pytest.raises(ModelError, match="more than"):
        load(json.dumps({**CHATML, "defaults": {"x": "y" * MAX_BYTES}}))
