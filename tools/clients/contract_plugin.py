"""A plugin of pytest for the SDKs' own contract tests, in the clients' environment. They were made for a mock that
knows any id. Here the ids of what has to exist are those of things made just before, in paths, cursors and one body;
and bodies without an input, which OpenAI refuses although its specification does not say so, get one. All else goes as
the SDK wrote it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from importlib import import_module
from typing import Any

import httpx2
import pytest

BASE = os.environ["TEST_API_BASE_URL"]
SILENT = "Say nothing."
"""What the scripted model answers with nothing, until it is cancelled."""

LEFT_OUT = {
    "openai": {
        "chat/test_completions.py::test_method_create_with_all_params_overload_*": "audio, web search, functions",
        "responses/test_input_tokens.py::test_method_count_with_all_params": "a previous response and a conversation",
        "test_batches.py::test_method_create_with_all_params": "files that expire",
        "test_completions.py::test_method_create_with_all_params_overload_1": "stream_options without a stream",
        "test_completions.py::test_method_create_with_all_params_overload_2": "a bias of the token `foo`",
        "test_files.py::test_method_create_with_all_params": "files that expire",
        "test_models.py::test_[!p]*_delete": "deleting models",
        "test_responses.py::test_*_compact*": "compaction",
        "test_responses.py::test_method_create_with_all_params_overload_*": "a prompt by id, truncation",
    },
    "anthropic": {
        "test_messages.py::test_deprecated_model_warning": "models that are not served",
        "test_messages.py::test_method_create_with_all_params_overload_*": "containers",
        "test_models.py::test_method_list_with_all_params": "models before one and after another",
    },
}
"""The tests whose requests are refused, and for what."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that the SDK runs against a mock of its own say nothing of a server."""
    mocked = [item for item in items if "respx2_mock" in getattr(item, "fixturenames", ())]
    items[:] = [item for item in items if item not in mocked]
    config.hook.pytest_deselected(items=mocked)
    sdk = config.rootpath.name.partition("-")[0]
    refused = import_module(sdk).APIStatusError
    for pattern, reason in LEFT_OUT[sdk].items():
        found = [item for item in items if fnmatch(_name(item), pattern)]
        if not found:
            raise pytest.UsageError(f"{sdk} has no test {pattern}: take it out of LEFT_OUT.")
        for item in found:
            item.add_marker(pytest.mark.xfail(raises=refused, reason=reason, strict=True))


def _name(item: pytest.Item) -> str:
    return f"{item.path.as_posix().partition('/api_resources/')[2]}::{item.name.partition('[')[0]}"


# ---- what has to exist -----------------------------------------------------------------------------------------------


def create(path: str, **sent: Any) -> str:
    """Has the server make a thing. Returns its path."""
    answer = httpx2.post(f"{BASE}{path}", **sent)
    answer.raise_for_status()
    return f"{path}/{answer.json()['id']}"


def chat() -> str:
    # The SDK's type for kept messages has no role but this one.
    messages = [{"role": "assistant", "content": "Hello."}]
    return create("/chat/completions", json={"messages": messages, "store": True})


def response(text: str = "Hello.") -> str:
    return create("/responses", json={"input": text, "background": True})


def conversation() -> str:
    return create("/conversations", json={"items": [{"type": "message", "role": "user", "content": "Hello."}]})


def item() -> str:
    path = f"{conversation()}/items"
    return f"{path}/{httpx2.get(f'{BASE}{path}').json()['data'][0]['id']}"


def file() -> str:
    line = {"custom_id": "1", "method": "POST", "url": "/v1/responses", "body": {"input": SILENT}}
    return create("/files", data={"purpose": "batch"}, files={"file": ("lines.jsonl", json.dumps(line))})


def batch() -> str:
    body = {"input_file_id": _id(file()), "endpoint": "/v1/responses", "completion_window": "24h"}
    return create("/batches", json=body)


def _id(path: str) -> str:
    return path.rpartition("/")[2]


_STORED_RESPONSE = "/responses/resp_677efb5139a88190b512bc3fef8e535d"
THINGS: Mapping[str, Callable[[], str]] = {
    "/chat/completions/completion_id": chat,
    f"{_STORED_RESPONSE}/cancel": lambda: f"{response(SILENT)}/cancel",
    _STORED_RESPONSE: response,
    "/responses/response_id": response,
    "/conversations/conv_123/items/msg_abc": item,
    "/conversations/conv_123": conversation,
    "/files/string": file,
    "/batches/string": batch,
}
"""What makes the things that are meant, by how paths of the tests begin."""
LISTS: Mapping[str, Callable[[], str]] = {"/chat/completions": chat, "/files": file, "/batches": batch}
"""What makes something that is in a list, by its path."""


def real(request: httpx2.Request) -> httpx2.Request:
    """The request as the server can answer it."""
    path = request.url.path.removeprefix("/v1")
    begin = next((begin for begin in THINGS if path.startswith(begin)), None)
    if begin is not None:
        request.url = request.url.copy_with(path=f"/v1{THINGS[begin]()}{path.removeprefix(begin)}")
    if request.url.params.get("after") in ("after", "string"):
        LISTS.get(path, str)()
        first = httpx2.get(request.url.copy_with(query=None)).json()["data"][0]["id"]
        request.url = request.url.copy_set_param("after", first)
    if request.method != "POST" or path not in ("/batches", "/responses", "/responses/input_tokens"):
        return request
    sent = json.loads(request.content)
    if path != "/batches":
        body = {"input": "Hello.", **sent}
    else:
        body = {**sent, "input_file_id": _id(file())} if sent["input_file_id"] == "string" else sent
    if body == sent:
        return request
    headers = [(name, value) for name, value in request.headers.multi_items() if name != "content-length"]
    return httpx2.Request("POST", request.url, headers=headers, json=body, extensions=request.extensions)


def checked(answer: httpx2.Response) -> httpx2.Response:
    """No test is left out, or passes, because the server failed."""
    assert not answer.is_server_error, answer
    return answer


def pytest_configure() -> None:
    send, send_later = httpx2.Client.send, httpx2.AsyncClient.send

    def sent(client: httpx2.Client, request: httpx2.Request, **options: Any) -> httpx2.Response:
        return checked(send(client, real(request), **options))

    async def sent_later(client: httpx2.AsyncClient, request: httpx2.Request, **options: Any) -> httpx2.Response:
        return checked(await send_later(client, real(request), **options))

    patch = pytest.MonkeyPatch()
    patch.setattr(httpx2.Client, "send", sent)
    patch.setattr(httpx2.AsyncClient, "send", sent_later)
