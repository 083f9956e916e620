"""Finds stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopChecker:
    """Passes text through up to the first stop string, holding back only what may be the beginning of one.

    The match that begins first wins; among those that begin at the same place, the longest. The result does not depend
    on how the text is split: while a longer match is possible, the end waits for the next piece or for `flush`.

    min_tokens: text of tokens that may not end the completion yet is fed with armed=False. It passes through, and no
    match can begin in it, so a stop string only counts if it lies entirely after the first min_tokens tokens.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        assert all(stops), "an empty stop string is refused with the request"
        # Longest first, so that the first match at a place is the one that wins.
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._borders = {stop: _border_lengths(stop) for stop in self._stops}
        self._first_chars = frozenset(stop[0] for stop in self._stops)
        self._include = include_in_output
        self._held = ""

    def feed(self, text: str, armed: bool = True) -> tuple[str, str | None]:
        """Returns the text to emit, and the stop string that ended it, if any. Do not call again after one was
        found."""
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
        """Like `feed`, for the end of the text: nothing is held back any more."""
        match = self._first_match()
        if match is not None:
            return self._end(*match)
        emit, self._held = self._held, ""
        return emit, None

    def _first_match(self) -> tuple[int, str] | None:
        """The winning complete match in the held text: its position and stop string."""
        found = [(self._held.find(stop), stop) for stop in self._stops]
        return min((match for match in found if match[0] >= 0), key=lambda match: match[0], default=None)

    def _first_pending(self) -> int:
        """Where the longest incomplete match begins; the length of the held text if there is none."""
        return len(self._held) - max((self._unfinished_length(stop) for stop in self._stops), default=0)

    def _unfinished_length(self, stop: str) -> int:
        """Length of the longest suffix of the held text that is a proper prefix of `stop` (Knuth-Morris-Pratt)."""
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
    """For each prefix of `stop`, the length of its longest proper suffix that is also a prefix."""
    lengths = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[length] != stop[index]:
            length = lengths[length - 1]
        length += stop[length] == stop[index]
        lengths[index] = length
    return lengths
