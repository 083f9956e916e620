"""A server inside an HTTP client, with known answers at known times, and a clock on which waiting costs nothing."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

URL = "http://server.test/v1"


class _Jumping(selectors.DefaultSelector):
    """Lets the time pass that others would wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everything waits for something that never comes"
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualTime(asyncio.SelectorEventLoop):
    """An event loop whose time() goes on only while all its tasks sleep, and then at once."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


@dataclass
class Timing:
    """Seconds until the first token, and between two. status: of the answer. cut: tokens after which it breaks off."""

    first: float = 0.0
    gap: float = 0.0
    status: int = 200
    cut: int | None = None
    error: str = ""


@dataclass
class FakeServer(httpx.AsyncBaseTransport):
    """timings: of the requests in their order, the last for all further ones. asked: their bodies."""

    timings: Sequence[Timing] = (Timing(),)
    words: Callable[[int], str] = "t{} ".format
    models: Any = field(default_factory=lambda: {"data": [{"id": "m", "max_model_len": 512}]})
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[httpx.Headers] = field(default_factory=list)
    closed: int = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.headers.append(request.headers)
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json=self.models)
        body = json.loads(request.content)
        timing = self.timings[min(len(self.asked), len(self.timings) - 1)]
        self.asked.append(body)
        if timing.status != 200:
            return httpx.Response(timing.status, json={"error": {"message": timing.error}})
        return httpx.Response(200, stream=_Tokens(self, body, timing))


@dataclass
class _Tokens(httpx.AsyncByteStream):
    server: FakeServer
    body: dict[str, Any]
    timing: Timing

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = self.body.get("max_tokens", 4)
        for number in range(count):
            await asyncio.sleep(self.timing.gap if number else self.timing.first)
            if number == self.timing.cut:
                if self.timing.error:
                    yield _event({"error": {"message": self.timing.error}})
                return
            yield _event({"choices": [self._choice(number)], "usage": None})
        reason = {"index": 0, "text": "", "delta": {}, "finish_reason": "length"}
        usage = {"prompt_tokens": 7, "completion_tokens": count}
        yield (
            _event({"choices": [reason], "usage": None}) + _event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n"
        )

    async def aclose(self) -> None:
        self.server.closed += 1

    def _choice(self, number: int) -> dict[str, Any]:
        word = self.server.words(number)
        content: dict[str, Any] = {"delta": {"content": word}} if "messages" in self.body else {"text": word}
        return content | ({"token_ids": [number]} if self.body.get("return_token_ids") else {})


def _event(content: Any) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"
