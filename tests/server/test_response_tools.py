"""The tools of a response besides plain functions: custom ones, those in a namespace, and searches of the web."""

from __future__ import annotations

import json

import pytest
from openai.types.responses import Response

from tessera.server.settings import ServerSettings
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MODEL
from tests.server.test_errors import check_error
from tests.server.test_responses import WEATHER, engine, events_of, prompt_of

SPACE = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [WEATHER]}
SEARCH = {"type": "web_search", "external_web_access": True}
CALLS = '<tool_call>\n{"name": "crm__weather", "arguments": {"x": "Paris"}}\n</tool_call>'
HERMES = ServerSettings(tool_call_parser="hermes")


async def test_a_custom_tool_is_called_with_a_text():
    said = '<tool_call>\n{"name": "sql", "arguments": {"input": "SELECT \\"a\\""}}\n</tool_call>'
    form = {"type": "grammar", "syntax": "regex", "definition": r'SELECT "\w+"'}
    tool = {"type": "custom", "name": "sql", "format": form}
    async with on_socket(engine(said), HERMES) as server, server.openai() as client:
        response = await client.responses.create(model=MODEL, input="Ask", tools=[tool], tool_choice=tool)
        (call,) = response.output
        assert (call.type, call.name, call.input) == ("custom_tool_call", "sql", 'SELECT "a"')
        asked = json.loads(server.engine.calls[0].params.structured_outputs.structural_tag)["format"]
        assert asked["tags"][0]["content"]["elements"][1]["elements"][1]["pattern"] == form["definition"]
        result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "5"}
        items = [{"role": "user", "content": "Ask"}, call.model_dump(exclude_none=True), result]
        await client.responses.create(model=MODEL, input=items, tools=[tool])
    async with in_process(engine(said), HERMES) as api:
        body = {"model": MODEL, "input": "Ask", "tools": [tool], "stream": True}
        events = events_of((await api.post("/v1/responses", body)).text)
        deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
        (done,) = [event["input"] for event in events if event["type"] == "response.custom_tool_call_input.done"]
        assert "".join(deltas) == done == events[-1]["response"]["output"][0]["input"] == 'SELECT "a"'
        again = events_of((await api.client.get(f"/v1/responses/{events[-1]['response']['id']}?stream=true")).text)
        texts = [event["delta"] for event in again if event["type"] == "response.custom_tool_call_input.delta"]
        assert texts == [done]
        assert again[-1]["response"] == events[-1]["response"]
        wrong = {**tool, "format": {**form, "syntax": "other"}}
        check_error(await api.post("/v1/responses", {**body, "tools": [wrong]}), 400, "tools[0].format")


async def test_a_tool_in_a_namespace_is_called_by_its_own_name():
    async with on_socket(engine(CALLS), HERMES) as server, server.openai() as client:
        asked = {"model": MODEL, "input": "Weather?", "tools": [SPACE]}
        response = await client.responses.create(**asked)
        (call,) = response.output
        assert (call.type, call.namespace, call.name) == ("function_call", "crm", "weather")
        async with client.responses.stream(**asked) as stream:
            async for _ in stream:
                pass
            (streamed,) = (await stream.get_final_response()).output
        assert (streamed.namespace, streamed.name, streamed.arguments) == ("crm", "weather", call.arguments)
        items = [{"role": "user", "content": "Weather?"}, call.model_dump(exclude_none=True)]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"})
        await client.responses.create(model=MODEL, input=items, tools=[SPACE])
        assert "<assistant>[crm__weather Paris]</assistant><tool>Sunny</tool>TOOLS" in prompt_of(server)


async def test_items_of_a_stream_have_the_namespace_from_the_beginning():
    async with in_process(engine(CALLS), HERMES) as api:
        body = {"model": MODEL, "input": "Weather?", "tools": [SPACE], "stream": True}
        events = events_of((await api.post("/v1/responses", body)).text)
        items = [event["item"] for event in events if event["type"].startswith("response.output_item.")]
        assert [(item["namespace"], item["name"]) for item in items] == [("crm", "weather")] * 2


