"""Ollama's API, by hand as its tools send it, and by its own client."""

from __future__ import annotations

import json
from typing import Any

import ollama
import pytest

from tessera.errors import EngineStepError
from tessera.server.settings import ServerSettings
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MODEL, FakeEngine, Script

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "W",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALLS = 'Hm.\n</think>\n\nSee.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
THINKING = ServerSettings(tool_call_parser="hermes", reasoning_parser="deepseek_r1")
USER = {"role": "user", "content": "Hi"}


def engine(said: str = "Hello.", **script: Any) -> FakeEngine:
    return FakeEngine(script=Script(pieces=said, **script))


async def test_its_client_chats():
    async with on_socket(engine(CALLS), THINKING) as server, ollama.AsyncClient(host=server.url) as client:
        whole = await client.chat(
            model=MODEL, messages=[USER], tools=[WEATHER], options={"num_predict": 300, "seed": 5}
        )
        assert (whole.message.content, whole.message.thinking) == ("See.", "Hm.")
        (call,) = whole.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("weather", {"city": "Paris"})
        assert (whole.done, whole.done_reason) == (True, "stop")
        assert (whole.prompt_eval_count, whole.eval_count) == (len(server.engine.calls[0].prompt), len(CALLS))
        params = server.engine.calls[0].params
        assert (params.max_tokens, params.seed) == (300, 5)
        parts = [part async for part in await client.chat(model=MODEL, messages=[USER], tools=[WEATHER], stream=True)]
        assert "".join(part.message.content or "" for part in parts) == "See."
        assert "".join(part.message.thinking or "" for part in parts) == "Hm."
        calls = [call for part in parts for call in part.message.tool_calls or []]
        assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", {"city": "Paris"})]
        assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


async def test_its_client_generates_and_lists():
    async with on_socket(engine()) as server, ollama.AsyncClient(host=server.url) as client:
        whole = await client.generate(model=f"{MODEL}:latest", prompt="Hi", system="Be brief.")
        assert whole.response == "Hello."
        assert server.engine.tokenizer.decode(server.engine.calls[0].prompt) == (
            "<system>Be brief.</system><user>Hi</user><assistant>"
        )
        parts = [part async for part in await client.generate(model=MODEL, prompt="Hi", stream=True)]
        assert "".join(part.response for part in parts) == "Hello."
        assert [model.model for model in (await client.list()).models] == [f"{MODEL}:latest"]
        assert [model.model for model in (await client.ps()).models] == [f"{MODEL}:latest"]
        shown = await client.show(MODEL)
        assert shown.capabilities == ["completion", "tools"]


async def test_lines_are_json_and_the_default_is_a_stream():
    async with in_process(engine()) as api:
        response = await api.post("/api/chat", {"model": MODEL, "messages": [USER]})
        assert response.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in response.text.splitlines()]
        assert lines[-1]["done_reason"] == "stop"
        assert "".join(line["message"]["content"] for line in lines) == "Hello."
        assert (await api.client.get("/api/version")).json()["version"]


async def test_an_answer_may_have_a_schema():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with in_process(engine('{"a": 1}')) as api:
        for form, kind in ((schema, "json"), ("json", "json_object")):
            await api.post("/api/chat", {"model": MODEL, "messages": [USER], "format": form, "stream": False})
            assert api.engine.calls[-1].params.structured_outputs.kind == kind


async def test_results_of_tools_follow_their_calls():
    past = [
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "weather", "arguments": {"x": "Paris"}}}],
        },
        {"role": "tool", "content": "Sunny", "tool_name": "weather"},
    ]
    async with in_process(engine(), THINKING) as api:
        assert (await api.post("/api/chat", {"model": MODEL, "messages": past, "tools": [WEATHER]})).status_code == 200
        assert api.engine.tokenizer.decode(api.engine.calls[0].prompt) == (
            "<user>Hi</user><assistant>[weather Paris]</assistant><tool>Sunny</tool>TOOLS<assistant>"
        )


WRONG: list[tuple[str, dict[str, Any], int, str]] = [
    ("/api/chat", {"model": "other", "messages": [USER]}, 404, "does not exist"),
    ("/api/chat", {"model": MODEL, "messages": []}, 400, "messages"),
    ("/api/chat", {"model": MODEL, "messages": [{**USER, "images": ["x"]}]}, 400, "images are not supported"),
    ("/api/chat", {"model": MODEL, "messages": [USER], "format": "xml"}, 400, "format must be json"),
    (
        "/api/chat",
        {"model": MODEL, "messages": [USER], "format": {"not": {}}},
        400,
        "format cannot be used: no value is valid by it",
    ),
    ("/api/chat", {"model": MODEL, "messages": [USER], "options": {"mirostat": 1}}, 400, "options.mirostat"),
    ("/api/chat", {"model": MODEL, "messages": [USER], "options": {"num_predict": 0}}, 400, "options.num_predict"),
    ("/api/chat", {"model": MODEL, "messages": [USER], "options": {"temperature": "hot"}}, 400, "temperature"),
    ("/api/generate", {"model": MODEL, "prompt": "x", "raw": True}, 400, "use /v1/completions"),
    ("/api/generate", {"model": MODEL, "prompt": "x", "suffix": "y"}, 400, "suffix is not supported"),
    ("/api/show", {"model": "other"}, 404, "does not exist"),
    ("/api/pull", {"model": "other"}, 404, "not served"),
]


@pytest.mark.parametrize(("path", "body", "status", "reason"), WRONG, ids=range(len(WRONG)))
async def test_what_is_wrong_is_said_in_ollama_s_form(path, body, status, reason):
    async with in_process(engine(), THINKING) as api:
        response = await api.post(path, body)
        assert response.status_code == status
        assert set(response.json()) == {"error"}
        assert reason in response.json()["error"]
        assert not api.engine.calls


async def test_an_error_in_a_stream_is_a_line():
    async with in_process(engine(error=EngineStepError("x"), error_at=2)) as api:
        response = await api.post("/api/chat", {"model": MODEL, "messages": [USER]})
        assert set(json.loads(response.text.splitlines()[-1])) == {"error"}


async def test_a_body_need_not_say_that_it_is_json_unless_a_web_page_sends_it():
    body = json.dumps({"model": MODEL, "messages": [USER], "stream": False}).encode()
    async with in_process(engine()) as api:
        for headers in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):
            assert (await api.client.post("/api/chat", content=body, headers=headers)).status_code == 200
            for name in ("Origin", "Sec-Fetch-Site"):
                response = await api.client.post("/api/chat", content=body, headers={**headers, name: "cross-site"})
                assert response.status_code == 415
        assert (await api.client.post("/v1/chat/completions", content=body)).status_code == 415
