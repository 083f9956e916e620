"""Custom tools: a model calls one as a function whose only argument is a text, which is the tool's input."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

INPUT = "input"

_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_LONGEST_BEGIN = 256
_ESCAPES: Mapping[str, str] = MappingProxyType(
    {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
)


def parameters() -> dict[str, Any]:
    """The JSON Schema of the arguments of a custom tool."""
    return {
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": False,
    }


def arguments_of(text: str) -> str:
    """The arguments of a call with this input, as JSON."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


class InputReader:
    """Reads the input out of the JSON of the arguments, which arrives in pieces. What is no such JSON is the input as
    it is."""

    def __init__(self) -> None:
        self._unread = ""
        self._phase = "before"

    def feed(self, piece: str) -> str:
        """What the piece adds to the input."""
        self._unread += piece
        if self._phase == "before":
            found = _BEGIN.match(self._unread)
            if found is not None:
                self._phase, self._unread = "within", self._unread[found.end() :]
            elif len(self._unread) > _LONGEST_BEGIN:
                self._phase = "plain"
        if self._phase == "within":
            return self._read()
        if self._phase == "plain":
            held, self._unread = self._unread, ""
            return held
        if self._phase == "after":
            self._unread = ""
        return ""

    def finish(self) -> str:
        """What is left: the arguments are over."""
        held, self._unread = self._unread, ""
        return held if self._phase == "before" else ""

    def _read(self) -> str:
        """The text of the string so far; an escape that is not whole is held."""
        held, made, at = self._unread, [], 0
        while at < len(held):
            stop = next((place for place in range(at, len(held)) if held[place] in '"\\'), len(held))
            made.append(held[at:stop])
            at = stop
            if at == len(held):
                break
            if held[at] == '"':
                self._phase = "after"
                self._unread = ""
                return "".join(made)
            length = _escape_length(held, at)
            if at + length > len(held):
                break
            made.append(_unescaped(held[at : at + length]))
            at += length
        self._unread = held[at:]
        return "".join(made)


def _escape_length(text: str, at: int) -> int:
    """How long an escape is, as far as can be told: two for one character, twelve for a pair of surrogates."""
    if text[at + 1 : at + 2] != "u":
        return 2
    high = text[at + 2 : at + 6]
    if len(high) < 4 or not high.lower().startswith(("d8", "d9", "da", "db")):
        return 6
    following = text[at + 6 : at + 8]
    return 12 if "\\u".startswith(following) and (len(following) < 2 or following == "\\u") else 6


def _unescaped(escape: str) -> str:
    if escape[1] != "u":
        return _ESCAPES.get(escape[1], escape)
    try:
        text = json.loads(f'"{escape}"')
    except ValueError:
        return escape
    assert isinstance(text, str)
    return escape if any("\ud800" <= character <= "\udfff" for character in text) else text
