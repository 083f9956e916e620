"""What the server does not know or serve: fields, routes, and line ends that some readers of streams know."""

from __future__ import annotations

import inspect
import json
import logging
import re
from pathlib import Path

import anthropic
import ollama
import openai
import pytest

from tessera.server.app import create_app
from tessera.server.settings import Limits, ServerSettings
from tessera.server.unknown_fields import MOST_NAMES, UnknownFields
from tessera.server.unserved import why_not
from tests.server.conftest import in_process
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.pooling_models import EMBEDDER
from tests.server.test_errors import check_error

SAMPLERS = {
    "typical_p": (0.9, 1.0),
    "dry_multiplier": (0.8, 0),
    "dry_base": (2, 1.75),
    "xtc_probability": (0.5, 0.0),
    "mirostat": (2, 0),
    "mirostat_tau": (3, 5.0),
    "top_a": (0.1, 0),
    "tfs_z": (0.9, 1),
    "dynatemp_range": (0.5, 0),
    "grammar_lazy": (True, False),
    "repeat_penalty": (1.1, 1.0),
    "n_predict": (5, -1),
    "logprob_token_ids": ([1], []),
    "return_prompt_text": (True, False),
    "options": ({"temperature": 1}, {}),
}


@pytest.mark.parametrize("name", SAMPLERS)
async def test_a_sampler_of_another_server_is_refused_unless_it_asks_for_nothing(api, name):
    asked, nothing = SAMPLERS[name]
    for post in (api.chat, api.complete):
        check_error(await post(**{name: asked}), 400, name)
        assert (await post(**{name: nothing})).status_code == 200
    assert len(api.engine.calls) == 2


async def test_what_another_field_has_is_said(api):
    assert "called max_tokens here" in check_error(await api.chat(n_predict=5), 400, "n_predict")
    assert "called repetition_penalty here" in check_error(await api.chat(repeat_penalty=2), 400, "repeat_penalty")


# ---- the fields of the SDKs --------------------------------------------------------------------------------------

OPENAI = openai.OpenAI(api_key="none", base_url="http://test")
ANTHROPIC = anthropic.Anthropic(api_key="none", base_url="http://test")
OLLAMA = ollama.Client("http://test")
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
METHODS = {
    "/v1/chat/completions": (OPENAI.chat.completions.create, CHAT),
    "/v1/completions": (OPENAI.completions.create, {"prompt": "Hi"}),
    "/v1/responses": (OPENAI.responses.create, {"input": "Hi"}),
    "/v1/responses/input_tokens": (OPENAI.responses.input_tokens.count, {"input": "Hi"}),
    "/v1/decisions": (
        OPENAI.decisions.create,
        {"input": "Hi", "questions": [{"type": "predicate", "name": "q", "instructions": "Is it?"}]},
    ),
    "/v1/messages": (ANTHROPIC.messages.create, {**CHAT, "max_tokens": 5}),
    "/v1/messages/count_tokens": (ANTHROPIC.messages.count_tokens, CHAT),
    "/api/chat": (OLLAMA.chat, {**CHAT, "model": MODEL, "stream": False}),
    "/api/generate": (OLLAMA.generate, {"prompt": "Hi", "model": MODEL, "stream": False}),
    "/v1/embeddings": (OPENAI.embeddings.create, {"input": "Hi"}),
    "/api/embed": (OLLAMA.embed, {"input": "Hi", "model": MODEL}),
    "/api/embeddings": (OLLAMA.embeddings, {"prompt": "Hi", "model": MODEL}),
}
OF_THE_CLIENT = {"extra_headers", "extra_query", "extra_body", "timeout"}
HINTS = {
    "access_programs": {"cyber": "trusted"},
    "cache_control": {"type": "ephemeral"},
    "context_management": [{"type": "compaction", "compact_threshold": 5000}],
    "diagnostics": {"previous_message_id": "msg_1"},
    "image": {"detail": "high"},
    "inference_geo": "us",
    "keep_alive": "5m",
    "metadata": {"a": "b"},
    "moderation": {"model": "omni-moderation-latest", "policy": {"input": {"mode": "score"}, "output": None}},
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": "x" * 100},
    "prompt_cache_options": {"mode": "explicit", "ttl": "30m"},
    "prompt_cache_retention": "24h",
    "return_token_offsets": True,
    "safety_identifier": "someone",
    "service_tier": "flex",
    "session_id": "s",
    "speed": "fast",
    "user_profile_id": "u",
    "workspace_id": "w",
}


@pytest.mark.parametrize("path", METHODS)
async def test_each_field_of_an_sdk_is_known(path):
    """Served, without effect, or refused by name; null asks for nothing."""
    method, body = METHODS[path]
    names = set(inspect.signature(method).parameters) - OF_THE_CLIENT
    assert names >= set(body)
    async with in_process(_scored()) as api:
        response = await api.post(path, {**dict.fromkeys(names - {"model", "stream"}), **body})
        assert response.status_code == 200, response.text
        assert "unknown_request_fields_total{" not in (await api.client.get("/metrics")).text


