"""`truncation: auto` of the Responses API: what is dropped of an input longer than the context, and what never."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from tessera.server.responses.truncation import cuts_of, kept_of
from tessera.text.worker import ChatJob
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MAX_MODEL_LEN, MODEL, FakeEngine, Script
from tests.server.test_errors import check_error
from tests.server.test_responses import WEATHER, engine, prompt_of


def said(role: str, text: str, chars: int = 60) -> dict[str, Any]:
    return {"role": role, "content": text.ljust(chars, ".")}


def call(number: int, text: str = "") -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": "weather", "arguments": f'{{"x": "{text}"}}'}


def output(number: int, text: str = "") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": text.ljust(60, ".")}


async def respond(api: Any, items: Any, **fields: Any) -> Any:
    return await api.post("/v1/responses", {"model": MODEL, "input": items, "truncation": "auto", **fields})


async def test_a_client_s_oldest_turns_are_dropped():
    turns = [said(role, f"{number}") for number in range(8) for role in ("user", "assistant")]
    async with on_socket(engine()) as server, server.openai() as client:
        response = await client.responses.create(
            model=MODEL, input=[*turns, said("user", "last")], instructions="Be brief.", truncation="auto"
        )
        assert (response.truncation, response.output_text) == ("auto", "Hello.")
        prompt = prompt_of(server)
        assert len(prompt) < MAX_MODEL_LEN
        assert prompt.startswith("<system>Be brief.</system><user>6")
        assert prompt.endswith(f"<user>{'last'.ljust(60, '.')}</user><assistant>")
        assert re.findall(r"<(\w+)>(\d)", prompt) == [
            ("user", "6"),
            ("assistant", "6"),
            ("user", "7"),
            ("assistant", "7"),
        ]
        kept = await client.responses.input_items.list(response.id, limit=100)
        assert len(kept.data) == 17


async def test_what_fits_stays_whole():
    async with in_process(engine()) as api:
        body = (await respond(api, [said("user", "a"), said("assistant", "b"), said("user", "c")])).json()
        assert body["truncation"] == "auto"
        assert prompt_of(api).count("<user>") == 2
        assert (await api.post("/v1/responses", {"model": MODEL, "input": "Hi"})).json()["truncation"] == "disabled"


async def test_without_it_an_input_that_is_too_long_is_refused():
    items = [said("user", "a", 400), said("assistant", "b", 400), said("user", "c")]
    async with in_process(engine()) as api:
        for fields in ({}, {"truncation": "disabled"}, {"truncation": None}):
            response = await api.post("/v1/responses", {"model": MODEL, "input": items, **fields})
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "context_length_exceeded"
        assert (await respond(api, items)).status_code == 200


async def test_the_history_of_a_response_is_dropped_too():
    async with in_process(engine("y" * 200)) as api:
        key = None
        for number in range(4):
            fields = {} if key is None else {"previous_response_id": key}
            body = (await respond(api, f"{number}", **fields)).json()
            key = body["id"]
        assert re.findall(r"<user>(\d)", prompt_of(api)) == ["1", "2", "3"]
        counted = await api.post(
            "/v1/responses/input_tokens",
            {"model": MODEL, "input": "4", "previous_response_id": key, "truncation": "auto"},
        )
        assert counted.json()["input_tokens"] < MAX_MODEL_LEN


async def test_there_is_room_for_the_answer_that_was_asked_for():
    turns = [said(role, f"{number}") for number in range(3) for role in ("user", "assistant")]
    async with in_process(engine()) as api:
        assert (await respond(api, [*turns, said("user", "last")], max_output_tokens=300)).status_code == 200
        assert len(api.engine.calls[-1].prompt) <= MAX_MODEL_LEN - 300
        refused = await respond(api, [said("user", "last")], max_output_tokens=MAX_MODEL_LEN - 10)
        check_error(refused, 400, "input", "context_length_exceeded")


async def test_messages_of_the_system_and_the_last_of_the_user_stay():
    items = [
        said("developer", "rules"), said("user", "old", 200), said("assistant", "old", 200), said("system", "more"),
        said("user", "ask"), call(1, "a"), output(1), call(2, "b"), output(2), call(3, "c"), output(3),
    ]  # fmt: skip
    async with in_process(engine()) as api:
        assert (await respond(api, items, tools=[WEATHER], tool_choice="none")).status_code == 200
        prompt = prompt_of(api)
        assert "rules" in prompt
        assert "more" in prompt
        assert "<user>ask" in prompt
        assert "old" not in prompt
        assert re.findall(r"\[weather (\w)\]", prompt) == ["b", "c"]
        assert prompt.count("<tool>") == 2


async def test_what_may_not_be_dropped_and_does_not_fit_is_a_400():
    async with in_process(engine()) as api:
        for items in (
            [said("user", "a", 600)],
            [said("system", "a", 600), said("user", "b")],
            [said("user", "b"), call(1), {**output(1), "output": "x" * 600}],
        ):
            message = check_error(await respond(api, items), 400, "input", "context_length_exceeded")
            assert "the last message of the user and the last item stay" in message
        assert not api.engine.calls


def test_no_cut_leaves_an_output_without_its_call_or_a_call_without_its_output():
    draw = random.Random(9)
    for _ in range(300):
        items: list[dict[str, Any]] = []
        waiting: list[int] = []
        for number in range(draw.randrange(1, 25)):
            kind = draw.choice(("user", "assistant", "system", "call", "output", "reasoning"))
            if kind == "call":
                items.append(call(number))
                waiting.append(number)
            elif kind == "output" and waiting:
                items.append(output(waiting.pop(draw.randrange(len(waiting)))))
            elif kind == "reasoning":
                items.append({"type": "reasoning", "content": []})
            else:
                items.append({"type": "message", "role": kind if kind != "output" else "user", "content": "x"})
        calls = {item["call_id"]: item for item in items if item["type"] == "function_call"}
        cuts = cuts_of(items)
        assert cuts == sorted(set(cuts))
        sizes = [len(items)]
        for cut in cuts:
            kept = kept_of(items, cut)
            sizes.append(len(kept))
            assert items[-1] in kept
            assert all(item in kept for item in items if item.get("role") == "system")
            users = [item for item in items if item.get("role") == "user"]
            assert not users or any(item is users[-1] for item in kept)
            for item in items:
                if item["type"] == "function_call_output":
                    assert (item in kept) == (calls[item["call_id"]] in kept)
        assert sizes == sorted(sizes, reverse=True)


async def test_thousands_of_items_are_rendered_a_few_times(monkeypatch: pytest.MonkeyPatch):
    made = FakeEngine(script=Script(pieces="Hi"))
    rendered = 0
    chat = made.text.chat

    async def counted(job: ChatJob, owner: str = "") -> Any:
        nonlocal rendered
        rendered += 1
        return await chat(job, owner)

    monkeypatch.setattr(made.text, "chat", counted)
    items = [said(role, "x", 5) for _ in range(1000) for role in ("user", "assistant")] + [said("user", "last", 5)]
    async with in_process(made) as api:
        assert (await respond(api, items)).status_code == 200
        assert rendered <= 13
        assert len(prompt_of(api)) > MAX_MODEL_LEN - 80
