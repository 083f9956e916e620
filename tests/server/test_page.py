"""The web page at `/`: one document that loads nothing, runs only what its policy names, and asks for the key."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

import tessera.server.page
from tessera.server.page import EXPORT, IMPORT, MODULES, Page
from tessera.server.settings import CorsRules, ServerSettings
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import FakeEngine
from tests.server.test_errors import check_error

FOLDER = Path(tessera.server.page.__file__).parent
PAGE = Page.read()
TEXT = PAGE.document.decode()
POLICY = {name: values for name, *values in (part.split() for part in PAGE.policy.split("; "))}
KEYS = ServerSettings(api_keys=("key",))
BROWSER = {"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
NAMESPACE = "http://www.w3.org/2000/svg"  # a name that is never requested


class Elements(HTMLParser):
    """The elements of the document with their attributes, and the text of styles and scripts."""

    def __init__(self):
        super().__init__()
        self.found, self.inside = [], {}
        self.feed(TEXT)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        if (tag := self.found[-1][0] if self.found else "") in ("style", "script"):
            self.inside[tag] = self.inside.get(tag, "") + data


ELEMENTS = Elements()


def source(name):
    return (FOLDER / f"{name}.js").read_text(encoding="utf-8")


# ---- the document ----------------------------------------------------------------------------------------------------


def test_there_is_one_style_and_one_script_and_the_policy_has_their_hashes():
    assert [tag for tag, _ in ELEMENTS.found if tag in ("style", "script", "base", "iframe", "object", "form")] == [
        "style", "form", "form", "script",
    ]  # fmt: skip
    for tag in ("style", "script"):
        content = TEXT.split(f"<{tag}", 1)[1].split(">", 1)[1].split(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert POLICY[f"{tag}-src"] == [f"'sha256-{digest}'"]


def test_nothing_else_runs_or_loads():
    own = {"script-src", "style-src"}
    assert {name: values for name, values in POLICY.items() if name not in own} == {
        "default-src": ["'none'"],
        "connect-src": ["'self'"],
        "img-src": ["data:"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
        "frame-ancestors": ["'none'"],
        "require-trusted-types-for": ["'script'"],
        "trusted-types": ["'none'"],
    }


def test_no_element_has_a_style_or_a_handler_of_its_own():
    names = [name for _, attributes in ELEMENTS.found for name in attributes]
    assert "id" in names
    assert [name for name in names if name == "style" or name.startswith("on")] == []


def test_it_names_no_address_outside_this_server():
    text = TEXT.replace(NAMESPACE, "")
    assert re.findall(r"(?:https?|wss?|ftp):(?://|\\/\\/)\w[^\s\"'`]*", text) == []
    links = [value for _, attributes in ELEMENTS.found for name, value in attributes.items() if name in ("href", "src")]
    assert all(link.startswith(("#", "data:image/svg+xml,")) for link in links)
    assert "url(" not in ELEMENTS.inside["style"]
    assert "@import" not in ELEMENTS.inside["style"]


def test_requests_are_relative_so_that_a_proxy_may_add_a_prefix():
    script = ELEMENTS.inside["script"]
    called = re.findall(r'(?:request|requestJson|fetch)\((?:"([^"]*)"|(\w+))', script)
    assert {path for path, _ in called} - {""} == {"metrics", "readyz", "v1/models", "version"}
    assert {name for _, name in called} - {""} <= {"path", "ROUTE", "route"}
    assert 'ROUTE = "v1/chat/completions"' in script
    assert re.findall(r'route: "([^"]*)"', script) == ["rerank", "v1/embeddings", "classify"]


@pytest.mark.parametrize(
    "banned", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("]
)
def test_text_never_becomes_html_or_code(banned):
    assert banned not in TEXT


def test_each_module_imports_what_an_earlier_one_exports():
    exported = {}
    for name in MODULES:
        text = source(name)
        for names, origin in IMPORT.findall(text):
            assert set(names.split(", ")) <= exported[origin], (name, origin)
        assert len(re.findall(r"^import ", text, re.MULTILINE)) == len(IMPORT.findall(text))
        assert len(re.findall(r"^export ", text, re.MULTILINE)) == len(EXPORT.findall(text))
        exported[name] = set(EXPORT.findall(text))
    assert {path.stem for path in FOLDER.glob("*.js")} == set(MODULES)


def test_what_would_end_the_script_early_is_not_in_it():
    for name in MODULES:
        assert not re.search(r"</script|<!--", source(name), re.IGNORECASE), name


# ---- how it is served ------------------------------------------------------------------------------------------------


async def test_the_page_and_its_headers(api):
    response = await api.client.get("/")
    assert (response.status_code, response.content) == (200, PAGE.document)
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"] == PAGE.policy
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-cache"
    head = await api.client.head("/")
    assert (head.status_code, head.content) == (200, b"")


async def test_a_browser_that_has_the_newest_page_is_not_sent_it_again(api):
    tag = (await api.client.get("/")).headers["etag"]
    for given, status in ((tag, 304), (f'"x", W/{tag}', 304), ('"x"', 200)):
        response = await api.client.get("/", headers={"If-None-Match": given})
        assert response.status_code == status
        assert bool(response.content) == (status == 200)
        assert response.headers["etag"] == tag


async def test_it_is_not_in_the_openapi_document(api):
    assert "/" not in (await api.client.get("/openapi.json")).json()["paths"]


async def test_it_can_be_switched_off():
    for keys in ((), ("key",)):
        async with in_process(FakeEngine(), ServerSettings(api_keys=keys, disable_ui=True)) as api:
            key = {"Authorization": "Bearer key"}
            check_error(await api.client.get("/", headers={**BROWSER, **key}), 404, code="unknown_url")
            if keys:
                check_error(await api.client.get("/", headers=BROWSER), 401, code="invalid_api_key")


# ---- with API keys ---------------------------------------------------------------------------------------------------


async def test_a_browser_without_a_key_gets_the_page_that_asks_for_it():
    async with in_process(FakeEngine(), KEYS) as api:
        for key in ({}, {"Authorization": "Bearer wrong"}):
            response = await api.client.get("/", headers={**BROWSER, **key})
            assert (response.status_code, response.content) == (401, PAGE.document)
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.headers["content-security-policy"] == PAGE.policy
            assert response.headers["cache-control"] == "no-store"
            assert "Accept" in response.headers["vary"]
            assert "etag" not in response.headers
            assert response.headers["x-request-id"]
        response = await api.client.get("/", headers={**BROWSER, "Authorization": "Bearer key"})
        assert (response.status_code, response.content) == (200, PAGE.document)


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/*", "text/htmlx", "", "application/xhtml+xml"])
async def test_a_client_that_asks_for_no_html_gets_the_json_error(accept):
    async with in_process(FakeEngine(), KEYS) as api:
        check_error(await api.client.get("/", headers={"Accept": accept}), 401, code="invalid_api_key")


async def test_only_the_page_s_own_path_and_method_are_answered_so():
    async with in_process(FakeEngine(), KEYS) as api:
        for path in ("/v1/models", "/metrics", "/docs", "/nothing", "/x/", "/index.html"):
            check_error(await api.client.get(path, headers=BROWSER), 401, code="invalid_api_key")
        check_error(await api.client.post("/", headers=BROWSER), 401, code="invalid_api_key")


async def test_behind_a_proxy_s_prefix():
    settings = ServerSettings(root_path="/llm", api_keys=("key",))
    async with in_process(FakeEngine(), settings) as api:
        for path in ("/", "/llm/"):
            response = await api.client.get(path, headers=BROWSER)
            assert (response.status_code, response.content) == (401, PAGE.document)


async def test_hosts_and_origins_are_checked_as_for_every_route():
    settings = ServerSettings(
        allowed_hosts=("test",), cors=CorsRules(origins=("https://page.example",)), api_keys=("key",)
    )
    async with in_process(FakeEngine(), settings) as api:
        check_error(await api.client.get("/", headers={**BROWSER, "Host": "evil.example"}), 403, code="unknown_host")
        for origin, allowed in (("https://page.example", True), ("https://evil.example", False)):
            response = await api.client.get("/", headers={**BROWSER, "Origin": origin})
            assert response.status_code == 401
            assert ("access-control-allow-origin" in response.headers) == allowed


# ---- while the model loads -------------------------------------------------------------------------------------------


async def test_a_browser_gets_the_page_that_waits_and_other_clients_the_json_error():
    loading = asyncio.Event()
    async with on_socket(FakeEngine(), loading=loading) as server, httpx.AsyncClient(base_url=server.url) as http:
        response = await http.get("/", headers=BROWSER)
        assert (response.status_code, response.content) == (503, PAGE.document)
        assert response.headers["retry-after"] == "1"
        assert response.headers["content-security-policy"] == PAGE.policy
        for path, headers in (("/", {}), ("/v1/models", BROWSER)):
            response = await http.get(path, headers=headers)
            assert response.status_code == 503
            assert response.json()["error"]["message"] == "The model is still loading; try again."
        loading.set()
        async with asyncio.timeout(10):
            response = await http.get("/", headers=BROWSER)
            while response.status_code == 503:
                response = await http.get("/", headers=BROWSER)
        assert (response.status_code, response.content) == (200, PAGE.document)


async def test_none_waits_where_it_is_switched_off():
    settings, loading = ServerSettings(disable_ui=True, drain_seconds=0.1), asyncio.Event()
    async with (
        on_socket(FakeEngine(), settings, loading=loading) as server,
        httpx.AsyncClient(base_url=server.url) as http,
    ):
        response = await http.get("/", headers=BROWSER)
        loading.set()
        assert (response.status_code, response.headers["content-type"]) == (503, "application/json")