@pytest.mark.parametrize("path", METHODS)
async def test_a_hint_changes_no_answer(path):
    """In every route: a client sends the same to all of them."""
    _, body = METHODS[path]
    async with in_process(_scored()) as api:
        plain = await api.post(path, body)
        for name, value in HINTS.items():
            hinted = await api.post(path, {**body, name: value})
            assert (name, hinted.status_code) == (name, 200), hinted.text
            assert _usage(hinted) == _usage(plain), name
        calls = api.engine.calls
        assert all(call.prompt == calls[0].prompt and call.params == calls[0].params for call in calls)


def _scored() -> FakeEngine:
    return FakeEngine(script=Script(scores={"A": 0.5, "B": 0.5}), pooler=EMBEDDER)


def _usage(response):
    body = response.json()
    return body.get("usage", body.get("input_tokens", body.get("eval_count")))


MODERATED = {"model": "omni-moderation-latest"}


@pytest.mark.parametrize("path", [path for path in METHODS if path.startswith(("/v1/c", "/v1/r"))])
async def test_moderation_that_asks_to_block_is_refused(api, path):
    _, body = METHODS[path]
    for part in ("input", "output"):
        policy = {"input": {"mode": "score"}, part: {"mode": "block"}}
        response = await api.post(path, {**body, "moderation": {**MODERATED, "policy": policy}})
        assert "cannot block here" in check_error(response, 400, "moderation")
    for moderation in ("block", ["block"], 5, {**MODERATED, "policy": "block"}):
        check_error(await api.post(path, {**body, "moderation": moderation}), 400, "moderation")
    for moderation in (None, MODERATED, {**MODERATED, "policy": None}, {**MODERATED, "policy": {"input": None}}):
        assert (await api.post(path, {**body, "moderation": moderation})).status_code == 200


async def test_what_ollama_s_clients_ask_for_and_do_not_get_is_refused(api):
    for path in ("/api/chat", "/api/generate"):
        _, body = METHODS[path]
        for fields in ({"logprobs": True}, {"top_logprobs": 2}):
            response = await api.post(path, {**body, **fields})
            assert response.status_code == 400
            assert response.json()["error"].startswith(next(iter(fields)))
    _, body = METHODS["/api/generate"]
    assert (await api.post("/api/generate", {**body, "template": "{{ .Prompt }}"})).status_code == 400


async def test_an_effort_is_counted_as_it_is_answered():
    """Its variable is in the prompt of templates that mention it."""
    async with in_process(FakeEngine(template="{{ reasoning_effort }}:{{ messages[0].content }}")) as api:
        fields = {"model": MODEL, **CHAT, "output_config": {"effort": "high"}}
        count = (await api.post("/v1/messages/count_tokens", fields)).json()["input_tokens"]
        answer = (await api.post("/v1/messages", {**fields, "max_tokens": 5})).json()
        assert count == answer["usage"]["input_tokens"] == len("high:Hi")


# ---- unknown fields ----------------------------------------------------------------------------------------------


async def test_an_unknown_field_is_logged_once_and_counted(api, caplog):
    caplog.set_level(logging.DEBUG, "tessera.server.unknown_fields")
    for _ in range(2):
        assert (await api.chat(temprature=1, store=True, metadata={})).status_code == 200
    assert (await api.complete(temprature=1)).status_code == 200
    assert (await api.post("/v1/messages", {"messages": [], "max_tokens": 1, "temprature": 1})).status_code == 400
    assert (await api.post("/tokenize", {"prompt": "x", "promt": "y"})).status_code == 200
    assert [record.args for record in caplog.records] == [("temprature",), ("promt",)]
    text = (await api.client.get("/metrics")).text
    assert 'tessera:unknown_request_fields_total{field="temprature"} 4' in text
    assert 'tessera:unknown_request_fields_total{field="promt"} 1' in text
    assert 'field="store"' not in text


async def test_unknown_fields_of_long_bodies_are_not_looked_for():
    """That takes another pass over them, in which nothing else is done."""
    settings = ServerSettings(limits=Limits(other_bytes=2000))
    async with in_process(FakeEngine(), settings) as api:
        for characters, counted in ((100, 1), (3000, 1), (100, 2)):
            await api.post("/v1/completions", {"model": "m", "prompt": "x" * characters, "temprature": 1})
            text = (await api.client.get("/metrics")).text
            assert f'tessera:unknown_request_fields_total{{field="temprature"}} {counted}\n' in text


def test_clients_cannot_grow_the_table():
    fields = UnknownFields()
    for number in range(1000):
        fields.add([f"field_{number}"])
    fields.add(['"}\n', "x" * 65, "", "field_0"])
    assert len(fields.counts) == MOST_NAMES + 1
    assert fields.counts["other"] == 1000 - MOST_NAMES + 1
    assert fields.counts["field_0"] == 2


