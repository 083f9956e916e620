"""Requests and answers of /v1/embeddings, as a client writes and reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera.cli.client import Embedder, Prompt
from tessera.errors import ServerError

MAX_BATCH = 2048
"""Texts that a server takes in one request, unless its --max-inputs says otherwise."""


class _Item(msgspec.Struct):
    index: int
    embedding: list[float]


class _VectorList(msgspec.Struct):
    data: list[_Item]


class _EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int = 0


class _UnreadVectors(msgspec.Struct):
    """The same without a look at its numbers."""

    data: list[msgspec.Raw]
    usage: _EmbeddingUsage | None = None


_decode = msgspec.json.Decoder(_VectorList).decode
_decode_unread = msgspec.json.Decoder(_UnreadVectors).decode


def embedding_body(model: str, inputs: Sequence[Prompt], fields: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"model": model, "input": inputs, "encoding_format": "float", **fields})


async def embed_texts(embedder: Embedder, texts: Sequence[str], fields: Mapping[str, Any]) -> list[list[float]]:
    """One vector for each text, in their order. fields: of the request's body besides the texts. Raises
    TesseraError."""
    return read_embeddings(await embedder.post_embeddings(texts, fields), len(texts))


def read_embeddings(content: bytes, count: int) -> list[list[float]]:
    """Parses an answer. count: of the texts. Raises ServerError for anything else than a vector for each text."""
    try:
        answer = _decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ServerError("The server's answer is not a list of embeddings.") from error
    data = sorted(answer.data, key=lambda item: item.index)
    if [item.index for item in data] != list(range(count)) or len({len(item.embedding) for item in data}) != 1:
        raise ServerError(f"The server's answer does not have an embedding of one length for each of {count} texts.")
    return [item.embedding for item in data]


def counted_tokens(content: bytes, count: int) -> int | None:
    """The tokens of all texts of an answer, whose numbers are not read; None if it does not say. count: of the texts.
    Raises ServerError if it has not as many embeddings."""
    try:
        answer = _decode_unread(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ServerError("The server's answer is not a list of embeddings.") from error
    if len(answer.data) != count:
        raise ServerError(f"The server's answer has {len(answer.data)} embeddings for {count} texts.")
    return None if answer.usage is None else answer.usage.prompt_tokens
