"""Web pages: under which names the server answers, and which pages may read what it says."""

from __future__ import annotations

import asyncio

import pytest

from tessera.server.settings import CorsRules, ServerSettings
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MODEL, FakeEngine
from tests.server.test_errors import check_error

NAMES = ServerSettings(allowed_hosts=("localhost", "127.0.0.1", "[::1]", "*.Example.com"))
PAGE = "https://page.example"
CORS = ServerSettings(cors=CorsRules(origins=(PAGE,)), api_keys=("key",))
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1:1", "[::1]", "[::1]:8000", "a.example.com:443"],
)
async def test_names_that_the_server_goes_by(host):
    async with in_process(FakeEngine(), NAMES) as api:
        assert (await api.client.get("/v1/models", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evil-example.com",
        "example.com",
        "[::2]",
        "127.0.0.1.evil",
        "",
        ":80",
        "[::1]evil.example",
        "[::1].",
        "localhost:80.evil.example",
        "localhost:evil",
        "localhost@evil.example",
    ],
)
async def test_a_page_of_a_stranger_whose_name_resolves_to_this_machine(host):
    async with in_process(FakeEngine(), NAMES) as api:
        for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/metrics")):
            response = await api.client.request(method, path, headers={"Host": host}, json=CHAT)
            check_error(response, 403, code="unknown_host")
        assert not api.engine.calls
        assert (await api.client.get("/health", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(("version", "status"), [("1.0", b"200"), ("1.1", b"403")])
async def test_http_1_0_needs_no_name(version, status):
    async with on_socket(FakeEngine(), NAMES) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET /v1/models HTTP/{version}\r\nConnection: close\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == status
        writer.close()
        await writer.wait_closed()


async def test_any_name_does_where_none_is_named(api):
    assert (await api.client.get("/v1/models", headers={"Host": "anything"})).status_code == 200


async def test_without_rules_no_page_may_read_anything(api):
    response = await api.client.get("/v1/models", headers={"Origin": PAGE})
    assert not [name for name in response.headers if name.startswith("access-control")]
    preflight = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    response = await api.client.options("/v1/chat/completions", headers=preflight)
    assert not [name for name in response.headers if name.startswith("access-control")]


async def test_a_page_that_is_let_in_asks_before_it_sends_its_key():
    preflight = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }
    async with in_process(FakeEngine(), CORS) as api:
        response = await api.client.options("/v1/chat/completions", headers=preflight)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == PAGE
        assert "POST" in response.headers["access-control-allow-methods"]
        assert "x-stainless-lang" in response.headers["access-control-allow-headers"]
        answer = await api.client.post(
            "/v1/chat/completions", json=CHAT, headers={"Origin": PAGE, "Authorization": "Bearer key"}
        )
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]


async def test_a_page_may_read_what_was_wrong_with_its_request():
    async with in_process(FakeEngine(), CORS) as api:
        response = await api.client.get("/v1/models", headers={"Origin": PAGE})
        check_error(response, 401, code="invalid_api_key")
        assert response.headers["access-control-allow-origin"] == PAGE


async def test_another_page_is_refused():
    async with in_process(FakeEngine(), CORS) as api:
        for origin in ("https://evil.example", "null", f"{PAGE}.evil.example", "http://page.example"):
            preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            response = await api.client.options("/v1/chat/completions", headers=preflight)
            check_error(response, 403, code="origin_not_allowed")
            assert "access-control-allow-origin" not in response.headers
            response = await api.client.get("/v1/models", headers={"Origin": origin, "Authorization": "Bearer key"})
            assert "access-control-allow-origin" not in response.headers


async def test_methods_and_headers_can_be_narrowed():
    rules = CorsRules(origins=(PAGE,), methods=("GET",), headers=("Authorization",))
    async with in_process(FakeEngine(), ServerSettings(cors=rules)) as api:
        for asked in (
            {"Access-Control-Request-Method": "POST"},
            {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "x-other"},
        ):
            response = await api.client.options("/v1/models", headers={"Origin": PAGE, **asked})
            check_error(response, 403, code="origin_not_allowed")


async def test_options_says_which_methods_there_are(api):
    for path, methods in (
        ("/v1/completions", {"POST"}),
        ("/v1/chat/completions", {"GET", "HEAD", "POST"}),
        ("/v1/models", {"GET", "HEAD"}),
        ("/ping", {"GET", "HEAD", "POST"}),
    ):
        response = await api.client.options(path)
        assert (response.status_code, response.content) == (204, b"")
        assert set(response.headers["allow"].split(", ")) == methods
    check_error(await api.client.options("/nothing"), 404, code="unknown_url")


async def test_head_is_get_without_its_body(api):
    for path in ("/v1/models", "/health", "/metrics", "/load", "/version", "/ping"):
        assert (await api.client.head(path)).status_code == 200
    assert (await api.client.head("/tokenize")).status_code == 405


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /v1/models HTTP/1.0\r\n", b"200"),
        (b"GET /v1/models HTTP/1.0\r\nHost: evil.example\r\n", b"403"),
        (b"GET /v1/models HTTP/1.0\r\nHost:\r\n", b"403"),
        (b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n", b"403"),
    ],
)
async def test_only_http_1_0_needs_no_host(head, status):
    async with on_socket(FakeEngine(), ServerSettings(allowed_hosts=("localhost",), drain_seconds=0.1)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head + b"\r\n")
        assert (await asyncio.wait_for(reader.readline(), 20)).split()[1] == status
        writer.close()


@pytest.mark.parametrize("others", [b"Host: evil.example\r\n", b"host: localhost\r\n", b"Host:\r\n"])
async def test_a_request_has_one_host(others):
    async with on_socket(FakeEngine(), ServerSettings(drain_seconds=0.1)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + others + b"\r\n")
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"one Host header" in answer
