"""What a server's answers mean: pieces of a stream, its models, and its errors as Tessera's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.cli.client.contract import Piece, Usage
from tessera.errors import (
    AuthenticationError,
    NotFoundError,
    OverloadedError,
    RequestError,
    ServerError,
    TesseraError,
    TooLargeError,
)

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


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    """Of a chat (delta) or of a completion (text)."""

    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[Model]


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_models = msgspec.json.Decoder(_Models).decode


def read_piece(data: bytes) -> Piece:
    """An event's data. Raises ServerError for an error that came in the stream, and for what is no chunk."""
    try:
        chunk = _decode_chunk(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ServerError(f"The server's stream holds what is no chunk of an answer: {_shown(data)}") from error
    if chunk.error is not None:
        raise ServerError(f"The server ended the answer: {_message(chunk.error) or 'it did not say why'}")
    usage = None if chunk.usage is None else Usage(chunk.usage.prompt_tokens, chunk.usage.completion_tokens or 0)
    if not chunk.choices:
        return Piece(usage=usage)
    choice = chunk.choices[0]
    text = choice.delta.content if choice.delta is not None else choice.text
    return Piece(text or "", len(choice.token_ids or ()), choice.finish_reason, usage)


def read_models(content: bytes, url: str) -> list[Model]:
    """The answer of /models. Raises ServerError."""
    try:
        models = _decode_models(content).data
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ServerError(f"{url} is not the address of an OpenAI API; mostly it ends in /v1.") from error
    if not models:
        raise ServerError(f"The server at {url} has no models.")
    return models


def error_of(status: int, content: bytes, url: str) -> TesseraError:
    """An answer that is no 200."""
    said = _message_of(content) or f"HTTP status {status}"
    if status in (401, 403):
        return AuthenticationError(
            f"The server at {url} does not take the key: {said} Give --api-key, or set TESSERA_API_KEY."
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
    """In one line, whatever shape a server gives its errors."""
    text = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return " ".join(text.split())[:MAX_SHOWN] if isinstance(text, str) else ""


def _shown(data: bytes) -> str:
    return " ".join(data[:80].decode("utf-8", "replace").split())
