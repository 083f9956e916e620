"""The Responses API and conversations, by OpenAI's client and by hand; answers are held against its types."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tessera.errors import EngineStepError
from tessera.server.responses import events as writing
from tessera.server.settings import ServerSettings
from tessera.server.store import Store
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.spoken_engine import SpokenEngine
from tests.server.test_errors import check_error

WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
CALLS = 'Hm.\n</think>\n\nLet me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
THINKING = ServerSettings(tool_call_parser="hermes", reasoning_parser="deepseek_r1")


def engine(said: str = "Hello.", **script: Any) -> FakeEngine:
    return FakeEngine(script=Script(pieces=said, **script))


def prompt_of(server: Any, call: int = -1) -> str:
    return server.engine.tokenizer.decode(server.engine.calls[call].prompt)


async def test_a_client_gets_a_response():
    async with on_socket(engine(num_cached_tokens=2)) as server, server.openai() as client:
        response = await client.responses.create(
            model=MODEL,
            input="Hi",
            instructions="Be brief.",
            max_output_tokens=40,
            temperature=0.5,
            max_tool_calls=3,
            metadata={"a": "b"},
        )
        Response.model_validate(response.model_dump(), strict=True)
        assert (response.status, response.output_text, response.object) == ("completed", "Hello.", "response")
        assert response.id.startswith("resp_")
        assert prompt_of(server) == "<system>Be brief.</system><user>Hi</user><assistant>"
        params = server.engine.calls[0].params
        assert (params.max_tokens, params.temperature) == (40, 0.5)
        usage = response.usage
        assert (usage.input_tokens, usage.output_tokens) == (len(server.engine.calls[0].prompt), 6)
        assert usage.input_tokens_details.cached_tokens == 2
        assert (response.metadata, response.instructions, response.store) == ({"a": "b"}, "Be brief.", True)
        assert response.max_tool_calls == 3


async def test_items_come_whole_and_go_back_as_one_turn():
    async with on_socket(engine(CALLS), THINKING) as server, server.openai() as client:
        response = await client.responses.create(model=MODEL, input="Weather?", tools=[WEATHER])
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
        reasoning, message, call = response.output
        assert reasoning.content[0].text == "Hm."
        assert message.content[0].text == "Let me see."
        assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Paris"})
        assert response.usage.output_tokens_details.reasoning_tokens == len("Hm.\n</think>")
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"}
        items = [{"role": "user", "content": "Weather?"}, *(item.model_dump() for item in response.output), result]
        items[3]["arguments"] = '{"x": "Paris"}'  # the fake template reads x
        await client.responses.create(model=MODEL, input=items, tools=[WEATHER])
        assert prompt_of(server) == (
            "<user>Weather?</user><assistant>Let me see.[weather Paris]</assistant><tool>Sunny</tool>TOOLS<assistant>"
        )


def events_of(text: str) -> list[dict[str, Any]]:
    adapter = TypeAdapter(ResponseStreamEvent)
    events = []
    for number, block in enumerate(text.removesuffix("\n\n").split("\n\n")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        adapter.validate_python(event, strict=True)
        events.append(event)
    return events


async def test_a_stream_has_each_event_in_its_order():
    async with in_process(engine(CALLS), THINKING) as api:
        body = {"model": MODEL, "input": "Weather?", "tools": [WEATHER], "stream": True}
        events = events_of((await api.post("/v1/responses", body)).text)
        kinds = [event["type"].removeprefix("response.") for event in events]
        once = list(dict.fromkeys(kinds))
        assert once == [
            "created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta",
            "reasoning_text.done", "content_part.done", "output_item.done", "output_text.delta", "output_text.done",
            "function_call_arguments.delta", "function_call_arguments.done", "completed",
        ]  # fmt: skip
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        final = events[-1]["response"]
        assert final["output"] == done
        assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
        texts = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert "".join(texts) == done[1]["content"][0]["text"] == "Let me see."
        arguments = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
        assert "".join(arguments) == done[2]["arguments"]
        assert [event["output_index"] for event in events if event["type"] == "response.output_item.added"] == [0, 1, 2]
        assert (await api.client.get(f"/v1/responses/{final['id']}")).json() == final


async def test_a_response_that_is_kept_is_streamed_again():
    async with in_process(engine(CALLS), THINKING) as api:
        body = {"model": MODEL, "input": "Weather?", "tools": [WEATHER], "include": ["message.output_text.logprobs"]}
        made = events_of((await api.post("/v1/responses", {**body, "stream": True})).text)
        kept = f"/v1/responses/{made[-1]['response']['id']}"
        again = events_of((await api.client.get(f"{kept}?stream=true")).text)
        first, second = ([*dict.fromkeys(event["type"] for event in events)] for events in (made, again))
        assert first == second
        assert [event["sequence_number"] for event in again] == [*range(len(again))]
        assert again[0]["response"] == made[0]["response"]
        for kind in ("output_item.added", "output_item.done", "output_text.done", "completed"):
            first, second = [
                [{**event, "sequence_number": 0} for event in events if event["type"] == f"response.{kind}"]
                for events in (made, again)
            ]
            assert first == second
        texts = [event["delta"] for event in again if event["type"].endswith(".delta")]
        assert texts == ["Hm.", "Let me see.", '{"city": "Paris"}']
        wrong = await api.client.get(f"{kept}?stream=true&starting_after=1")
        assert "in the background" in check_error(wrong, 400, "starting_after")


async def test_a_response_in_the_background_is_streamed_when_it_ends():
    async with on_socket(engine(delay=0.01)) as server, server.openai() as client:
        queued = await client.responses.create(model=MODEL, input="Hi", background=True)
        events = [event async for event in await client.responses.retrieve(queued.id, stream=True)]
        assert events[0].response.status == "in_progress"
        assert events[-1].response == await client.responses.retrieve(queued.id)
        assert events[-1].response.output_text == "Hello."
        for place in range(len(events) + 1):
            rest = await client.responses.retrieve(queued.id, stream=True, starting_after=place)
            assert [event async for event in rest] == events[place + 1 :]
        with pytest.raises(openai.BadRequestError, match="must be the sequence_number"):
            await client.responses.retrieve(queued.id, stream=True, starting_after="x")


async def test_a_response_that_was_cancelled_is_not_streamed():
    async with on_socket(engine(hang_at=2)) as server, server.openai() as client:
        queued = await client.responses.create(model=MODEL, input="Hi", background=True)
        stream = await client.responses.retrieve(queued.id, stream=True)
        await client.responses.cancel(queued.id)
        *_, last = [event async for event in stream]
        assert (last.type, last.param) == ("error", "stream")
        with pytest.raises(openai.BadRequestError, match="its status is cancelled"):
            await client.responses.retrieve(queued.id, stream=True)


async def test_the_client_s_own_stream_helper():
    async with on_socket(engine(CALLS), THINKING) as server, server.openai() as client:
        async with client.responses.stream(model=MODEL, input="Weather?", tools=[WEATHER]) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
        assert final.output_text == "Let me see."
        assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]


class City(BaseModel):
    name: str


async def test_the_client_parses_models():
    async with on_socket(engine('{"name": "Paris"}')) as server, server.openai() as client:
        response = await client.responses.parse(model=MODEL, input="Where?", text_format=City)
        assert response.output_parsed == City(name="Paris")
        assert json.loads(server.engine.calls[0].params.structured_outputs.json)["required"] == ["name"]


async def test_a_response_follows_another():
    async with on_socket(engine()) as server, server.openai() as client:
        first = await client.responses.create(model=MODEL, input="One", instructions="A")
        second = await client.responses.create(model=MODEL, input="Two", previous_response_id=first.id)
        third = await client.responses.create(model=MODEL, input="Three", previous_response_id=second.id, store=False)
        assert prompt_of(server) == (
            "<user>One</user><assistant>Hello.</assistant><user>Two</user><assistant>Hello.</assistant>"
            "<user>Three</user><assistant>"
        )  # instructions are those of the request alone
        assert third.previous_response_id == second.id
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(third.id)
        items = await client.responses.input_items.list(second.id)
        assert [item.content[0].text for item in items.data] == ["Two"]
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError) as missing:
            await client.responses.create(model=MODEL, input="x", previous_response_id=second.id)
        assert missing.value.code == "previous_response_not_found"


async def test_a_conversation_grows():
    async with on_socket(engine()) as server, server.openai() as client:
        conversation = await client.conversations.create(
            items=[{"type": "message", "role": "user", "content": "Zero"}], metadata={"a": "b"}
        )
        assert conversation.metadata == {"a": "b"}
        await client.responses.create(model=MODEL, input="One", conversation=conversation.id)
        response = await client.responses.create(model=MODEL, input="Two", conversation={"id": conversation.id})
        assert response.conversation.id == conversation.id
        assert prompt_of(server) == (
            "<user>Zero</user><user>One</user><assistant>Hello.</assistant><user>Two</user><assistant>"
        )
        items = [item async for item in client.conversations.items.list(conversation.id, order="asc", limit=2)]
        assert [item.content[0].text for item in items] == ["Zero", "One", "Hello.", "Two", "Hello."]
        one = await client.conversations.items.retrieve(items[1].id, conversation_id=conversation.id)
        assert one.content[0].text == "One"
        await client.conversations.items.delete(items[0].id, conversation_id=conversation.id)
        added = await client.conversations.items.create(
            conversation.id, items=[{"type": "message", "role": "user", "content": "Three"}]
        )
        assert added.data[0].content[0].text == "Three"
        left = await client.conversations.items.list(conversation.id, order="asc")
        assert [item.content[0].text for item in left.data] == ["One", "Hello.", "Two", "Hello.", "Three"]
        changed = await client.conversations.update(conversation.id, metadata={"c": "d"})
        assert changed.metadata == (await client.conversations.retrieve(conversation.id)).metadata == {"c": "d"}
        assert (await client.conversations.delete(conversation.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(conversation.id)


async def test_a_response_in_the_background_is_asked_for_again():
    async with on_socket(engine(delay=0.01)) as server, server.openai() as client:
        queued = await client.responses.create(model=MODEL, input="Hi", background=True)
        assert queued.status == "queued"
        for _ in range(500):
            if (found := await client.responses.retrieve(queued.id)).status == "completed":
                break
            assert found.status in ("queued", "in_progress")
        assert found.output_text == "Hello."


async def test_a_response_in_the_background_is_cancelled():
    async with on_socket(engine(hang_at=2)) as server, server.openai() as client:
        queued = await client.responses.create(model=MODEL, input="Hi", background=True)
        await until(lambda: bool(server.engine.running))
        assert (await client.responses.cancel(queued.id)).status == "cancelled"
        assert not server.engine.running
        whole = await on_hand(client, server)
        with pytest.raises(openai.BadRequestError, match="in the background can be cancelled"):
            await client.responses.cancel(whole.id)


async def until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not seen():  # noqa: ASYNC110 - the engine tells nobody
            await asyncio.sleep(0.01)


async def on_hand(client: Any, server: Any) -> Response:
    server.engine.script.hang_at = None
    return await client.responses.create(model=MODEL, input="Hi")


async def test_a_response_in_the_background_may_fail():
    async with on_socket(engine(error=EngineStepError("x"), error_at=1)) as server, server.openai() as client:
        queued = await client.responses.create(model=MODEL, input="Hi", background=True)
        for _ in range(500):
            if (found := await client.responses.retrieve(queued.id)).status == "failed":
                break
        assert found.error.code
        assert server.engine.calls


async def test_an_answer_that_was_cut_short_is_incomplete():
    async with in_process(engine("x" * 99)) as api:
        body = (await api.post("/v1/responses", {"model": MODEL, "input": "Hi", "max_output_tokens": 20})).json()
        assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert body["output"][0]["status"] == "incomplete"
        asked = {"model": MODEL, "input": "Hi", "max_output_tokens": 20, "stream": True}
        events = events_of((await api.post("/v1/responses", asked)).text)
        assert events[-1]["type"] == "response.incomplete"
        assert events[-1]["response"]["output"][0]["status"] == "incomplete"


async def test_log_probabilities():
    async with in_process(engine()) as api:
        asked = {"model": MODEL, "input": "Hi", "top_logprobs": 2, "include": ["message.output_text.logprobs"]}
        whole = (await api.post("/v1/responses", asked)).json()["output"][0]["content"][0]["logprobs"]
        assert [entry["token"] for entry in whole] == list("Hello.")
        events = events_of((await api.post("/v1/responses", {**asked, "stream": True})).text)
        assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == whole


async def test_log_probabilities_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []

    def encode(value: Any) -> bytes:
        for entry in (value, value.get("part", {}), *value.get("item", {}).get("content", ())):
            encoded.append(entry.get("logprobs", ()))
        return msgspec.json.encode(value)

    monkeypatch.setattr(writing, "_encode", encode)
    async with in_process(engine()) as api:
        asked = {"model": MODEL, "input": "Hi", "top_logprobs": 2, "stream": True}
        await api.post("/v1/responses", asked)
    shown = [logprobs for logprobs in encoded if logprobs != ()]
    assert len(shown) == len("Hello.") + 3  # each token's, and those of text, part and item when they are done
    assert all(isinstance(logprobs, msgspec.Raw) for logprobs in shown)
    assert shown[-1] is shown[-2] is shown[-3]


async def test_tokens_are_counted():
    async with on_socket(engine(), THINKING) as server, server.openai() as client:
        asked = {"model": MODEL, "input": "Hi", "instructions": "A", "tools": [WEATHER]}
        count = await client.responses.input_tokens.count(**asked)
        await client.responses.create(**asked)
        assert count.input_tokens == len(server.engine.calls[0].prompt)
        assert count.object == "response.input_tokens"


async def test_each_key_has_its_own():
    settings = ServerSettings(api_keys=("one", "two"))
    async with (
        on_socket(engine(), settings) as server,
        server.openai(api_key="one") as mine,
        server.openai(api_key="two") as other,
    ):
        response = await mine.responses.create(model=MODEL, input="Hi")
        conversation = await mine.conversations.create()
        for asking in (
            other.responses.retrieve(response.id),
            other.responses.create(model=MODEL, input="x", previous_response_id=response.id),
            other.conversations.retrieve(conversation.id),
            other.responses.create(model=MODEL, input="x", conversation=conversation.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await asking


async def test_what_is_kept_outlives_the_server(tmp_path: Path):
    settings = ServerSettings(response_store=str(tmp_path / "store"))
    async with in_process(engine(), settings) as api:
        made = (await api.post("/v1/responses", {"model": MODEL, "input": "Hi"})).json()
    async with in_process(engine(), settings) as api:
        assert (await api.client.get(f"/v1/responses/{made['id']}")).json() == made


async def test_no_change_is_lost_and_one_that_fails_changes_nothing():
    store = Store("", 10**6)
    await store.put("conversation", "c", "", [])
    await asyncio.gather(*(store.change("conversation", "c", "", lambda kept, n=n: kept.append(n)) for n in range(50)))
    assert await store.get("conversation", "c", "") == [*range(50)]

    def fail(kept: list[int]) -> None:
        kept.clear()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await store.change("conversation", "c", "", fail)
    assert await store.get("conversation", "c", "") == [*range(50)]
    assert await store.change("conversation", "d", "", fail) is None
    store.close()


async def test_the_least_used_are_dropped(tmp_path: Path):
    store = Store("", 1000)
    for number in range(9):
        await store.put("response", str(number), "", "x" * 200)
        await store.get("response", "0", "")
    kept = [number for number in range(9) if await store.get("response", str(number), "") is not None]
    assert kept == [0, 6, 7, 8]
    store.close()


EITHER = {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "multipleOf": 3}]}
"""Alternatives that may hold together."""


@pytest.mark.parametrize("strict", [{}, {"strict": None}, {"strict": False}])
async def test_alternatives_may_hold_together_where_the_format_is_not_strict(strict):
    form = {"type": "json_schema", "name": "x", "schema": EITHER, **strict}
    async with in_process(engine("3"), THINKING) as api:
        response = await api.post("/v1/responses", {"model": MODEL, "input": "Hi", "text": {"format": form}})
        assert response.status_code == 200


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "input is missing"),
    ({"input": [{"type": "image"}]}, "input[0].type", "must be one of message, function_call"),
    ({"input": [{"type": "function_call"}]}, "input[0]", "lacks a field of its type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]", "only texts are"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]", "other tools are not served"),
    ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name", "A-Z a-z"),
    ({"truncation": "first"}, "truncation", "truncation must be auto or disabled"),
    ({"previous_response_id": "a", "conversation": "b"}, "conversation", "cannot be combined"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}, "text.format.schema",
     "text.format.schema cannot be used: no value is valid by it"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "text.format.type must be one of"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": EITHER, "strict": True}}},
     "text.format.schema.oneOf", "text.format.schema.oneOf cannot be used: its schemas must exclude one another"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}, "strict": "yes"}}},
     "text.format.strict", "text.format.strict must be true or false"),
    ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens must be at least 1"),
    ({"metadata": {str(n): "x" for n in range(17)}}, "metadata", "at most 16 names"),
    ({"background": True, "stream": True}, "stream", "is not streamed"),
    ({"background": True, "store": False}, "store", "must be kept"),
    ({"prompt": {"id": "x"}}, "prompt", "prompt is not supported yet"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "reason"), WRONG, ids=range(len(WRONG)))
async def test_what_is_wrong_is_refused_by_name(fields, param, reason):
    async with in_process(engine(), THINKING) as api:
        response = await api.post("/v1/responses", {"model": MODEL, "input": "Hi", **fields})
        assert reason in check_error(response, 400, param)
        assert not api.engine.calls


@pytest.mark.parametrize("query", ["order=up", "limit=-1", "limit=101", "limit=0000000101", "limit=x"])
async def test_a_page_has_limits(query):
    async with in_process(engine()) as api:
        made = (await api.post("/v1/responses", {"model": MODEL, "input": "Hi"})).json()
        response = await api.client.get(f"/v1/responses/{made['id']}/input_items?{query}")
        check_error(response, 400, query.partition("=")[0])
        check_error(await api.client.get(f"/v1/responses/{made['id']}/input_items?after=x"), 404, "after")
        nothing = (await api.client.get(f"/v1/responses/{made['id']}/input_items?limit=0")).json()
        assert nothing == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


async def test_an_error_in_a_stream_is_an_event():
    async with in_process(engine(error=EngineStepError("x"), error_at=2)) as api:
        text = (await api.post("/v1/responses", {"model": MODEL, "input": "Hi", "stream": True})).text
        events = events_of(text)
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        failed = events[-1]["response"]
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        kept = (await api.client.get(f"/v1/responses/{failed['id']}")).json()
        assert (kept["status"], kept["error"]) == ("failed", failed["error"])


PRE, MID, POST = "pre ", " mid ", " post"
NOW, THEN = (f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>' for name in ("now", "then"))


async def test_items_are_in_the_order_in_which_they_were_written():
    tools = [{"type": "function", "name": name, "parameters": {}} for name in ("now", "then")]
    asked = {"model": MODEL, "input": "q", "tools": tools, "include": ["message.output_text.logprobs"]}
    said = f"why</think>{PRE}{NOW}{MID}{THEN}{POST}"
    async with in_process(SpokenEngine(said), THINKING) as api:
        whole = (await api.post("/v1/responses", asked)).json()
        events = events_of((await api.post("/v1/responses", {**asked, "stream": True})).text)
    for response in (whole, events[-1]["response"]):
        shown = [
            item.get("name") or (item["content"][0]["text"], _spelled(item["content"][0]))
            for item in response["output"]
        ]
        assert shown == [("why", None), ("pre", "pre"), "now", ("mid", "mid"), "then", ("post", "post")]


def _spelled(part: dict[str, Any]) -> str | None:
    """The text that the tokens with log probabilities make up."""
    return "".join(entry["token"] for entry in part["logprobs"]) if "logprobs" in part else None


async def test_what_the_model_said_between_calls_is_one_message_of_the_next_turn():
    outputs = [{"type": "function_call_output", "call_id": key, "output": key} for key in ("c1", "c2")]
    calls = [{"type": "function_call", "call_id": key, "name": "f", "arguments": "{}"} for key in ("c1", "c2")]
    said = [{"role": "assistant", "content": text} for text in ("pre", "mid", "post")]
    items = [{"role": "user", "content": "q"}, said[0], calls[0], said[1], calls[1], said[2], *outputs]
    async with in_process(engine()) as api:
        await api.post("/v1/responses", {"model": MODEL, "input": items})
        shown = prompt_of(api)
    assert shown == ("<user>q</user><assistant>premidpost[f ][f ]</assistant><tool>c1</tool><tool>c2</tool><assistant>")


@pytest.mark.parametrize("kind", [{"a": 1}, ["message"], 5, None, "mesage"])
async def test_a_type_that_no_item_has_is_refused(api, kind):
    item = {"type": kind, "role": "user", "content": "x"}
    for path, field in (("/v1/conversations", "items"), ("/v1/responses", "input")):
        refused = check_error(await api.post(path, {"model": MODEL, field: [item]}), 400, f"{field}[0].type")
        assert refused.startswith(f"{field}[0].type must be one of message, ")
