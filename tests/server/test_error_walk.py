"""A walk over every route and every error: OpenAI's body, a status that clients know, and nothing of what is inside."""

from __future__ import annotations

import json
import re

import pytest
from starlette.routing import Route

from tessera.errors import OverloadedError, ServerError, TesseraError
from tessera.server.app import create_app
from tessera.server.settings import CorsRules, ServerSettings
from tests.server.conftest import in_process
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.pooling_models import EMBEDDER, RERANKER
from tests.server.test_errors import LEAKS

SETTINGS = ServerSettings(
    api_keys=("key",),
    allowed_hosts=("test",),
    cors=CorsRules(origins=("https://page.example",)),
    max_requests_per_key=5,
    sse_keep_alive_seconds=5.0,
    root_path="/llm",
)
KEY = {"Authorization": "Bearer key"}
ROUTES = [route for route in create_app(FakeEngine(), SETTINGS).routes if isinstance(route, Route)]
CANARY = "xylophone-7193"
USER = {"role": "user", "content": CANARY}
QUESTION = {"type": "predicate", "instructions": CANARY}
BODIES = [
    b"",
    b"{",
    b'{"model": "fake-model", "prompt": "' + CANARY.encode(),
    b"\xff\xfe",
    b"[]",
    b"null",
    b'"' + CANARY.encode() + b'"',
    b"{}",
    b'{"a":' * 5000,
    *(
        json.dumps({"model": MODEL, **body}).encode()
        for body in (
            {"messages": CANARY, "prompt": {"x": CANARY}, "tokens": CANARY},
            {"messages": [CANARY], "prompt": [[CANARY]], "tokens": [CANARY]},
            {"messages": [{"role": CANARY, "content": CANARY}], "prompt": [], "tokens": [-1]},
            {"messages": [{"role": "user", "content": {"text": CANARY}}], "prompt": ["", CANARY], "tokens": [10**9]},
            {"messages": [{"role": "user", "content": [{"type": "image_url", "text": CANARY}]}], "prompt": [10**9]},
            {"messages": [USER], "prompt": CANARY, "max_tokens": 10**6},
            {"messages": [USER], "prompt": CANARY, "n": 0, "temperature": -1},
            {"messages": [USER], "prompt": CANARY, "stop": [CANARY] * 100},
            {"messages": [USER], "prompt": CANARY, "logprobs": 99, "top_logprobs": 99},
            {"messages": [USER], "prompt": CANARY, "response_format": {"type": CANARY}},
            {"messages": [USER], "prompt": CANARY, "stream_options": {"include_usage": True}},
            {"messages": [USER], "prompt": CANARY, "request_id": f"{CANARY} /etc/passwd"},
            {"messages": [USER], "chat_template_kwargs": {"messages": CANARY}, "prompt": [1.5]},
            {"messages": [USER], "prompt": CANARY, "tokens": [1], "max_tokens": 5, "model": "../../etc/passwd"},
            {"input": CANARY, "model": "../../etc/passwd"},
            {"input": CANARY, "questions": [], "model": "../../etc/passwd"},
            {"state": CANARY, "questions": {"q": {"type": CANARY}}},
            {"state": CANARY, "questions": {}, "model": "../../etc/passwd"},
            {"state": CANARY, "questions": {CANARY: {"type": "noul", "instructions": [], CANARY: 1}}},
            {"input": [{"role": CANARY, "content": [{"type": CANARY}]}], "questions": [QUESTION]},
            {"input": CANARY, "questions": [{**QUESTION, "type": CANARY, "name": CANARY}]},
            {"query": CANARY, "documents": [CANARY], "model": "../../etc/passwd"},
            {"query": CANARY, "documents": [{"text": CANARY, "x": 1}, ""], "texts": [CANARY, ""], "top_n": -1},
            {"input": [CANARY, ""], "text_1": CANARY, "text_2": [CANARY, ""], "inputs": [CANARY, ""]},
            {"input": CANARY, "dimensions": 5, "output_dimension": 5, "texts": [CANARY], "inputs": CANARY},
            {"input": CANARY, "encoding_format": CANARY, "truncation_side": CANARY, "prompt_name": CANARY},
            {"inputs": CANARY, "prompt_name": CANARY, "truncation_direction": CANARY},
            {"texts": [CANARY], "embedding_types": [CANARY], "truncate": CANARY, "input_type": CANARY},
        )
    ),
]
KNOWN = {400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 500, 503}


