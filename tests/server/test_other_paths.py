"""Where other servers' clients look for the routes, and health checks of a server that has its hands full."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from tessera.server.app import create_app
from tessera.server.settings import ServerSettings
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MODEL, TEMPLATE, FakeEngine, Script
from tests.server.sse import check_chat, check_completion
from tests.server.test_errors import check_error
from tests.server.test_lifecycle import until

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
PROMPT = {"model": MODEL, "prompt": "Hi"}


async def test_llama_cpp_s_paths_have_no_v1(api):
    assert (await api.post("/chat/completions", CHAT)).json()["object"] == "chat.completion"
    assert (await api.client.get("/models")).json() == (await api.client.get("/v1/models")).json()
    check_chat((await api.post("/chat/completions", {**CHAT, "stream": True})).text)


@pytest.mark.parametrize("path", ["/completion", "/completions"])
async def test_llama_cpp_s_own_api_is_told_from_openai_s(api, path):
    """There it takes n_predict and answers with content."""
    for body in (PROMPT, {"prompt": "Hi", "n_predict": 5}):
        message = check_error(await api.post(path, body), 404, code="unknown_url")
        assert message.startswith("llama.cpp's own API is not served: use OpenAI's completions or chat completions")
    assert not api.engine.calls


async def test_invocations_chat_or_complete_by_the_body(api):
    assert (await api.post("/invocations", CHAT)).json()["object"] == "chat.completion"
    assert (await api.post("/invocations", PROMPT)).json()["object"] == "text_completion"
    check_chat((await api.post("/invocations", {**CHAT, "stream": True})).text)
    check_completion((await api.post("/invocations", {**PROMPT, "stream": True})).text)
    assert "messages, prompt and input" in check_error(await api.post("/invocations", {"x": "y"}), 400, "messages")
    check_error(await api.post("/invocations", b"{"), 400)
    check_error(await api.post("/invocations", {**PROMPT, "n": 0}), 400, "n")


async def test_a_client_that_leaves_an_invocation_ends_it():
    engine = FakeEngine(script=Script(hang_at=1))
    async with (
        on_socket(engine, ServerSettings(drain_seconds=0.1)) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as http,
    ):
        asking = asyncio.create_task(http.post("/invocations", json=CHAT))
        await until(lambda: len(engine.running) == 1)
        asking.cancel()
        await until(lambda: not engine.running)


async def test_the_list_of_models_may_end_with_a_slash(api):
    assert (await api.client.get("/v1/models/")).json() == (await api.client.get("/v1/models")).json()


async def test_the_tokenizer_s_settings_where_the_operator_shows_them(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "ByteTokenizer", "model_max_length": 5, "name_or_path": "somewhere", "vocab_file": "x"}
        )
    )
    engine = FakeEngine(template=TEMPLATE)
    object.__setattr__(engine.config.model, "tokenizer", str(tmp_path))
    async with in_process(engine, ServerSettings(tokenizer_info=True)) as api:
        answer = (await api.client.get("/tokenizer_info")).json()
    assert answer == {"tokenizer_class": "ByteTokenizer", "model_max_length": 5, "chat_template": TEMPLATE}
    assert "/tokenizer_info" not in {route.path for route in create_app(engine, ServerSettings()).routes}


# ---- health ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health", "/readyz", "/livez", "/ping"])
async def test_no_load_makes_a_health_check_fail(path):
    settings = ServerSettings(max_requests=0, api_keys=("key",), max_requests_per_key=1, drain_seconds=0.1)
    async with in_process(FakeEngine(), settings) as api:
        key = {"Authorization": "Bearer key"}
        assert (await api.client.get("/v1/models", headers=key)).status_code == 503
        assert (await api.client.get(path, headers=key)).status_code == 200
    engine = FakeEngine(script=Script(hang_at=0))
    settings = ServerSettings(api_keys=("key",), max_requests_per_key=1, drain_seconds=0.1)
    async with (
        on_socket(engine, settings) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60, headers=key) as http,
    ):
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=CHAT))
        await until(lambda: len(engine.running) == 1)
        assert (await http.get("/v1/models")).status_code == 429
        assert (await http.get(path)).status_code == 200
        asking.cancel()
        await until(lambda: not engine.running)


@pytest.mark.parametrize("path", ["/health", "/readyz", "/ping"])
async def test_a_health_check_that_fails_says_when_to_ask_again(api, path):
    api.engine.health.restarting = True
    response = await api.client.get(path)
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


async def test_the_door_says_when_to_ask_again():
    loading = asyncio.Event()
    async with on_socket(FakeEngine(), loading=loading) as server, httpx.AsyncClient(base_url=server.url) as http:
        for path in ("/health", "/readyz", "/ping", "/v1/models"):
            response = await http.get(path)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert (await http.get("/livez")).status_code == 200
        loading.set()
