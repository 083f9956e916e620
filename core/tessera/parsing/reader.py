"""Reads a text that arrives in pieces, for parsers written from top to bottom.

A parser is a generator: where it needs more text than has arrived, it yields, and goes on with the next piece. Each
method that may have to wait is a generator too, to be called with `yield from`. Text is looked at once: time is linear
in its length, however it is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

Wait = Generator[None, None, None]
Emit = Callable[[str], None]

SPACE = re.compile(r"\s+")
_LOOK_BEHIND = 32
"""Characters that stay after they were taken, for patterns that look at what is before them."""


class Malformed(Exception):  # noqa: N818 - says what the text is, and is never shown
    """The text is not what the format demands here."""


class SearchMatch(NamedTuple):
    """What a search found: whose text begins and ends there. what: the searcher's own."""

    begin: int
    end: int
    what: Any


Search = Callable[[str, int, bool], SearchMatch | int]
"""Of a text, from a place on, and whether the text is over: what was found; or the place up to which nothing was."""


class Reader:
    """The text so far that no parser has taken. ended: no more is to come."""

    def __init__(self) -> None:
        self.ended = False
        self._text = ""
        self._at = 0
        self._dropped = 0
        self._marked: list[str] | None = None

    def feed(self, text: str) -> None:
        dropped = max(self._at - _LOOK_BEHIND, 0)
        self._text = self._text[dropped:] + text
        self._at -= dropped
        self._dropped += dropped

    @property
    def place(self) -> int:
        """The characters that were taken so far."""
        return self._dropped + self._at

    # ---- what has been taken since a mark, to give it back as plain text

    def mark(self) -> None:
        """From here on, what is taken is remembered."""
        self._marked = []

    def taken(self) -> str:
        """What has been taken since mark(), which is forgotten."""
        marked, self._marked = self._marked, None
        return "".join(marked or ())

    def _take(self, end: int) -> str:
        taken, self._at = self._text[self._at : end], end
        if self._marked is not None:
            self._marked.append(taken)
        return taken

    # ---- reading

    def until(self, markers: Sequence[str], emit: Emit) -> Generator[None, None, str | None]:
        """Passes text to `emit` up to the first of the markers, takes the marker and returns it; None at the end of the
        text. What may be the beginning of a marker waits."""
        pattern = _either(tuple(markers))
        while True:
            found = pattern.search(self._text, self._at)
            if found is not None:
                self._pass_on(found.start(), emit)
                return self._take(found.end())
            keep = 0 if self.ended else self._beginnings(markers)
            self._pass_on(len(self._text) - keep, emit)
            if self.ended:
                return None
            yield

    def find(self, search: Search, emit: Emit) -> Generator[None, None, tuple[Any, str] | None]:
        """Passes text to `emit` up to what `search` finds, takes that and returns it with its text; None at the end of
        the text."""
        while True:
            found = search(self._text, self._at, self.ended)
            if isinstance(found, SearchMatch):
                self._pass_on(found.begin, emit)
                return found.what, self._take(found.end)
            moved = found > self._at
            self._pass_on(found, emit)
            if self._at < len(self._text) and moved:
                continue
            if self.ended:
                self._pass_on(len(self._text), emit)
                return None
            yield

    def _pass_on(self, end: int, emit: Emit) -> None:
        if end > self._at:
            emit(self._take(end))

    def _beginnings(self, markers: Sequence[str]) -> int:
        """The number of characters at the end that may begin a marker."""
        longest = max(map(len, markers), default=1) - 1
        for size in range(min(longest, len(self._text) - self._at), 0, -1):
            tail = self._text[-size:]
            if any(marker.startswith(tail) for marker in markers):
                return size
        return 0

    def literal(self, text: str) -> Generator[None, None, bool]:
        """Takes a text if it comes next, and returns whether it does."""
        while True:
            rest = self._text[self._at : self._at + len(text)]
            if rest == text:
                self._take(self._at + len(text))
                return True
            if self.ended or not text.startswith(rest):
                return False
            yield

    def expect(self, text: str) -> Wait:
        """Takes a text. Raises Malformed if it does not come next."""
        if not (yield from self.literal(text)):
            raise Malformed

    def space(self) -> Wait:
        """Takes white space."""
        yield from self.match(SPACE, dropped)

    def peek(self) -> Generator[None, None, str]:
        """The next character; "" at the end of the text."""
        while self._at == len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def match(self, pattern: re.Pattern[str], emit: Emit) -> Wait:
        """Passes on as much as a pattern of single characters, such as [^"]*, matches."""
        while True:
            found = pattern.match(self._text, self._at)
            if found is not None:
                self._pass_on(found.end(), emit)
            if self._at < len(self._text) or self.ended:
                return
            yield

    def take(self, count: int) -> Generator[None, None, str]:
        """The next `count` characters. Raises Malformed if the text ends before."""
        while len(self._text) - self._at < count:
            if self.ended:
                raise Malformed
            yield
        return self._take(self._at + count)


def dropped(_: str) -> None:
    """For text that is of no use."""


@lru_cache(maxsize=256)
def _either(markers: tuple[str, ...]) -> re.Pattern[str]:
    """One of these texts, the longest first; nothing if there are none."""
    texts = sorted(markers, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts)) if texts else r"(?!)")