def check(response):
    """Returns the message."""
    assert response.status_code in KNOWN, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    if response.request.url.path.startswith("/api/"):  # Ollama's form
        assert set(response.json()) == {"error"}
        assert isinstance(error, str)
        error = {"message": error, "type": ""}
    elif response.request.url.path.startswith("/v1/messages"):  # Anthropic's form
        assert set(response.json()) == {"type", "error"}
        assert set(error) == {"message", "type"}
    else:
        assert set(response.json()) == {"error"}
        assert set(error) == {"message", "type", "param", "code"}
        assert all(isinstance(error[name], str | None) for name in ("param", "code"))
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert ("retry-after" in response.headers) == (response.status_code in (429, 503))
    assert ("allow" in response.headers) == (response.status_code == 405)
    assert ("www-authenticate" in response.headers) == (response.status_code == 401)
    return error["message"]


MODELS = {"generates": {}, "embeds": {"pooler": EMBEDDER}, "classifies": {"pooler": RERANKER, "generates": False}}
WITHOUT_MODEL = (
    *("/v1/files", "/v1/batches", "/embed", "/embed_all", "/similarity", "/predict"),
    # The walk sends JSON, and these take forms.
    *("/v1/audio/transcriptions", "/v1/audio/translations"),
)


POOLING = re.compile("embed|rerank|score|classify|pooling|similarity|predict")
WALKS = [(route, model) for route in ROUTES for model in MODELS if model == "generates" or POOLING.search(route.path)]


@pytest.mark.parametrize(("route", "model"), WALKS, ids=lambda value: getattr(value, "path", value))
async def test_every_body_on_every_route(route, model):
    path = route.path.replace("{model:path}", MODEL)
    seen = set()
    async with in_process(FakeEngine(**MODELS[model]), SETTINGS) as api:
        for method in sorted(route.methods):
            for body in BODIES if method == "POST" else (b"",):
                for headers in (
                    {**KEY, "Content-Type": "application/json"},
                    {**KEY, "Content-Type": "text/plain", "Sec-Fetch-Site": "none"},
                ):
                    response = await api.client.request(method, path, content=body, headers=headers)
                    seen.add(response.status_code)
                    if response.status_code != 200 and method != "HEAD":
                        message = check(response)
                        assert CANARY not in message
                        assert not LEAKS.search(message.replace("../../etc/passwd", "")), message
    assert not api.engine.running
    if "POST" in route.methods and path not in ("/ping", "/v1/conversations") and "{" not in path:
        assert {400, 415} | (set() if path in WITHOUT_MODEL else {404}) <= seen <= {200, 400, 404, 415}


BELOW_STORED = ("/v1/responses/input_tokens", "/v1/chat/completions/render")
"""Paths that other methods take for a stored answer's: /v1/responses/{id} and /v1/chat/completions/{id}."""


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
async def test_every_other_method_on_every_route(route):
    path = route.path.replace("{model:path}", MODEL)
    async with in_process(FakeEngine(), SETTINGS) as api:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"):
            if method not in route.methods:
                headers = {**KEY, "Content-Type": "application/json"}
                response = await api.client.request(method, path, content=b"{}", headers=headers)
                check(response)
                if path in BELOW_STORED and response.status_code == 404:
                    continue
                assert response.status_code == 405
                assert set(response.headers["allow"].split(", ")) == route.methods


@pytest.mark.parametrize(
    ("path", "status", "headers"),
    [
        ("/nothing", 404, KEY),
        ("/v1/chat/completions/", 404, KEY),
        ("/v1/models", 401, {}),
        ("/v1/models", 401, {"Authorization": "Bearer wrong"}),
        ("/v1/models", 403, {**KEY, "Host": "evil.example"}),
    ],
)
async def test_what_stands_before_the_routes(path, status, headers):
    async with in_process(FakeEngine(), SETTINGS) as api:
        response = await api.client.get(path, headers=headers)
        check(response)
        assert response.status_code == status


def every(kind):
    return [kind, *(further for direct in kind.__subclasses__() for further in every(direct))]


# ServerError is a client's word for a server: no engine has it.
@pytest.mark.parametrize("kind", sorted(set(every(TesseraError)) - {ServerError}, key=lambda kind: kind.__name__))
@pytest.mark.parametrize("stream", [False, True])
async def test_every_error_that_an_engine_could_raise(kind, stream):
    secret = f"/models/somebody/model.py line 3: RuntimeError(<object at 0x7f00aabbccdd>) {CANARY}"
    assert kind.status in KNOWN
    async with in_process(FakeEngine(script=Script(error=kind(secret))), SETTINGS) as api:
        body = {"model": MODEL, "messages": [USER], "stream": stream}
        response = await api.client.post("/v1/chat/completions", json=body, headers=KEY)
        message = check(response)
        assert response.status_code == kind.status
        if kind.status >= 500 and not issubclass(kind, OverloadedError):
            assert not LEAKS.search(message)
            assert CANARY not in message
