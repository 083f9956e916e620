"""Strings: what a schema says of them, and regular expressions of how JSON writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tessera.text.json_schema.document import Place

_PLAIN = r'[^"\\\x00-\x1f]'
_CHARACTER = rf'(?:{_PLAIN}|\\(?:["\\bfnrt]|u00(?:0[0-7bef]|1[0-9a-f])))'
"""A character as JSON has to write it: escaped only if it must be, and in one way, which is literal()'s. With a second
spelling a name could come twice, or be one that is excluded."""


@dataclass
class Strings:
    """What a schema says of strings."""

    # In characters.
    min_length: int = 0
    max_length: int | None = None
    # Each matches somewhere, with its place.
    patterns: list[tuple[str, Place]] = field(default_factory=list)
    # Regular expressions that each match the whole.
    formats: list[str] = field(default_factory=list)
    # Patterns of which none matches.
    excluded_patterns: list[tuple[str, Place]] = field(default_factory=list)
    # Texts of which it is none.
    excluded_texts: list[str] = field(default_factory=list)

    @property
    def positive(self) -> bool:
        """Whether it says only what strings are, and nothing of what they are not."""
        return not self.excluded_patterns and not self.excluded_texts

    @property
    def plain(self) -> bool:
        return self.positive and not (self.patterns or self.formats or self.min_length or self.max_length is not None)

    def schema(self) -> dict[str, Any]:
        """The same as a JSON Schema for llguidance; for positive ones."""
        made: dict[str, Any] = {"type": "string"}
        if self.min_length:
            made["minLength"] = self.min_length
        if self.max_length is not None:
            made["maxLength"] = self.max_length
        patterns = [pattern for pattern, _ in self.patterns] + [f"^(?:{whole})$" for whole in self.formats]
        if len(patterns) == 1:
            made["pattern"] = patterns[0]
        elif patterns:
            made["allOf"] = [{"pattern": pattern} for pattern in dict.fromkeys(patterns)]
        return made

    def terminal(self, terminals: Iterable[str] = (), *, escapes: bool = True) -> str:
        """The same as a terminal of Lark, in quotation marks as JSON writes it. Where patterns are concerned, only
        strings that hold nothing to escape. terminals: further ones that it has to match. escapes: whether these are
        of strings that may hold what is escaped. Raises Unanchored."""
        escapes = escapes and not (self.patterns or self.formats or self.excluded_patterns)
        most = "" if self.max_length is None else self.max_length
        bounds = f"{{{self.min_length},{most}}}" if self.min_length or most != "" else "*"
        parts = [f'/"{_CHARACTER if escapes else _PLAIN}{bounds}"/', *terminals]
        parts += [quote_pattern(pattern) for pattern, _ in self.patterns]
        parts += [f'/"(?:{escape_slashes(whole)})"/' for whole in self.formats]
        parts += [f"~{quote_pattern(pattern)}" for pattern, _ in self.excluded_patterns]
        if self.excluded_texts:
            parts.append(f"~({' | '.join(literal(text) for text in dict.fromkeys(self.excluded_texts))})")
        return " & ".join(parts)


def literal(value: Any) -> str:
    """A JSON value as the text that must come next, in Lark's syntax."""
    written = json.dumps(json.dumps(value, ensure_ascii=False), ensure_ascii=False)
    return written.replace("\x7f", r"\u007f")  # which no text of Lark may have


_TEXTS = re.compile(r"\^(?:(?P<text>\w+)|\((?:\?:)?(?P<texts>[\w-]+(?:\|[\w-]+)*)\)|\[(?P<characters>\w+)\])\$")


def spelled_texts(pattern: str) -> list[str]:
    """The texts that a pattern matches, where it spells them out: ^a$, ^(a|b)$ or ^[ab]$."""
    match = _TEXTS.fullmatch(pattern)
    if match is None:
        return []
    return list(match["characters"] or ()) or (match["text"] or match["texts"]).split("|")


def quote_pattern(pattern: str) -> str:
    """A pattern as a terminal of the strings that it matches somewhere, which hold nothing to escape. Raises
    Unanchored."""
    return f'/"(?:{escape_slashes(match_anywhere(pattern))})"/'


def escape_slashes(regex: str) -> str:
    """A regular expression as Lark's syntax wants it: no slashes and line breaks but as escapes."""
    return re.sub(r"\\\n|\\.|[/\n\r]", lambda match: _SLASH_ESCAPES.get(match[0], match[0]), regex)


_SLASH_ESCAPES = {"/": r"\/", "\n": r"\n", "\r": r"\r", "\\\n": r"\n"}


class Unanchored(Exception):  # noqa: N818 - says what of a pattern cannot be said otherwise
    """A pattern with an anchor elsewhere than at the ends of its alternatives."""


_PIECE = re.compile(
    r"\\[\s\S]|\[\^?\]?(?:\\[\s\S]|\[:\w+:\]|[^\]\\])*\]|\(\?(?:[:=!]|<[=!]|P?<\w+>|[a-z-]+[:)])|[\s\S]"
)
_ASCII = {r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]"}
_ASCII_WITHIN = {r"\d": "0-9", r"\w": "0-9A-Za-z_"}


def match_anywhere(pattern: str) -> str:
    """A pattern, which matches anywhere, as a regular expression that matches a whole text. Raises Unanchored."""
    branches: list[list[str]] = [[]]
    depth = 0
    for piece in _PIECE.findall(pattern):
        if piece.startswith("(") and not piece.endswith(")"):
            depth += 1
        elif piece == ")":
            depth -= 1
        if piece == "|" and not depth:
            branches.append([])
        else:
            branches[-1].append(_ascii(piece))
    return "|".join(_whole(branch) for branch in branches)


def _ascii(piece: str) -> str:
    """\\d and \\w of ASCII, as a pattern of JSON Schema means them."""
    if piece.startswith("["):
        return re.sub(r"\\.", lambda match: _ASCII_WITHIN.get(match[0], match[0]), piece)
    return _ASCII.get(piece, piece)


def _whole(pieces: list[str]) -> str:
    if _in_one_group(pieces):
        return f"(?:{match_anywhere(''.join(pieces[1:-1]))})"
    begun = bool(pieces) and pieces[0] == "^"
    ended = len(pieces) > begun and pieces[-1] == "$"
    inner = pieces[begun : len(pieces) - ended]
    if "^" in inner or "$" in inner or r"\b" in inner or r"\B" in inner:
        raise Unanchored
    anything = "(?s:.*)"
    return f"{'' if begun else anything}(?:{''.join(inner)}){'' if ended else anything}"


def _in_one_group(pieces: list[str]) -> bool:
    if len(pieces) < 3 or pieces[0] not in ("(", "(?:") or pieces[-1] != ")":
        return False
    depth = 0
    for place, piece in enumerate(pieces):
        depth += (piece.startswith("(") and not piece.endswith(")")) - (piece == ")")
        if not depth:
            return place == len(pieces) - 1
    return False
