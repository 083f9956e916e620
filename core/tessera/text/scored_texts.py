"""Texts on which a model's predictions are scored: windows of a text, and a text that every installation has."""

from __future__ import annotations

import difflib
import heapq
import inspect
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics
from types import ModuleType

from tessera.text.tokenizer import Tokenizer

WINDOW = 512
"""Tokens of a window."""
_LONG = 6000
"""Characters of the topics of Python's help that are read: shorter ones are mostly tables."""


@dataclass(frozen=True)
class ScoredText:
    """Tokens, and which of them count."""

    # Of the text.
    ids: list[int]
    # For each token, whether it is one that the model itself would write.
    counted: list[bool]


def windows(tokenizer: Tokenizer, text: str, size: int, count: int) -> Iterator[ScoredText]:
    """At most count windows of size tokens, each with what the tokenizer writes before a text, such as a token that
    begins it."""
    first = tokenizer.encode("", add_special_tokens=True)
    ids, each = tokenizer.encode(text[: 8 * size * count], add_special_tokens=False), size - len(first)
    for start in range(0, min(len(ids), each * count), each):
        window = [*first, *ids[start : start + each]]
        yield ScoredText(window, [True] * len(window))


def library_windows(tokenizer: Tokenizer, size: int, count: int) -> list[ScoredText]:
    """Windows of Python's help, which is English, and of two modules of its library, in equal numbers."""
    english = "\n\n".join(text for text in topics.values() if len(text) > _LONG)
    return _halves(tokenizer, english, (heapq, textwrap), size, count)


def other_library_windows(tokenizer: Tokenizer, size: int, count: int) -> list[ScoredText]:
    """As library_windows(), of other topics and modules."""
    english = "\n\n".join(text for text in topics.values() if _LONG // 4 < len(text) <= _LONG)
    return _halves(tokenizer, english, (difflib, statistics), size, count)


def _halves(
    tokenizer: Tokenizer, english: str, modules: Sequence[ModuleType], size: int, count: int
) -> list[ScoredText]:
    code = "".join(inspect.getsource(module) for module in modules)
    return [*windows(tokenizer, english, size, -(-count // 2)), *windows(tokenizer, code, size, count // 2)]
