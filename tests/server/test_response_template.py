"""A checkpoint's response_template through the server: no flag is needed, a flag wins, and no client gets an
error for it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tessera.server.settings import ServerSettings
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MODEL, FakeEngine, Script, byte_tokenizer
from tests.server.sse import read_stream
from tests.server.test_errors import check_error
from tests.server.test_tools import TOOLS, USER, WEATHER, tag_of

SPEC: dict[str, Any] = {
    "start_anchor": "<assistant>",
    "fields": {
        "thinking": {"open": "<plan>", "close": "</plan>"},
        "content": {"open": "<say>", "close": "</say>"},
        "tool_calls": {
            "open": "<act>", "close": "</act>", "repeats": True, "content": "json",
            "transform": {"function": {"name": "{content.tool}", "arguments": "{content.with}"}},
        },
    },
}  # fmt: skip
SAID = (
    '<plan>Look it up.</plan>\n<say>Let me see.</say><act>{"tool": "weather", "with": {"city": "Paris"}}</act>'
    '<act>{"tool": "now", "with": {}}</act>'
)


def engine(said: str, spec: Any = SPEC, **fields: Any) -> FakeEngine:
    return FakeEngine(byte_tokenizer(json.dumps(spec)), Script(pieces=said), **fields)


async def test_reasoning_text_and_calls_are_apart():
    async with in_process(engine(SAID)) as api:
        (choice,) = (await api.chat(tools=TOOLS)).json()["choices"]
        message = choice["message"]
        assert (message["reasoning"], message["content"]) == ("Look it up.", "Let me see.")
        assert [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]] == [
            ("weather", '{"city": "Paris"}'),
            ("now", "{}"),
        ]
        assert choice["finish_reason"] == "tool_calls"
        hidden = (await api.chat(tools=TOOLS, include_reasoning=False)).json()["choices"][0]["message"]
        assert "reasoning" not in hidden


async def test_a_stream_gives_the_same_piece_by_piece():
    async with on_socket(engine(SAID), ServerSettings()) as server, server.openai() as client:
        async with client.chat.completions.stream(model=MODEL, messages=[USER], tools=TOOLS) as helper:
            texts = [event.delta async for event in helper if event.type == "content.delta"]
            final = await helper.get_final_completion()
        assert "".join(texts) == "Let me see."
        assert len(texts) > 3
        calls = final.choices[0].message.tool_calls
        assert [(call.function.name, call.function.arguments) for call in calls] == [
            ("weather", '{"city": "Paris"}'),
            ("now", "{}"),
        ]


async def test_what_the_prompt_has_written_counts():
    template = "{% for m in messages %}<say>{{ m.content }}</say>{% endfor %}<assistant><plan>"
    async with in_process(engine("Hm.</plan><say>Yes.</say>", template=template)) as api:
        message = (await api.chat()).json()["choices"][0]["message"]
        assert (message["reasoning"], message["content"]) == ("Hm.", "Yes.")
        usage = (await api.chat()).json()["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] == len("Hm.</plan>")


async def test_other_routes_read_the_same():
    async with in_process(engine(SAID)) as api:
        response = (await api.post("/v1/responses", {"model": MODEL, "input": "Hi"})).json()
        assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
        answer = (await api.post("/v1/messages", {"model": MODEL, "max_tokens": 400, "messages": [USER]})).json()
        assert answer["content"][-1]["text"].startswith("Let me see.")


async def test_a_grammar_demands_what_the_template_reads():
    async with in_process(engine(SAID)) as api:
        await api.chat(tools=TOOLS, tool_choice="required")
        tags = tag_of(api)["tags"]
        assert [tag["begin"] for tag in tags] == [f'<act>{{"tool": "{name}", "with": ' for name in ("weather", "now")]
        assert {tag["end"] for tag in tags} == {"}</act>"}
        await api.chat(response_format={"type": "json_object"})
        assert (tag_of(api)["begin"], tag_of(api)["end"]) == ("<say>", "</say>")
        params = api.engine.calls[-1].params
        assert (params.reasoning.begin, params.reasoning.end) == ("<plan>", "</plan>")


async def test_what_cannot_be_demanded_is_refused_by_name():
    calls = {**SPEC["fields"]["tool_calls"], "open_pattern": "<act[^>]*>"}
    del calls["open"]
    spec = {**SPEC, "fields": {**SPEC["fields"], "tool_calls": calls}}
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    async with in_process(engine(SAID, spec)) as api:
        for fields, param in (
            ({"tools": [strict]}, "tools"),
            ({"tools": TOOLS, "parallel_tool_calls": False}, "tools"),
            ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ):
            message = check_error(await api.chat(**fields), 400, param)
            assert "response_template" in message
            assert "--tool-call-parser" in message
        assert not api.engine.calls
        message = (await api.chat(tools=TOOLS)).json()["choices"][0]["message"]
        assert len(message["tool_calls"]) == 2
    said = '<plan>Hm.</plan>{"name": "now", "arguments": {}}'
    async with in_process(engine(said, spec)) as api:  # a call that is demanded is JSON instead
        message = (await api.chat(tools=TOOLS, tool_choice="required")).json()["choices"][0]["message"]
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["now"]
        assert message["reasoning"] == "Hm."


async def test_output_of_no_sense_is_text():
    said = "<act>{broken</act></plan><say>a<act>[[[</say><act>"
    async with in_process(engine(said)) as api:
        whole = (await api.chat(tools=TOOLS)).json()["choices"][0]["message"]["content"]
        chunks = read_stream((await api.chat(tools=TOOLS, stream=True)).text)
        streamed = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
        assert whole == streamed == "<act>{broken</act>a<act>[[[<act>"


# ---- at the start


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.message) for record in caplog.records if "response_template" in record.message]


async def test_the_log_says_what_reads_answers(caplog):
    caplog.set_level(logging.INFO)
    async with in_process(engine("Hi")):
        assert logged(caplog) == [("INFO", "Answers are read by the checkpoint's response_template.")]
    caplog.clear()
    async with in_process(FakeEngine()):
        assert logged(caplog) == []


@pytest.mark.parametrize("settings", [{"tool_call_parser": "hermes"}, {"reasoning_parser": "none"}])
async def test_a_flag_wins(settings, caplog):
    caplog.set_level(logging.INFO)
    async with in_process(engine("<say>a</say>"), ServerSettings(**settings)) as api:
        assert (await api.chat()).json()["choices"][0]["message"]["content"] == "<say>a</say>"
    ((_, message),) = logged(caplog)
    assert message == "Answers are read as the flags say; the checkpoint's response_template is not used."


async def test_a_template_that_is_wrong_is_one_line_and_the_family_is_recognised(caplog):
    said = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    template = "{{ messages[0].content }}{# <tool_call> #}"
    async with in_process(engine(said, {"fields": 5}, template=template)) as api:
        assert len((await api.chat(tools=TOOLS)).json()["choices"][0]["message"]["tool_calls"]) == 1
    ((level, message),) = logged(caplog)
    assert level == "WARNING"
    reason, then = message.removeprefix("The checkpoint's response_template cannot be used: ").split(". ")
    assert reason == "fields must be an object of 1 to 32 regions"
    assert then == "Answers are read as those of the family 'hermes'."
