"""Clients of servers that are restarted."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter

import httpx


class Load:
    """Clients that ask one request after another, every second one streamed. outcomes: how many ended how.
    trust: of a server with a certificate."""

    def __init__(self, url: str, *, trust: ssl.SSLContext | bool = True) -> None:
        self.outcomes: Counter[str] = Counter()
        self._url = url
        self._trust = trust
        self._stopping = False

    async def run(self, clients: int) -> None:
        async with httpx.AsyncClient(base_url=self._url, verify=self._trust, timeout=60) as http:
            await asyncio.gather(*(self._client(http, number) for number in range(clients)))

    def stop(self) -> None:
        self._stopping = True

    async def _client(self, http: httpx.AsyncClient, number: int) -> None:
        while not self._stopping:
            self.outcomes[await self._outcome(http, stream=number % 2 == 0)] += 1
            number += 1

    async def _outcome(self, http: httpx.AsyncClient, *, stream: bool) -> str:
        body = {"prompt": "Once upon a time", "max_tokens": 16, "ignore_eos": True, "stream": stream}
        try:
            answer = await http.post("/v1/completions", json=body)
        except httpx.HTTPError as error:
            return type(error).__name__
        whole = answer.text.rstrip().endswith("[DONE]") and '"error"' not in answer.text if stream else True
        return "answered" if answer.status_code == 200 and whole else f"{answer.status_code}, whole: {whole}"
