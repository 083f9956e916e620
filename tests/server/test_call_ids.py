"""Calls and their results belong together by id, as far as each API's own server demands it."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.server.settings import ServerSettings
from tests.server.conftest import in_process
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.test_errors import check_error

HERMES = ServerSettings(tool_call_parser="hermes")
TOOL = {"type": "function", "name": "now", "parameters": {"type": "object"}}
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
USER = {"role": "user", "content": "q"}


def call(call_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "now", "arguments": "{}", **more}


def output(call_id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "x"}


SQL = {"type": "custom_tool_call", "call_id": "c", "name": "sql", "input": "x"}
ITEMS: list[tuple[list[dict[str, Any]], str]] = [
    ([USER, output("never")], "No tool call found for function call output with call_id never."),
    ([USER, output("a"), call("a")], "No tool call found for function call output with call_id a."),
    ([{"type": "custom_tool_call_output", "call_id": "c", "output": "x"}],
     "No tool call found for custom tool call output with call_id c."),
    ([USER, call("a"), call("b"), output("a")], "No tool output found for function call b."),
    ([USER, call("a")], "No tool output found for function call a."),
    ([USER, SQL, USER], "No tool output found for custom tool call c."),
    ([USER, call("a"), USER, output("a")], ""),
    ([USER, call("a"), call("b"), output("b"), output("a"), USER], ""),
    ([USER, SQL, {"type": "custom_tool_call_output", "call_id": "c", "output": "x"}], ""),
    ([USER, call("a", status="incomplete"), USER], ""),
]  # fmt: skip


@pytest.mark.parametrize(("items", "message"), ITEMS, ids=range(len(ITEMS)))
async def test_outputs_need_calls_and_calls_need_outputs_in_responses(items: Any, message: str) -> None:
    async with in_process(FakeEngine(), HERMES) as api:
        answer = await api.post("/v1/responses", {"model": MODEL, "input": items})
        if message:
            assert check_error(answer, 400, "input") == message
        else:
            assert answer.status_code == 200


async def test_calls_of_earlier_responses_count() -> None:
    async with in_process(FakeEngine(script=Script(pieces=CALL)), HERMES) as api:
        asked = {"model": MODEL, "tools": [TOOL]}
        first = (await api.post("/v1/responses", {**asked, "input": "q"})).json()
        call_id, before = first["output"][0]["call_id"], {**asked, "previous_response_id": first["id"]}
        left = await api.post("/v1/responses", {**before, "input": "never mind"})
        assert check_error(left, 400, "input") == f"No tool output found for function call {call_id}."
        assert (await api.post("/v1/responses", {**before, "input": [output(call_id)]})).status_code == 200


def used(*ids: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": one, "name": "now", "input": {}} for one in ids],
    }


def results(*ids: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": one, "content": "x"} for one in ids]}


WITHOUT, UNEXPECTED = "tool_use ids were found without tool_result blocks", "unexpected tool_use_id in a tool_result"
MESSAGES: list[tuple[list[dict[str, Any]], str, str]] = [
    ([USER, results("a")], UNEXPECTED, "messages[1].content[0]"),
    ([USER, used("a"), USER], WITHOUT, "messages[1]"),
    ([USER, used("a", "b"), results("a")], WITHOUT, "messages[1]"),
    ([USER, used("a")], WITHOUT, "messages[1]"),
    ([USER, used("a"), results("a"), {"role": "assistant", "content": "ok"}, results("a")], UNEXPECTED,
     "messages[4].content[0]"),
    ([USER, used("a"), results("a"), USER], "", ""),
    ([USER, used("a"), used("b"), results("b"), results("a"), USER], "", ""),
    ([USER, used("a"), {"role": "system", "content": "s"}, results("a")], "", ""),
    ([USER, used("a"), results("a"), used("b"), results("b")], "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "said", "place"), MESSAGES, ids=range(len(MESSAGES)))
async def test_results_follow_their_calls_in_messages(messages: Any, said: str, place: str) -> None:
    async with in_process(FakeEngine(), HERMES) as api:
        body = {"model": MODEL, "messages": messages}
        answer = await api.post("/v1/messages", {**body, "max_tokens": 9})
        if said:
            assert answer.status_code == 400
            assert answer.json()["error"]["message"].startswith(f"{place}: {said}")
        else:
            assert answer.status_code == 200
        assert (await api.post("/v1/messages/count_tokens", body)).status_code == 200  # parts of a chat are counted too


async def test_a_chat_completion_goes_by_its_messages_alone() -> None:
    """Agents that were interrupted, or that forget what is long ago, send such chats to servers that take them."""
    asked = {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    said = {"role": "assistant", "tool_calls": [asked]}
    async with in_process(FakeEngine(), HERMES) as api:
        for messages in ([USER, said, USER], [USER, {"role": "tool", "tool_call_id": "z", "content": "x"}, USER]):
            assert (await api.chat(messages=messages)).status_code == 200
