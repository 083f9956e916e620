"""Tools with a model whose own way of calling them is not known: it is told of them in words, its calls are JSON, and
they are read on every API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tessera.server.settings import ServerSettings
from tests.server.conftest import Api, in_process
from tests.server.fake_engine import MODEL, FakeEngine, FakeInfo, Script
from tests.server.sse import read_stream

# As SmolLM2's: no tools, no calls, any role.
CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHATML
)
WITH_TOOLS = "{{ tools | tojson }}" + CHATML
USER = {"role": "user", "content": "Weather?"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "W", "parameters": PARAMETERS}}
NOW = {"type": "function", "function": {"name": "now"}}
ARGUMENTS = '{"city": "Paris"}'
CALL = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'


def engine(said: str, template: str = CHATML) -> FakeEngine:
    return FakeEngine(script=Script(pieces=said), template=template, info=FakeInfo(max_model_len=10_000))


def prompt_of(api: Api) -> str:
    return api.engine.tokenizer.decode(api.engine.calls[-1].prompt)


def form_of(api: Api) -> Any:
    asked = api.engine.calls[-1].params.structured_outputs
    return None if asked is None else json.loads(asked.structural_tag)["format"]


async def test_the_model_is_told_of_its_tools_in_words() -> None:
    async with in_process(engine("Hello.")) as api:
        answer = (
            await api.chat(messages=[{"role": "system", "content": "Be brief."}, USER], tools=[WEATHER, NOW])
        ).json()
        assert answer["choices"][0]["message"]["content"] == "Hello."
        system, user = prompt_of(api).removesuffix("\n<|assistant|>").split("\n<|user|>")
        assert user == "Weather?"
        assert system.startswith("<|system|>Be brief.\n\nYou can call these functions.")
        assert json.dumps(WEATHER["function"]) in system.splitlines()
        assert "answer as usual" in system
        assert form_of(api) is None
        await api.chat(messages=[USER], tools=[NOW], tool_choice="required")
        assert "answer as usual" not in prompt_of(api)
        await api.chat(messages=[USER], tools=[NOW], tool_choice="none")
        assert prompt_of(api) == "<|user|>Weather?\n<|assistant|>"
    async with in_process(engine("Hello.", NO_SYSTEM)) as api:
        await api.chat(messages=[USER], tools=[NOW])
        assert prompt_of(api).startswith("<|user|>You can call")
        assert prompt_of(api).endswith("\n\nWeather?\n<|assistant|>")
    async with in_process(engine("Hello.", WITH_TOOLS)) as api:
        await api.chat(messages=[USER], tools=[NOW])
        assert prompt_of(api) == f"{json.dumps([NOW])}<|user|>Weather?\n<|assistant|>"


async def test_earlier_calls_and_results_are_told_in_words() -> None:
    function = {"name": "weather", "arguments": ARGUMENTS}
    calls = [{"id": one, "type": "function", "function": function} for one in "ab"]
    messages = [
        USER,
        {"role": "assistant", "content": "Well.", "tool_calls": calls[:1]},
        {"role": "tool", "tool_call_id": "a", "content": "Sunny"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "z", "content": [{"type": "text", "text": "?"}]},
    ]
    async with in_process(engine("Hello.")) as api:
        assert (await api.chat(messages=messages)).status_code == 200
        assert prompt_of(api) == (
            f"<|user|>Weather?\n<|assistant|>Well.\n\n{CALL}\n<|user|>weather returned:\n\nSunny\n"
            f"<|assistant|>[{CALL}, {CALL}]\n<|user|>The function returned:\n?\n<|assistant|>"
        )


async def test_a_demanded_call_is_json_and_ends_the_answer() -> None:
    named = {"type": "function", "function": {"name": "now"}}
    async with in_process(engine(CALL)) as api:
        for fields, several in (({"tool_choice": "required"}, True), ({"tool_choice": named}, False)):
            await api.chat(tools=[WEATHER, NOW], **fields)
            kinds = [one["type"] for one in form_of(api).get("elements", [form_of(api)])]
            begins = json.dumps(form_of(api))
            assert ('"["' in begins) is several
            assert "tag" in kinds or "or" in kinds
        strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
        await api.chat(tools=[strict])
        assert form_of(api)["elements"][0]["elements"][1] == {"type": "any_text"}


async def ways(api: Api, *, stream: bool) -> dict[str, tuple[str, Any, str]]:
    """The name, the arguments and the reason of an answer's only call, by path."""
    fields = {"model": MODEL, "stream": stream}
    function, found = {"type": "function", **WEATHER["function"]}, {}
    answer = await api.chat(tools=[WEATHER], tool_choice="required", stream=stream)
    if stream:
        chunks = [chunk["choices"][0] for chunk in read_stream(answer.text)]
        calls = [call["function"] for chunk in chunks for call in chunk["delta"].get("tool_calls", ())]
        said = calls[0]["name"], "".join(call["arguments"] for call in calls), chunks[-1]["finish_reason"]
    else:
        choice = answer.json()["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        said = call["function"]["name"], call["function"]["arguments"], choice["finish_reason"]
    found["/v1/chat/completions"] = (said[0], json.loads(said[1]), said[2])
    body = {**fields, "input": "q", "tools": [function], "tool_choice": "required"}
    text = (await api.post("/v1/responses", body)).text
    response = json.loads(text if not stream else text.split("data: ")[-1])
    response = response.get("response", response)
    (item,) = response["output"]
    found["/v1/responses"] = (item["name"], json.loads(item["arguments"]), response["status"])
    tool = {"name": "weather", "input_schema": PARAMETERS}
    body = {**fields, "max_tokens": 200, "messages": [USER], "tools": [tool], "tool_choice": {"type": "any"}}
    text = (await api.post("/v1/messages", body)).text
    if stream:
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        (name,) = [event["content_block"]["name"] for event in events if event["type"] == "content_block_start"]
        parts = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
        reason = next(event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta")
        found["/v1/messages"] = (name, json.loads("".join(parts)), reason)
    else:
        message = json.loads(text)
        (block,) = message["content"]
        found["/v1/messages"] = (block["name"], block["input"], message["stop_reason"])
    text = (await api.post("/api/chat", {**fields, "messages": [USER], "tools": [WEATHER]})).text
    lines = [json.loads(line) for line in text.splitlines()]
    (call,) = [call["function"] for line in lines for call in line["message"].get("tool_calls", ())]
    found["/api/chat"] = (call["name"], call["arguments"], lines[-1]["done_reason"])
    return found


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_calls_are_read_on_every_api(stream: bool) -> None:
    wanted = ("weather", json.loads(ARGUMENTS))
    for said in (CALL, f"```json\n{CALL}\n```"):
        async with in_process(engine(said)) as api:
            assert await ways(api, stream=stream) == {
                "/v1/chat/completions": (*wanted, "tool_calls"),
                "/v1/responses": (*wanted, "completed"),
                "/v1/messages": (*wanted, "tool_use"),
                "/api/chat": (*wanted, "stop"),
            }


async def test_json_that_names_no_tool_is_the_answer() -> None:
    said = '{"name": "Paris", "arguments": []}'
    async with in_process(engine(said)) as api:
        message = (await api.chat(tools=[WEATHER])).json()["choices"][0]["message"]
        assert message["content"] == said
        assert "tool_calls" not in message or not message["tool_calls"]


async def test_a_demanded_call_needs_no_parser() -> None:
    async with in_process(engine(CALL), ServerSettings(tool_call_parser="none")) as api:
        message = (await api.chat(tools=[WEATHER], tool_choice="required")).json()["choices"][0]["message"]
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather"]
        assert prompt_of(api).startswith("<|system|>You can call these functions.")
        assert (await api.chat(tools=[WEATHER])).json()["error"]["param"] == "tools"


async def test_an_operator_may_choose_it() -> None:
    settings = ServerSettings(tool_call_parser="json")
    async with in_process(engine(CALL, "<tool_call>" + CHATML), settings) as api:
        (call,) = (await api.chat(tools=[WEATHER])).json()["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "weather"
