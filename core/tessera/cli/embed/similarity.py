"""Cosines of vectors, and their tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.arrays import Array
from tessera.errors import RequestError

MAX_COMPARED = 1000
"""Texts that are compared each with each."""
MAX_PAIRS = 50
"""Pairs in a table."""
_TEXT_WIDTH = 42
_ROW_WIDTH = 88


def cosines(vectors: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> Array:
    """[vectors, others]; 0 for a vector that has no length."""
    return _of_length_one(vectors) @ _of_length_one(others).T


def _of_length_one(vectors: Sequence[Sequence[float]]) -> Array:
    array = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(array, axis=1, keepdims=True)
    return array / np.where(lengths == 0, 1, lengths)


def check_comparable(count: int) -> None:
    """Raises RequestError if so many texts are not compared each with each."""
    if count > MAX_COMPARED:
        raise RequestError(
            f"A table compares at most {MAX_COMPARED} texts with each other, got {count}; give --query TEXT, or "
            "--output jsonl."
        )


def pair_table(texts: Sequence[str], similarity: Array) -> str:
    """The most similar pairs first. similarity: [texts, texts]."""
    first, second = np.triu_indices(len(texts), 1)
    order = np.argsort(-similarity[first, second], kind="stable")
    lines = [
        f"{similarity[i, j]:7.4f}  {_short(texts[i], _TEXT_WIDTH):<{_TEXT_WIDTH}}  {_short(texts[j], _TEXT_WIDTH)}"
        for i, j in zip(first[order[:MAX_PAIRS]], second[order[:MAX_PAIRS]], strict=True)
    ]
    if len(order) > MAX_PAIRS:
        lines.append(f"... and {len(order) - MAX_PAIRS} pairs that are less similar")
    return "\n".join([" cosine  texts", *lines])


def query_table(texts: Sequence[str], similarity: Array) -> str:
    """All texts, the most similar first. similarity: of the query to each text."""
    order = np.argsort(-similarity, kind="stable")
    return "\n".join([" cosine  text", *(f"{similarity[i]:7.4f}  {_short(texts[i], _ROW_WIDTH)}" for i in order)])


def _short(text: str, width: int) -> str:
    """In one line, without characters that steer a terminal."""
    line = "".join(character for character in " ".join(text.split()) if character.isprintable())
    return line if len(line) <= width else f"{line[: width - 1]}…"