async def test_a_search_of_the_web_is_left_out_beside_tools_that_the_client_runs():
    async with in_process(engine(), HERMES) as api:
        body = {"model": MODEL, "input": "Weather?", "tools": [SEARCH, WEATHER]}
        response = (await api.post("/v1/responses", body)).json()
        assert response["tools"] == [WEATHER]
        Response.model_validate(response)
        wanted = {**body, "tool_choice": {"type": "web_search"}}
        check_error(await api.post("/v1/responses", wanted), 400, "tool_choice")


async def test_an_image_that_a_tool_returns_is_named_to_the_model():
    output = [{"type": "input_text", "text": "Here:"}, {"type": "input_image", "image_url": "data:image/png;base64,"}]
    items = [
        {"role": "user", "content": "Weather?"},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"x": "Paris"}'},
        {"type": "function_call_output", "call_id": "c", "output": output},
    ]
    async with in_process(engine(), HERMES) as api:
        assert (await api.post("/v1/responses", {"model": MODEL, "input": items})).status_code == 200
        assert "<tool>Here:\n[An image, which this model cannot see]</tool>" in prompt_of(api)


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview", "web_search_2025_08_26"])
async def test_a_search_of_the_web_alone_is_refused(kind):
    async with in_process(engine(), HERMES) as api:
        body = {"model": MODEL, "input": "Weather?", "tools": [{"type": kind}]}
        check_error(await api.post("/v1/responses", body), 400, "tools[0]")


async def test_a_choice_among_allowed_tools():
    other = {**WEATHER, "name": "other"}
    async with in_process(engine(), HERMES) as api:
        choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
        body = {"model": MODEL, "input": "Weather?", "tools": [WEATHER, other], "tool_choice": choice}
        assert (await api.post("/v1/responses", body)).status_code == 200
        tag = json.loads(api.engine.calls[0].params.structured_outputs.structural_tag)
        assert "other" in json.dumps(tag)
        assert "weather" not in json.dumps(tag)


CHOSEN = {"type": "function", "name": "weather", "namespace": "crm"}


@pytest.mark.parametrize("choice", [CHOSEN, {"type": "allowed_tools", "mode": "required", "tools": [CHOSEN]}])
async def test_a_choice_of_a_tool_in_a_namespace_names_both(choice):
    other = {"type": "namespace", "name": "erp", "tools": [WEATHER]}
    async with in_process(engine(CALLS), HERMES) as api:
        body = {"model": MODEL, "input": "Weather?", "tools": [WEATHER, other, SPACE], "tool_choice": choice}
        answer = await api.post("/v1/responses", body)
        assert answer.json()["output"][0]["namespace"] == "crm"
        assert answer.json()["tool_choice"] == choice
        tag = api.engine.calls[0].params.structured_outputs.structural_tag
        assert "crm__weather" in tag
        assert tag.count("weather") == 1
        for tools in ([WEATHER], [other]):
            check_error(await api.post("/v1/responses", {**body, "tools": tools}), 400, "tool_choice")
        no_list = {**body, "tool_choice": {"type": "allowed_tools", "mode": "auto"}}
        check_error(await api.post("/v1/responses", no_list), 400, "tool_choice")


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "namespace", "name": "crm"}], "tools[0]"),
        ([WEATHER, {**SPACE, "tools": [{"type": "function"}]}], "tools[1].tools[0]"),
        ([WEATHER, {**SPACE, "tools": [{"type": "mcp", "name": "x"}]}], "tools[1].tools[0]"),
        ([SEARCH, {**SPACE, "tools": [WEATHER, {**WEATHER, "name": "a b"}]}], "tools[1].tools[1].name"),
        ([SEARCH, {**WEATHER, "name": "a b"}], "tools[1].name"),
    ],
)
async def test_the_tool_that_is_wrong_is_named_where_the_request_has_it(tools, param):
    async with in_process(engine(), HERMES) as api:
        check_error(await api.post("/v1/responses", {"model": MODEL, "input": "Hi", "tools": tools}), 400, param)
