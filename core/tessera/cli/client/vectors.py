"""Requests and answers of /v1/embeddings, as a client writes and reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera.errors import ServerError


class _Item(msgspec.Struct):
    index: int
    embedding: list[float]


class _VectorList(msgspec.Struct):
    data: list[_Item]


_decode = msgspec.json.Decoder(_VectorList).decode


def embedding_body(model: str, texts: Sequence[str], fields: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"model": model, "input": texts, "encoding_format": "float", **fields})


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
