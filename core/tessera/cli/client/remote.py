"""A server as a client: OpenAI's HTTP routes with streamed answers, and errors as TesseraErrors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import msgspec

from tessera.cli.client import AnswerDelta, Message, Prompt, RequestUsage, Sampling
from tessera.cli.client.vectors import embedding_body
from tessera.cli.listen import is_loopback
from tessera.errors import (
    AuthenticationError,
    ConfigError,
    NotFoundError,
    OverloadedError,
    RequestError,
    ServerError,
    TesseraError,
    TooLargeError,
)

DEFAULT_URL = "http://127.0.0.1:8000/v1"
CONNECT_SECONDS = 10.0
LIST_SECONDS = 30.0
MAX_ERROR_BYTES = 2**20
MAX_EVENT_BYTES = 2**24
DONE = b"[DONE]"
MAX_SHOWN = 500
_ERRORS: Mapping[int, type[TesseraError]] = {
    400: RequestError,
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFoundError,
    413: TooLargeError,
    422: RequestError,
    429: OverloadedError,
    503: OverloadedError,
}


class RemoteClient:
    """One model of one server. See connect()."""

    def __init__(self, http: httpx.AsyncClient, url: str, model: ListedModel) -> None:
        self._http = http
        self._url = url
        self._model = model

    @property
    def model(self) -> str:
        return self._model.id

    @property
    def max_model_len(self) -> int | None:
        return self._model.max_model_len

    def chat(self, messages: Sequence[Message], sampling: Sampling) -> AsyncGenerator[AnswerDelta, None]:
        return self._stream("/chat/completions", {"messages": list(messages), **sampling})

    def complete(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[AnswerDelta, None]:
        """Requests token ids back if the prompt is token ids, so that tokens without text are counted too."""
        ids = {} if isinstance(prompt, str) else {"return_token_ids": True}
        return self._stream("/completions", {"prompt": prompt, **ids, **sampling})

    async def post_embeddings(self, inputs: Sequence[Prompt], fields: Mapping[str, Any]) -> bytes:
        content = embedding_body(self.model, inputs, fields)
        with _transport_errors(self._url):
            response = await self._http.post(f"{self._url}/embeddings", content=content)
        if response.status_code != 200:
            raise error_of(response.status_code, response.content, self._url)
        return response.content

    async def _stream(self, route: str, fields: Mapping[str, Any]) -> AsyncGenerator[AnswerDelta, None]:
        body = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}, **fields}
        content = msgspec.json.encode(body)
        reader = EventReader()
        with _transport_errors(self._url):
            async with self._http.stream("POST", self._url + route, content=content) as response:
                if response.status_code != 200:
                    raise error_of(response.status_code, await _first_bytes(response), self._url)
                async for received in response.aiter_bytes():
                    for data in reader.feed(received):
                        if data == DONE:
                            return
                        yield read_piece(data)
        raise ServerError(f"The server at {self._url} closed the connection in the middle of an answer.")


@asynccontextmanager
async def connect(
    url: str, *, api_key: str | None, model_name: str | None, transport: httpx.AsyncBaseTransport | None = None
) -> AsyncIterator[RemoteClient]:
    """Connects to a server. url: with or without /v1. model_name: None uses the first model that the server lists.
    transport: replaces the network in tests. Raises ConfigError, ServerError, AuthenticationError or
    NotFoundError."""
    base, host = _base_of(url)
    headers = {"Content-Type": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {_checked(api_key)}"
    async with httpx.AsyncClient(
        headers=headers,
        timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
        limits=httpx.Limits(max_connections=None),
        # Do not send requests to this machine through a proxy.
        trust_env=not is_loopback(host),
        transport=transport,
    ) as http:
        yield RemoteClient(http, base, await _model(http, base, model_name))


async def _model(http: httpx.AsyncClient, base: str, name: str | None) -> ListedModel:
    with _transport_errors(base):
        response = await http.get(f"{base}/models", timeout=LIST_SECONDS)
    if response.status_code == 404:
        raise NotFoundError(f"{base} is not an OpenAI API; its URL usually ends in /v1.")
    if response.status_code != 200:
        raise error_of(response.status_code, response.content, base)
    models = read_models(response.content, base)
    if name is None:
        return models[0]
    for model in models:
        if model.id == name:
            return model
    known = ", ".join(model.id for model in models[:5])
    raise NotFoundError(f"The server at {base} does not serve '{name}'; it serves {known}.")


def _base_of(url: str) -> tuple[str, str]:
    """The URL with /v1 and without a trailing slash, and the host. Raises ConfigError."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"--url '{url}' is not an HTTP URL such as {DEFAULT_URL}.") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"--url '{url}' is not an HTTP URL such as {DEFAULT_URL}.")
    base = url.rstrip("/")
    return (f"{base}/v1" if parsed.path in ("", "/") else base), parsed.host


