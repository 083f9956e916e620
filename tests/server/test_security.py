"""The API key guards every route but three; identifiers and headers of a client stay what they are."""

from __future__ import annotations

import pytest
from starlette.routing import Route

from tessera.server.app import create_app
from tessera.server.security import OPEN_PATHS
from tessera.server.settings import ServerSettings
from tests.server.conftest import in_process
from tests.server.fake_engine import FakeEngine
from tests.server.test_errors import check_error

KEYS = ServerSettings(api_keys=("first-key", "second key ü"))
ROUTES = [route for route in create_app(FakeEngine(), KEYS).routes if isinstance(route, Route)]


def refused(response):
    path = response.request.url.path
    if path.startswith("/v1/messages"):  # Anthropic's form
        assert (response.status_code, response.json()["error"]["type"]) == (401, "authentication_error")
    elif path.startswith("/api/"):  # Ollama's
        assert (response.status_code, set(response.json())) == (401, {"error"})
    else:
        check_error(response, 401, code="invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES} | {"/", "/redoc", "/nothing"}))
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])
async def test_every_route_but_three_needs_the_key(path, method):
    path = path.replace("{model:path}", "fake-model")
    async with in_process(FakeEngine(), KEYS) as api:
        response = await api.client.request(method, path)
        if path in ("/health", "/livez", "/readyz"):
            assert response.status_code != 401
        elif method == "HEAD":
            assert response.status_code == 401
        else:
            refused(response)
        with_key = await api.client.request(method, path, headers={"Authorization": "Bearer first-key"})
        assert with_key.status_code != 401


def test_the_walk_saw_all_routes():
    assert sorted(OPEN_PATHS) == ["/health", "/livez", "/readyz"]
    assert {route.path for route in ROUTES} == OPEN_PATHS | {
        "/v1/models",
        "/v1/models/{model:path}",
        "/v1/files",
        "/v1/files/{id}",
        "/v1/files/{id}/content",
        "/v1/batches",
        "/v1/batches/{id}",
        "/v1/batches/{id}/cancel",
        "/chat/completions",
        "/models",
        "/invocations",
        "/v1/completions",
        "/v1/completions/render",
        "/v1/chat/completions",
        "/v1/chat/completions/render",
        "/v1/chat/completions/{id}",
        "/v1/chat/completions/{id}/messages",
        "/v1/decisions",
        "/v1/systemone",
        "/api/embed",
        "/api/embeddings",
        "/classify",
        "/embed",
        "/embed_all",
        "/embeddings",
        "/pooling",
        "/predict",
        "/rerank",
        "/score",
        "/similarity",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v2/embed",
        "/v2/rerank",
        "/api/chat",
        "/api/generate",
        "/api/ps",
        "/api/show",
        "/api/tags",
        "/api/version",
        "/v1/conversations",
        "/v1/conversations/{id}",
        "/v1/conversations/{id}/items",
        "/v1/conversations/{id}/items/{item}",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/responses/{id}",
        "/v1/responses/{id}/cancel",
        "/v1/responses/{id}/input_items",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/version",
        "/metrics",
        "/load",
        "/ping",
        "/tokenize",
        "/detokenize",
        "/docs",
        "/openapi.json",
        "/",
    }


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer first-kez",
        "Bearer first-key2",
        "Bearer first-ke",
        "Basic first-key",
        "first-key",
        "Bearer first-key,second",
        "Bearer \xff",
        "Bearer FIRST-KEY",
    ],
)
async def test_wrong_keys(header):
    async with in_process(FakeEngine(), KEYS) as api:
        refused(await api.client.get("/v1/models", headers={"Authorization": header.encode("latin-1")}))


@pytest.mark.parametrize(
    "header", ["Bearer first-key", "bearer first-key", "Bearer  first-key ", "Bearer second key ü"]
)
async def test_right_keys(header):
    async with in_process(FakeEngine(), KEYS) as api:
        response = await api.client.get("/v1/models", headers={"Authorization": header.encode()})
        assert response.status_code == 200


@pytest.mark.parametrize(
    "path", ["/health/", "//health", "/health/../v1/models", "/HEALTH", "/health%2f", "/v1/models?x=/health"]
)
async def test_a_path_that_only_looks_open_is_guarded(path):
    async with in_process(FakeEngine(), KEYS) as api:
        refused(await api.client.get(path))


async def test_the_host_header_decides_nothing():
    async with in_process(FakeEngine(), KEYS) as api:
        for host in ("localhost/health", "x/health?", "x/livez#"):
            refused(await api.client.get("/v1/models", headers={"Host": host}))


async def test_a_websocket_is_closed_without_a_key():
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    scope = {"type": "websocket", "path": "/v1/realtime", "headers": [], "query_string": b"", "subprotocols": []}
    await create_app(FakeEngine(), KEYS)(scope, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


async def test_no_key_asked_for_where_none_is_set(api):
    assert (await api.client.get("/v1/models")).status_code == 200


async def test_of_several_keys_each_is_a_tenant_and_nothing_shows_which():
    async with in_process(FakeEngine(), KEYS) as api:
        for key in ("first-key", "second key ü"):
            api.client.headers["Authorization"] = f"Bearer {key}"
            for fields in ({}, {"user": "u", "cache_salt": "s"}):
                assert (await api.chat(**fields)).status_code == (await api.complete(**fields)).status_code == 200
        assert [call.tenant for call in api.engine.calls] == ["key 0"] * 4 + ["key 1"] * 4
        salts = [call.cache_salt for call in api.engine.calls]
        assert salts[::2] == salts[1::2]
        assert len(set(salts)) == 4


@pytest.mark.parametrize("keys", [(), ("one",), ("one", "one")])
async def test_where_keys_tell_nobody_apart_the_tenant_is_what_the_client_says(keys):
    async with in_process(FakeEngine(), ServerSettings(api_keys=keys)) as api:
        api.client.headers["Authorization"] = "Bearer one"
        await api.chat(user="u", cache_salt="s")
        await api.complete()
        assert [call.tenant for call in api.engine.calls] == ["u", ""]
        assert [call.cache_salt for call in api.engine.calls] == ["s", ""]


def test_keys_are_not_shown():
    assert "first-key" not in repr(KEYS)


@pytest.mark.parametrize("given", ["abc-1.2:X_y", "x" * 128])
async def test_request_id_is_echoed(api, given):
    response = await api.client.get("/version", headers={"X-Request-Id": given})
    assert response.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\tb", "ü", "<script>"])
async def test_a_request_id_that_is_none_is_replaced(api, given):
    response = await api.client.get("/version", headers={"X-Request-Id": given.encode()})
    assert response.headers["x-request-id"] != given
    assert len(response.headers["x-request-id"]) == 32


async def test_every_kind_of_answer_bears_a_request_id(api):
    responses = [
        await api.chat(),
        await api.chat(stream=True),
        await api.chat(model="x"),
        await api.client.get("/nothing"),
        await api.client.get("/health"),
        await api.client.post("/v1/completions", content=b"x"),
    ]
    assert [response.status_code for response in responses] == [200, 200, 404, 404, 200, 415]
    assert all(len(response.headers["x-request-id"]) == 32 for response in responses)
