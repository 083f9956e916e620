"""Turns of Codex, Claude Code, LibreChat and Open WebUI: what each sends is taken, and it finds in the answer what it
looks for."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tessera.server.settings import ServerSettings
from tests.server.conftest import in_process
from tests.server.fake_engine import FakeEngine, FakeInfo, Script
from tests.server.recorded_turns import FOLDER, Answer, Turn, read, texts_of, turns

ANY = (
    "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
    "</{{ m.role }}>{% endfor %}{% for t in tools or [] %}({{ t.function.name }}){% endfor %}<assistant>"
)
STRICT = ANY.replace(
    "%}<",
    "%}{% if m.role == 'system' and not loop.first %}{{ raise_exception('A system message comes first.') }}{% endif %}"
    "{% if m.role == 'user' and not loop.first and loop.previtem.role == 'user' %}"
    "{{ raise_exception('Roles alternate.') }}{% endif %}<",
    1,
)
TURNS = dict(turns())
ASKED = {name: turn for name, turn in TURNS.items() if turn.said is not None}
LISTS = {name: turn for name, turn in TURNS.items() if turn.said is None}


def settings_of(turn: Turn) -> ServerSettings:
    """With a key where the client sends one. Chats, which are streamed, are those of a model that reasons."""
    return ServerSettings(
        tool_call_parser="hermes",
        reasoning_parser="deepseek_r1" if turn.streams else "none",
        served_model_names=("scripted",),
        api_keys=("any",) if {"authorization", "x-api-key"} & turn.headers.keys() else (),
    )


def written(turn: Turn) -> str:
    """What the model writes."""
    said = (
        turn.said if isinstance(turn.said, str) else f"I do that.\n<tool_call>\n{json.dumps(turn.said)}\n</tool_call>"
    )
    return f"Hm.\n</think>\n\n{said}" if turn.streams and not turn.continues else said


def expected(turn: Turn) -> Answer:
    if isinstance(turn.said, str):
        return Answer(turn.said, done=True)
    return Answer("I do that.", [(turn.said["name"], turn.said["arguments"])], done=True)


@pytest.mark.parametrize("template", [ANY, STRICT], ids=["any order", "strict order"])
@pytest.mark.parametrize("name", ASKED)
async def test_a_turn_is_taken_whole_and_answered(name, template):
    turn = ASKED[name]
    engine = FakeEngine(script=Script(pieces=written(turn)), template=template, info=FakeInfo(max_model_len=400_000))
    async with in_process(engine, settings_of(turn)) as api:
        response = await api.client.request(turn.method, turn.path, headers=turn.headers, json=turn.body)
        assert response.status_code == 200, response.text
        assert read(turn.path, response.text) == expected(turn)
        (call,) = api.engine.calls
        prompt = api.engine.tokenizer.decode(call.prompt)
        assert [text for text in texts_of(turn.body) if text not in prompt] == []


@pytest.mark.parametrize("name", LISTS)
async def test_what_a_client_asks_of_a_server_without_its_model(name):
    turn = LISTS[name]
    async with in_process(FakeEngine(), settings_of(turn)) as api:
        response = await api.client.request(turn.method, turn.path, headers=turn.headers, json=turn.body)
        assert response.status_code == 200, response.text
        found = response.json()
        match turn.path:
            case "/v1/models":
                assert [model["id"] for model in found["data"]] == ["scripted"]
            case "/api/tags":
                assert {model["model"].removesuffix(":latest") for model in found["models"]} == {"scripted"}
                assert {model["name"].removesuffix(":latest") for model in found["models"]} == {"scripted"}
            case "/api/ps":
                assert [model["model"] for model in found["models"]] == ["scripted:latest"]
            case "/api/version":
                assert found["version"]
            case _:
                assert found["capabilities"]


async def test_a_connection_is_opened_with_a_request_for_the_page_s_head():
    async with in_process(FakeEngine()) as api:
        assert (await api.client.head("/")).status_code == 200


def test_recorded_turns_are_small():
    assert {name.rpartition("-")[0] for name in TURNS} == {path.stem for path in FOLDER.glob("*.json")}
    assert max(path.stat().st_size for path in FOLDER.glob("*.json")) < 20_000


def sentences(value: object) -> Iterator[str]:
    match value:
        case dict():
            for each in value.values():
                yield from sentences(each)
        case list():
            for each in value:
                yield from sentences(each)
        case str() if value.count(" ") > 4 and not value.startswith("Call "):
            yield value


def test_no_sentence_of_a_client_is_kept():
    for path in FOLDER.glob("*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        for request in found["requests"]:
            assert list(sentences([request.get("body"), found["shared"]])) == []
