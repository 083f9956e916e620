"""Finds stop strings in text that arrives in pieces, in time that does not grow with their number.

All stop strings of a request make one automaton (Aho and Corasick, "Efficient string matching: an aid to bibliographic
search", CACM 1975), which the completions of the request share.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

ROOT = 0


class StopStrings:
    """The automaton of some stop strings. A node stands for a prefix of one or several of them; while text is read, the
    current node is the longest prefix that the text ends with.

    Nodes are numbered as a depth-first walk of the sorted strings meets them, so the first child of a node is the next
    number, and only the other children need a dictionary. `step` takes amortised constant time a character.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string is refused with the request"
        self.stops = sorted(set(stops))
        self.first_chars = frozenset(stop[0] for stop in self.stops)
        self._first = [""]  # the character that leads to the first child; "" if there is none
        self._others: dict[tuple[int, str], int] = {}
        self._fallback = array("i", [ROOT])  # the longest proper suffix that is a node too
        self._longest = array("i", [-1])
        self._unfinished = array("i", [0])
        self._build()

    def step(self, node: int, char: str) -> int:
        """The node after one more character."""
        while True:
            if self._first[node] == char:
                return node + 1
            child = self._others.get((node, char))
            if child is not None:
                return child
            if node == ROOT:
                return ROOT
            node = self._fallback[node]

    def ending(self, node: int) -> str | None:
        """The longest stop string that ends here."""
        index = self._longest[node]
        return None if index < 0 else self.stops[index]

    def unfinished(self, node: int) -> int:
        """The length of the longest suffix that a stop string begins with and goes on after."""
        return self._unfinished[node]

    def _build(self) -> None:
        parents, chars, depths = array("i", [ROOT]), [""], array("i", [0])
        path = [ROOT]
        before = ""
        for index, stop in enumerate(self.stops):
            shared = _num_shared(before, stop)
            del path[shared + 1 :]
            for char in stop[shared:]:
                parent, node = path[-1], len(chars)
                if node == parent + 1:
                    self._first[parent] = char
                else:
                    self._others[parent, char] = node
                parents.append(parent)
                chars.append(char)
                depths.append(len(path))
                self._first.append("")
                self._longest.append(-1)
                path.append(node)
            self._longest[path[-1]] = index
            before = stop
        self._fallback.extend([ROOT] * (len(chars) - 1))
        self._unfinished.extend([0] * (len(chars) - 1))
        # A fallback is shorter than its node, so the shorter ones come first.
        for node in sorted(range(1, len(chars)), key=depths.__getitem__):
            parent = parents[node]
            fallback = ROOT if parent == ROOT else self.step(self._fallback[parent], chars[node])
            self._fallback[node] = fallback
            if self._longest[node] < 0:
                self._longest[node] = self._longest[fallback]
            self._unfinished[node] = depths[node] if self._first[node] else self._unfinished[fallback]


class StopChecker:
    """Passes text through up to the first stop string, holding back only what may be the beginning of one.

    The match that begins first wins; among those that begin at the same place, the longest. The result does not depend
    on how the text is split: while a longer match is possible, the end waits for the next piece or for `flush`.

    min_tokens: text of tokens that may not end the completion yet is fed with armed=False. It passes through, and no
    match can begin in it, so a stop string only counts if it lies entirely after the first min_tokens tokens.
    """

    def __init__(self, strings: StopStrings, include_in_output: bool = False) -> None:
        self._strings = strings
        self._include = include_in_output
        self._withheld = ""
        self._node = ROOT
        self._match: tuple[int, str] | None = None
        """The winning complete match in the held text so far: its position and stop string."""

    def feed(self, text: str, armed: bool = True) -> tuple[str, str | None]:
        """Returns the text to emit, and the stop string that ended it, if any. Do not call again after one was
        found."""
        if not armed:
            assert not self._withheld, "text cannot be disarmed once it was armed"
            return text, None
        if not self._withheld and self._strings.first_chars.isdisjoint(text):
            return text, None
        strings, node = self._strings, self._node
        end = len(self._withheld)
        self._withheld += text
        for char in text:
            node = strings.step(node, char)
            end += 1
            stop = strings.ending(node)
            if stop is not None and (self._match is None or end - len(stop) <= self._match[0]):
                self._match = end - len(stop), stop
            if self._match is not None and self._match[0] < end - strings.unfinished(node):
                return self._end(*self._match)
        self._node = node
        emitted = end - strings.unfinished(node)
        emit, self._withheld = self._withheld[:emitted], self._withheld[emitted:]
        if self._match is not None:
            self._match = self._match[0] - emitted, self._match[1]
        return emit, None

    def flush(self) -> tuple[str, str | None]:
        """Like `feed`, for the end of the text: nothing is held back any more."""
        if self._match is not None:
            return self._end(*self._match)
        emit, self._withheld = self._withheld, ""
        return emit, None

    def _end(self, position: int, stop: str) -> tuple[str, str]:
        end = position + len(stop) if self._include else position
        emit, self._withheld = self._withheld[:end], ""
        return emit, stop


def _num_shared(first: str, second: str) -> int:
    """The number of characters that two texts begin with alike."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(first), len(second)))
