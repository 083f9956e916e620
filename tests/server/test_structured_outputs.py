"""response_format and structured_outputs on the wire: what reaches the engine, and what is refused before it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tessera.sampling_params import StructuredOutputsParams
from tests.server.conftest import on_socket
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.test_errors import check_error

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f"],
}

ASKED: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"type": "text"}, None),
    ({"type": "json_object"}, {"json_object": True}),
    ({"type": "json_object", "schema": SCHEMA}, {"json": SCHEMA}),
    (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
        {"json": SCHEMA, "strict": True},
    ),
    ({"type": "json_schema", "json_schema": {"name": "x", "description": "y"}}, {"json_object": True}),
    (TAG, {"structural_tag": TAG}),
    (
        {"type": "structural_tag", "format": {"type": "any_text"}},
        {"structural_tag": {"type": "structural_tag", "format": {"type": "any_text"}}},
    ),
]


@pytest.mark.parametrize(("given", "expected"), ASKED, ids=range(len(ASKED)))
async def test_a_format_reaches_the_engine(api, given, expected):
    for post in (api.chat, api.complete):
        assert (await post(response_format=given)).status_code == 200
        asked = api.engine.calls[-1].params.structured_outputs
        assert asked == (None if expected is None else StructuredOutputsParams(**expected))


EITHER = {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "multipleOf": 3}]}
REFUSED: list[tuple[Any, str, str]] = [
    ({}, "response_format.type", "must be one of text, json_object, json_schema, structural_tag"),
    ({"type": "yaml"}, "response_format.type", "must be one of"),
    ({"type": "json_schema"}, "response_format.json_schema", "must be an object with a name and a schema"),
    (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": "{"}},
        "response_format.json_schema.schema",
        "is not valid JSON",
    ),
    (
        {"type": "json_schema", "json_schema": {"schema": EITHER, "strict": True}},
        "response_format.json_schema.schema.oneOf",
        "cannot be used: its schemas must exclude one another",
    ),
    (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": {"t": {"uniqueItems": True}}}}},
        "response_format.json_schema.schema.properties.t.uniqueItems",
        "cannot be used: only items of at most 64 values are kept apart",
    ),
    (
        {"type": "json_object", "schema": {"not": {}}},
        "response_format.schema",
        "cannot be used: no value is valid by it",
    ),
    (
        {"type": "structural_tag", "format": {"type": "regex", "pattern": "("}},
        "response_format.format.pattern",
        "cannot be used: unclosed group",
    ),
    (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"description": "x" * 2**18}}},
        "response_format.json_schema.schema",
        "has at most 262144 characters of JSON",
    ),
    ("json", "response_format", "expected object"),
]


@pytest.mark.parametrize(("given", "param", "reason"), REFUSED, ids=range(len(REFUSED)))
async def test_a_format_that_cannot_be_used_is_refused_before_anything_runs(api, given, param, reason):
    for post in (api.chat, api.complete):
        for stream in (False, True):
            message = check_error(await post(response_format=given, stream=stream), 400, param)
            assert reason in message
            assert message.startswith(param)
    assert not api.engine.calls


async def test_two_ways_of_asking_are_not_combined(api):
    given = {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}
    assert "cannot be combined" in check_error(await api.chat(**given), 400, "response_format")
    beams = {"response_format": {"type": "json_object"}, "use_beam_search": True}
    assert "use_beam_search" in check_error(await api.chat(**beams), 400, "response_format")
    assert (await api.chat(response_format={"type": "text"}, structured_outputs={"regex": "a"})).status_code == 200


@pytest.mark.parametrize("name", ["guided_json", "guided_regex", "guided_choice", "guided_grammar", "json_schema"])
async def test_fields_of_other_servers_are_pointed_to_the_one_that_is_served(api, name):
    assert "structured_outputs has it" in check_error(await api.chat(**{name: "x"}), 400, name)


class Kind(StrEnum):
    CAT = "cat"
    DOG = "dog"


class Pet(BaseModel):
    name: str
    kind: Kind
    age: int | None


class Owner(BaseModel):
    pets: list[Pet]
    mood: Literal["good", "bad"] = "good"


async def test_openai_s_client_parses_models():
    said = '{"pets": [{"name": "Tom", "kind": "cat", "age": null}], "mood": "bad"}'
    async with on_socket(FakeEngine(script=Script(pieces=said))) as server, server.openai() as client:
        messages = [{"role": "user", "content": "Who?"}]
        answer = await client.chat.completions.parse(model=MODEL, messages=messages, response_format=Owner)
        assert answer.choices[0].message.parsed == Owner(pets=[Pet(name="Tom", kind=Kind.CAT, age=None)], mood="bad")
        async with client.chat.completions.stream(model=MODEL, messages=messages, response_format=Owner) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.parsed == answer.choices[0].message.parsed
        assert server.engine.calls[0].params.structured_outputs == server.engine.calls[1].params.structured_outputs
        assert server.engine.calls[0].params.structured_outputs.kind == "json"