def _checked(key: str) -> str:
    if not key.isascii() or not key.isprintable():
        raise ConfigError("The API key has characters that an HTTP header cannot carry.")
    return key


async def _first_bytes(response: httpx.Response) -> bytes:
    content = b""
    async for received in response.aiter_bytes():
        content += received
        if len(content) > MAX_ERROR_BYTES:
            break
    return content


@contextmanager
def _transport_errors(url: str) -> Iterator[None]:
    """Turns transport errors into one-line ServerErrors."""
    try:
        yield
    except httpx.ConnectError as error:
        raise ServerError(f"Cannot connect to {url} ({_reason(error)}); start a server with tessera serve.") from error
    except httpx.TimeoutException as error:
        raise ServerError(f"The server at {url} did not answer in time.") from error
    except httpx.HTTPError as error:
        raise ServerError(f"Lost the connection to the server at {url} ({_reason(error)}).") from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


# ---- the server's answers ---------------------------------------------------------


class _Delta(msgspec.Struct):
    content: str | None = None


class _RemoteChoice(msgspec.Struct):
    """A choice of a chat (delta) or completion (text)."""

    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _RemoteUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0


class _Chunk(msgspec.Struct):
    choices: list[_RemoteChoice] = []
    usage: _RemoteUsage | None = None
    error: Any = None


class ListedModel(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[ListedModel]


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_models = msgspec.json.Decoder(_Models).decode


def read_piece(data: bytes) -> AnswerDelta:
    """Parses an event's data. Raises ServerError for an error in the stream, and for anything that is not a chunk."""
    try:
        chunk = _decode_chunk(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ServerError(f"The server sent an event that is not a chunk of an answer: {_excerpt(data)}") from error
    if chunk.error is not None:
        raise ServerError(f"The server ended the answer: {_message(chunk.error) or 'no reason given'}")
    usage = None if chunk.usage is None else RequestUsage(chunk.usage.prompt_tokens, chunk.usage.completion_tokens or 0)
    if not chunk.choices:
        return AnswerDelta(usage=usage)
    choice = chunk.choices[0]
    text = choice.delta.content if choice.delta is not None else choice.text
    return AnswerDelta(text or "", len(choice.token_ids or ()), choice.finish_reason, usage)


def read_models(content: bytes, url: str) -> list[ListedModel]:
    """Parses the answer of /models. Raises ServerError."""
    try:
        models = _decode_models(content).data
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ServerError(f"{url} is not an OpenAI API; its URL usually ends in /v1.") from error
    if not models:
        raise ServerError(f"The server at {url} serves no models.")
    return models


def error_of(status: int, content: bytes, url: str) -> TesseraError:
    """The error for an answer whose status is not 200."""
    said = _message_of(content) or f"HTTP status {status}"
    if status in (401, 403):
        return AuthenticationError(
            f"The server at {url} rejected the API key: {said} Set --api-key or TESSERA_API_KEY."
        )
    kind = _ERRORS.get(status)
    if kind is None:
        return ServerError(f"The server at {url} failed: {said}")
    return kind(said if _message_of(content) else f"The server at {url} answered with HTTP status {status}.")


def _message_of(content: bytes) -> str:
    try:
        body = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return _message(body.get("error", body)) if isinstance(body, dict) else ""


def _message(error: Any) -> str:
    """The message as one line, whatever form the server's errors have."""
    text = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return " ".join(text.split())[:MAX_SHOWN] if isinstance(text, str) else ""


def _excerpt(data: bytes) -> str:
    return " ".join(data[:80].decode("utf-8", "replace").split())


class EventReader:
    """Parses server-sent events as specified by WHATWG, from byte strings of any size. Lines end in LF, CRLF or CR;
    comments and fields other than data are ignored."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, content: bytes) -> Iterator[bytes]:
        """Yields the data of each complete event. Raises ServerError for one that is too long."""
        lines = (self._rest + content).splitlines(keepends=True)
        # The last line may continue, and a CR may be the first half of a CRLF.
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        for line in lines:
            yield from self._take(line.rstrip(b"\r\n"))
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise ServerError(f"The server sent an event of more than {MAX_EVENT_BYTES} bytes.")

    def _take(self, line: bytes) -> Iterator[bytes]:
        if not line:
            if self._data:
                yield b"\n".join(self._data)
            self._data, self._size = [], 0
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)