# ---- routes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/embedding", "/v1/embeddings"),
        ("/v1/embed", "/v1/embeddings"),
        ("/v1/audio/speech", "Speaking"),
        ("/v1/images/generations", "Images"),
        ("/v1/moderations", "Moderations"),
        ("/reranking", "/rerank"),
        ("/generative_scoring", "/v1/decisions"),
        ("/v1/fine_tuning/jobs", "Fine-tuning"),
        ("/v1/assistants", "Assistants"),
        ("/v1/threads/t/runs", "threads"),
        ("/v1/realtime", "Realtime"),
        ("/v1/uploads", "Uploads"),
        ("/sleep", "--enable-sleep-mode"),
        ("/wake_up", "--enable-sleep-mode"),
        ("/pause", "/sleep"),
        ("/completion", "llama.cpp"),
        ("/infill", "suffix"),
        ("/props", "llama.cpp"),
        ("/slots/0", "llama.cpp"),
        ("/server_info", "information"),
        ("/generate", "token ids"),
        ("/inference/v1/generate", "token ids"),
        ("/v1/chat/completions/batch", "files and batches"),
        ("/v1/responses/render", "/v1/chat/completions/render"),
        ("/v1/completions/derender", "/v1/completions/render"),
        ("/v1/chat/completions/control", "closing the connection"),
        ("/v1/chat/completions/input_tokens", "/tokenize"),
        ("/v1/responses/compact", "Compaction"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/health", "/health"),
        ("/health_generate", "/health"),
        ("/get_server_info", "/version"),
        ("/flush_cache", "cache_salt"),
        ("/v1/complete", "messages"),
        ("/v1/organization/usage/completions", "--api-key"),
        ("/v1/containers/c/files", "agent"),
        ("/models/load", "tessera serve"),
    ],
)
async def test_a_known_route_that_is_not_served_says_so(api, path, word):
    for method in ("GET", "POST"):
        message = check_error(await api.client.request(method, path), 404, code="unknown_url")
        assert word in message
        assert "not served" in message


async def test_a_route_that_is_not_served_is_told_from_one_with_an_id(api):
    """POST changes a chat that is kept, by its id; other servers have routes where the id is."""
    assert "does not support" in check_error(await api.post("/v1/responses/other", {}), 405)
    assert "No such route" in check_error(await api.post("/v1/chat/completions/other", {}), 404, code="unknown_url")
    assert "no longer kept" in check_error(await api.post("/v1/chat/completions/chatcmpl-other", {}), 404)
    for method in ("GET", "DELETE"):
        response = await api.client.request(method, "/v1/chat/completions/other")
        assert "no longer kept" in check_error(response, 404)


@pytest.mark.parametrize("sdk", [openai, anthropic], ids=lambda sdk: sdk.__name__)
async def test_every_path_that_an_sdk_asks_for_is_served_or_said_not_to_be(api, sdk):
    routes = create_app(api.engine, ServerSettings()).routes
    paths = {f"/v1{path.removeprefix('/v1')}" for path in _paths(sdk)}
    assert len(paths) > 150
    silent = [
        path
        for path in sorted(paths)
        if why_not(path) is None and not any(route.path_regex.match(path) for route in routes)
    ]
    assert not silent


def _paths(sdk):
    """The paths in the methods of an SDK, without queries; what they fill in is x."""
    calls = re.compile(r'self\._\w+\(\s*(?:path_template\(\s*)?f?"(/[^"?]*)')
    for file in (Path(sdk.__file__).parent / "resources").rglob("*.py"):
        for found in calls.finditer(file.read_text(encoding="utf-8")):
            yield re.sub(r"\{[^}]*\}", "x", found[1])


@pytest.mark.parametrize(("path", "word"), [("/api/pull", "Managing models"), ("/api/push", "Managing models")])
async def test_ollama_s_clients_are_told_in_their_form(api, path, word):
    response = await api.post(path, {})
    assert response.status_code == 404
    assert response.json()["error"].startswith(word)


def test_no_route_that_is_served_is_said_not_to_be():
    paths = [route.path for route in create_app(FakeEngine(), ServerSettings()).routes]
    assert "/api/chat" in paths
    assert not [path for path in paths if why_not(path)]


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/embeddingsx", "/v1/apis"])
async def test_any_other_path_is_no_such_route(api, path):
    assert "No such route" in check_error(await api.client.get(path), 404, code="unknown_url")


# ---- streams -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
async def test_an_event_is_one_line_for_every_reader(path):
    text = "a\u0085b\u2028c\u2029d\x0b\x0c\x1c\x1d\x1eé"
    body = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "max_tokens": 9, "stream": True}
    async with in_process(FakeEngine(script=Script(pieces=(text,)))) as api:
        response = await api.post(path, body)
    lines = [line async for line in response.aiter_lines()]
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert text in _texts(events)
    assert all(line == "" or line.startswith(("data: ", "event: ")) for line in lines)


def _texts(value):
    """Every text of a JSON value."""
    if isinstance(value, str):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(child)
