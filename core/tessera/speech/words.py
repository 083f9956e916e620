"""The words of a transcript, and when they are said."""

from __future__ import annotations

import string
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

_NO_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Codes of languages that are written without spaces between words."""
_OPENS = "\"'“¿([{-"
"""What belongs to the word behind it."""
_CLOSES = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001
"""What belongs to the word before it."""
_INCOMPLETE = "�"


@dataclass(frozen=True)
class Word:
    """Of a segment."""

    # As it stands in the text, with the space before it.
    text: str
    # Its tokens: the first one, and the one behind the last, as places among those of the window's text.
    first: int
    last: int
    # In seconds from the beginning of the recording.
    start: float = 0.0
    end: float = 0.0


async def words_of(
    tokens: Sequence[int], language: str, decode: Callable[[Sequence[int]], Awaitable[str]]
) -> list[Word]:
    """The words that tokens of text make, without times. language: its code. decode: the text of some tokens.

    As openai-whisper: tokens that together are whole characters stay together; a word begins with a space, and marks
    belong to the word beside them."""
    words: list[Word] = []
    first = 0
    for last in range(1, len(tokens) + 1):
        text = await decode(tokens[first:last])
        if _INCOMPLETE in text and last < len(tokens):
            continue
        part = Word(text, first, last)
        if words and not _begins(text, language):
            words[-1] = _joined(words[-1], part)
        else:
            words.append(part)
        first = last
    return _with_marks(words)


def _begins(text: str, language: str) -> bool:
    return language in _NO_SPACES or text.startswith(" ") or text.strip() in string.punctuation


def _with_marks(words: Sequence[Word]) -> list[Word]:
    """Marks that stand alone are joined to the word behind them, or before them."""
    opened: list[Word] = []
    for word in reversed(words):
        alone = word.text.startswith(" ") and word.text.strip() in _OPENS
        if opened and alone:
            opened[-1] = _joined(word, opened[-1])
        else:
            opened.append(word)
    closed: list[Word] = []
    for word in reversed(opened):
        if closed and not closed[-1].text.endswith(" ") and word.text in _CLOSES:
            closed[-1] = _joined(closed[-1], word)
        else:
            closed.append(word)
    return [word for word in closed if word.text.strip()]


def _joined(word: Word, behind: Word) -> Word:
    return replace(word, text=word.text + behind.text, last=behind.last)
