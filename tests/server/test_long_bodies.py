"""Long bodies: read beside the event loop, as short ones are on it, and with the same answers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from tessera.server import decode, http, prompt_field
from tessera.server.decode import LONG_BODY
from tessera.server.http import json_response
from tests.server.conftest import Api


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads on which JSON is decoded."""
    threads: list[str] = []
    before = decode.decoded

    def noted(decoder: Any, data: bytes, field: str = "") -> Any:
        threads.append(threading.current_thread().name.partition("_")[0])
        return before(decoder, data, field)

    monkeypatch.setattr(decode, "decoded", noted)
    monkeypatch.setattr(prompt_field, "decoded", noted)
    return threads


@pytest.mark.parametrize(("length", "thread"), [(1, "MainThread"), (LONG_BODY, "assembly")])
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", "messages"),
        ("/v1/messages", "messages"),
        ("/api/chat", "messages"),
        ("/v1/responses", "input"),
        ("/v1/completions", "prompt"),
        ("/tokenize", "prompt"),
    ],
)
async def test_a_long_body_is_decoded_on_another_thread(
    api: Api, where: list[str], path: str, field: str, length: int, thread: str
) -> None:
    text: Any = "x" * length
    body = {"model": "m", "max_tokens": 16, field: [{"role": "user", "content": text}] if field != "prompt" else text}
    await api.post(path, body)
    assert set(where) == {thread}


async def test_a_long_body_that_is_wrong_is_refused(api: Api) -> None:
    answer = await api.post("/v1/completions", {"prompt": "x" * LONG_BODY, "max_tokens": "many"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")


async def test_unknown_fields_of_a_long_body_count(api: Api) -> None:
    await api.post("/tokenize", {"prompt": "x" * LONG_BODY, "odd_one": 1})
    assert 'odd_one"' in (await api.client.get("/metrics")).text


def test_lists_of_ids_are_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    before = prompt_field.decoded

    def noted(decoder: Any, data: bytes, field: str = "") -> Any:
        seen.append(data)
        return before(decoder, data, field)

    monkeypatch.setattr(prompt_field, "decoded", noted)
    field = prompt_field.PromptField("prompt", 2, "prompts")
    assert field.decode(b"[[1, 2], [3]]").ids == [[1, 2], [3]]
    assert seen[1:] == [b"[1, 2]", b"[3]"]


async def test_a_large_answer_waits_for_its_reader() -> None:
    """No piece is sent before the last one was taken, so that little is copied at once."""
    body = {"text": "x" * (3 * http._SEND_BYTES)}
    pieces: list[bytes] = []

    async def send(message: Any) -> None:
        await asyncio.sleep(0)
        pieces.append(message.get("body", b""))

    await json_response(body)({"type": "http"}, send, send)  # type: ignore[arg-type]  # nothing is received
    assert max(map(len, pieces)) <= http._SEND_BYTES
    assert msgspec.json.decode(b"".join(pieces)) == body
