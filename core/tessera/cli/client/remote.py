"""A server as a client: OpenAI's routes over HTTP, answers as they stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import msgspec

from tessera.cli.address import is_loopback
from tessera.cli.client.answers import DONE, Model, error_of, read_models, read_piece
from tessera.cli.client.contract import Message, Piece, Prompt, Sampling
from tessera.cli.client.sse import EventReader
from tessera.errors import ConfigError, NotFoundError, ServerError

DEFAULT_URL = "http://127.0.0.1:8000/v1"
CONNECT_SECONDS = 10.0
LIST_SECONDS = 30.0
MAX_ERROR_BYTES = 2**20


class RemoteClient:
    """One model of one server. See connect()."""

    def __init__(self, http: httpx.AsyncClient, url: str, model: Model) -> None:
        self._http = http
        self._url = url
        self._model = model

    @property
    def model(self) -> str:
        return self._model.id

    @property
    def max_model_len(self) -> int | None:
        return self._model.max_model_len

    def chat(self, messages: Sequence[Message], sampling: Sampling) -> AsyncGenerator[Piece, None]:
        return self._stream("/chat/completions", {"messages": list(messages), **sampling})

    def complete(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """Who gives token ids gets each piece's back, so that none goes uncounted for want of text."""
        ids = {} if isinstance(prompt, str) else {"return_token_ids": True}
        return self._stream("/completions", {"prompt": prompt, **ids, **sampling})

    async def _stream(self, route: str, fields: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        body = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}, **fields}
        content = msgspec.json.encode(body)
        reader = EventReader()
        with _told_plainly(self._url):
            async with self._http.stream("POST", self._url + route, content=content) as response:
                if response.status_code != 200:
                    raise error_of(response.status_code, await _first_bytes(response), self._url)
                async for received in response.aiter_bytes():
                    for data in reader.feed(received):
                        if data == DONE:
                            return
                        yield read_piece(data)
        raise ServerError(f"The server at {self._url} broke off in the middle of an answer.")


@asynccontextmanager
async def connect(
    url: str, *, api_key: str | None, model_name: str | None, transport: httpx.AsyncBaseTransport | None = None
) -> AsyncIterator[RemoteClient]:
    """url: with or without its /v1. model_name: None takes the first that the server lists. transport: in place of the
    network. Raises ConfigError, ServerError, AuthenticationError, NotFoundError."""
    base, host = _base_of(url)
    headers = {"Content-Type": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {_checked(api_key)}"
    async with httpx.AsyncClient(
        headers=headers,
        timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
        limits=httpx.Limits(max_connections=None),
        # A proxy for the world outside has no business between this machine and itself.
        trust_env=not is_loopback(host),
        transport=transport,
    ) as http:
        yield RemoteClient(http, base, await _model(http, base, model_name))


async def _model(http: httpx.AsyncClient, base: str, name: str | None) -> Model:
    with _told_plainly(base):
        response = await http.get(f"{base}/models", timeout=LIST_SECONDS)
    if response.status_code == 404:
        raise NotFoundError(f"{base} is not the address of an OpenAI API; mostly it ends in /v1.")
    if response.status_code != 200:
        raise error_of(response.status_code, response.content, base)
    models = read_models(response.content, base)
    if name is None:
        return models[0]
    for model in models:
        if model.id == name:
            return model
    known = ", ".join(model.id for model in models[:5])
    raise NotFoundError(f"The server at {base} has no model '{name}'; it has {known}.")


def _base_of(url: str) -> tuple[str, str]:
    """The address without a slash at its end, and its host. Raises ConfigError."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"--url '{url}' is no address; one is {DEFAULT_URL}.") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"--url '{url}' is no address; one is {DEFAULT_URL}.")
    base = url.rstrip("/")
    return (f"{base}/v1" if parsed.path in ("", "/") else base), parsed.host


def _checked(key: str) -> str:
    if not key.isascii() or not key.isprintable():
        raise ConfigError("The API key holds characters that no HTTP header can.")
    return key


async def _first_bytes(response: httpx.Response) -> bytes:
    content = b""
    async for received in response.aiter_bytes():
        content += received
        if len(content) > MAX_ERROR_BYTES:
            break
    return content


@contextmanager
def _told_plainly(url: str) -> Iterator[None]:
    """What goes wrong on the way is the server's error in one line."""
    try:
        yield
    except httpx.ConnectError as error:
        raise ServerError(f"No server answers at {url} ({_reason(error)}); tessera serve starts one.") from error
    except httpx.TimeoutException as error:
        raise ServerError(f"The server at {url} does not answer in time.") from error
    except httpx.HTTPError as error:
        raise ServerError(f"The connection to the server at {url} broke off ({_reason(error)}).") from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
