"""Finds stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopChecker:
    """Passes text on up to the first stop string, holding back only what could still begin one.

    The match that begins first wins, and of those that begin there the longest, however the text was cut into pieces:
    where a longer match is still possible the end waits for the next piece or for `flush`.

    min_tokens: text of tokens that cannot end the answer yet is fed with `armed` false. It passes through and no match
    begins in it, so a stop string counts only if all of its text comes after the first min_tokens tokens.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        assert all(stops), "an empty stop string is refused with the request"
        # Longest first: the first that matches at a place is the one that wins there.
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._borders = {stop: _border_lengths(stop) for stop in self._stops}
        self._first_chars = frozenset(stop[0] for stop in self._stops)
        self._include = include_in_output
        self._held = ""

    def feed(self, text: str, armed: bool = True) -> tuple[str, str | None]:
        """The text that may be given out, and the stop string that ended it. Not to be called again after one has."""
        if not armed:
            assert not self._held, "text cannot be disarmed once it was armed"
            return text, None
        if not self._held and self._first_chars.isdisjoint(text):
            return text, None
        self._held += text
        match = self._first_match()
        pending = self._first_pending()
        if match is not None and match[0] < pending:
            return self._end(*match)
        emit, self._held = self._held[:pending], self._held[pending:]
        return emit, None

    def flush(self) -> tuple[str, str | None]:
        """As `feed`, at the end of the text: nothing is held back any more."""
        match = self._first_match()
        if match is not None:
            return self._end(*match)
        emit, self._held = self._held, ""
        return emit, None

    def _first_match(self) -> tuple[int, str] | None:
        """The winning whole match in the held text: where it begins, and its stop string."""
        found = [(self._held.find(stop), stop) for stop in self._stops]
        return min((match for match in found if match[0] >= 0), key=lambda match: match[0], default=None)

    def _first_pending(self) -> int:
        """Where the longest unfinished match begins; the length of the held text if there is none."""
        return len(self._held) - max((self._unfinished_length(stop) for stop in self._stops), default=0)

    def _unfinished_length(self, stop: str) -> int:
        """Length of the longest end of the held text that begins `stop` and is not all of it (Knuth-Morris-Pratt)."""
        borders = self._borders[stop]
        length = 0
        for char in self._held[-(len(stop) - 1) :] if len(stop) > 1 else "":
            while length and stop[length] != char:
                length = borders[length - 1]
            length += stop[length] == char
        return length

    def _end(self, position: int, stop: str) -> tuple[str, str]:
        end = position + len(stop) if self._include else position
        emit, self._held = self._held[:end], ""
        return emit, stop


def _border_lengths(stop: str) -> list[int]:
    """For each beginning of `stop`, the length of its longest proper end that is a beginning as well."""
    lengths = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[length] != stop[index]:
            length = lengths[length - 1]
        length += stop[length] == stop[index]
        lengths[index] = length
    return lengths
