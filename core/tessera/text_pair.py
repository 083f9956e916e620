"""Two texts that a model reads together, such as a question and a passage that may answer it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class TextPair(NamedTuple):
    """The tokenizer's own template for pairs puts special tokens around and between them."""

    first: str
    second: str


TYPE_BOUNDARY = "type_boundary"
"""The column of the input batch that has, for models with token types, how many tokens belong to the first text."""


def type_columns(checkpoint: Mapping[str, Any], boundary: int | None) -> dict[str, float]:
    """Values for the columns of a request's row. checkpoint: the model's config.json. boundary: how many of the tokens
    belong to the first text; None for a text alone."""
    types = checkpoint.get("type_vocab_size")
    has_types = isinstance(types, int) and types > 1
    return {} if boundary is None or not has_types else {TYPE_BOUNDARY: float(boundary)}
