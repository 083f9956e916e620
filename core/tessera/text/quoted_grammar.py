"""A grammar of texts as a grammar of the same texts within a JSON string: what quotation marks, backslashes and control
characters match, their escapes match.

Each character has one escape, the shortest (RFC 8259, section 7). llguidance's lexer takes the longest match and never
goes back, and escapes begin alike, so the result has no terminals of more than a character: strings and regular
expressions become rules. What it allows is therefore what the grammar says, wherever a lexer would cut the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

SPECIAL: Mapping[str, str] = MappingProxyType(
    {character: json.dumps(character)[1:-1] for character in ('"', "\\", *map(chr, range(32)))}
)
"""The characters that a JSON string cannot have as they are, and their escapes."""
_OTHERS = r'[^"\\\x00-\x1f]'
_NOTHING = '""'

Matches = Callable[[str], frozenset[int]]
"""The single bytes that a class of a regular expression matches."""


class NotQuotable(Exception):  # noqa: N818 - says what of a grammar has no counterpart
    """What in a grammar has no counterpart within a JSON string; the message names it."""


# ---- grammars in Lark's syntax, as llguidance reads it ---------------------------------------------------------------

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*)
    | (?P<string>"(?:\\.|[^"\\\n])*")(?P<fold>i?)
    | (?P<regex>/(?!/)(?:\\.|[^/\\\n])+/)(?P<flags>[a-z]*)
    | (?P<import>%import[^\n]*)
    | (?P<options>%llguidance\s*\{\s*\})
    | (?P<directive>%\w+)
    | (?P<special><[^\s<>]*>)
    | (?P<operator>&|~(?!\s*\d))
    | (?P<terminal>_?[A-Z][A-Z0-9_]*\b)(?P<priority>\.-?\d+)?
    | (?P<rest>\w+ | \.\. | -> | .)""",
    re.VERBOSE | re.DOTALL,
)
_IMPORT = re.compile(r"%import\s+common\s*(?:\.(?P<one>\w+)\s*(?:->\s*(?P<as>\w+))?|\((?P<several>[\w\s,]+)\))\s*$")
COMMON: Mapping[str, str] = MappingProxyType(
    {
        "CNAME": r"[_a-zA-Z][_a-zA-Z0-9]*",
        "CR": r"\r",
        "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
        "DIGIT": r"[0-9]",
        "ESCAPED_STRING": r'"(?:[^"\\\x00-\x1f\x7f]|\\["\\/bfnrt]|\\u[0-9A-Fa-f]{4})*"',
        "FLOAT": r"(?:[0-9]+[eE][-+]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)",
        "HEXDIGIT": r"[a-fA-F0-9]",
        "INT": r"[0-9]+",
        "LCASE_LETTER": r"[a-z]",
        "LETTER": r"[A-Za-z]",
        "LF": r"\n",
        "NEWLINE": r"(?:\r?\n)+",
        "SIGNED_INT": r"[-+]?[0-9]+",
        "UCASE_LETTER": r"[A-Z]",
        "WORD": r"[A-Za-z]+",
        "WS": r"[ \t\f\r\n]+",
        "WS_INLINE": r"[ \t]+",
    }
)
"""Lark's common terminals."""


def quoted(lark: str, matches: Matches) -> str:
    """The grammar with each string and regular expression changed so that it matches what JSON writes. Raises
    NotQuotable."""
    return "".join(_pieces(list(_TOKEN.finditer(lark)), cache(matches)))


def _pieces(tokens: Sequence[re.Match[str]], matches: Matches) -> Iterator[str]:
    place = 0
    while place < len(tokens):
        token = tokens[place]
        match token.lastgroup:
            case "fold":
                end = _range_end(tokens, place)
                if end is None:
                    text, fold = _read(token["string"]), bool(token["fold"])
                    yield f"({' '.join(_character(character, fold=fold) for character in text) or _NOTHING})"
                else:
                    yield _of_range(token["string"], tokens[end]["string"], matches)
                    place = end
            case "flags":
                fold, dot_all = "i" in token["flags"], "s" in token["flags"]
                yield f"({of_regex(token['regex'][1:-1], matches, fold=fold, dot_all=dot_all)})"
            case "import":
                yield _of_import(token["import"], matches)
            case "terminal" | "priority":
                yield _rule(token["terminal"])
            case "directive":
                raise NotQuotable(f"{token['directive']} is not supported there")
            case "special":
                raise NotQuotable("special tokens are not supported there")
            case "operator":
                raise NotQuotable(f"{token['operator']} is not supported there")
            case "comment" | "options":
                pass
            case _:
                yield token[0]
        place += 1


def _rule(terminal: str) -> str:
    return f"quoted_{terminal.lower()}"


def _read(string: str) -> str:
    """The text of a string of the grammar. Raises NotQuotable."""
    try:
        text = json.loads(re.sub(r"\\x([0-9A-Fa-f]{2})", r"\\u00\1", string), strict=False)
    except ValueError:
        raise NotQuotable(f"the string {string[:40]} has an escape that is not known") from None
    assert isinstance(text, str)
    return text


def _range_end(tokens: Sequence[re.Match[str]], place: int) -> int | None:
    """The place of the string that ends a range which begins here."""
    following = [at for at in range(place + 1, min(place + 6, len(tokens))) if tokens[at][0].strip()][:2]
    if len(following) == 2 and tokens[following[0]][0] == ".." and tokens[following[1]].lastgroup == "fold":
        return following[1]
    return None


def _of_range(first: str, last: str, matches: Matches) -> str:
    low, high = _read(first), _read(last)
    if len(low) != 1 or len(high) != 1:
        raise NotQuotable(f"the range {first[:20]}..{last[:20]} is not one of single characters")
    return _class(f"[{_literal(low)}-{_literal(high)}]", matches)


def _of_import(line: str, matches: Matches) -> str:
    found = _IMPORT.match(line.partition("//")[0].rstrip())
    if found is None:
        raise NotQuotable("only %import common is supported there")
    names = re.findall(r"\w+", found["several"]) if found["several"] else [found["one"]]
    lines = []
    for name in names:
        if name not in COMMON:
            raise NotQuotable(f"common.{name} is not supported there")
        own = found["as"] or name
        lines.append(f"{_rule(own) if own.isupper() else own}: {of_regex(COMMON[name], matches)}")
    return "\n".join(lines)


# ---- characters and classes, as expressions of Lark ------------------------------------------------------------------


def _character(character: str, *, fold: bool = False) -> str:
    """What JSON writes for a character. fold: in small and in capital letters."""
    escape = SPECIAL.get(character)
    if escape is not None:
        return f"({' '.join(map(json.dumps, (escape[0], escape[1:])))})"
    return f"/(?i:{_literal(character)})/" if fold else json.dumps(character)


def _class(character_class: str, matches: Matches, *, fold: bool = False) -> str:
    """What JSON writes for a character of a class, in brackets. fold: in small and in capital letters."""
    found = matches(character_class)
    special = [character for character in SPECIAL if ord(character) in found]
    plain = f"/(?i:{character_class})/" if fold else f"/{character_class}/"
    if not special:
        return plain
    escapes = "|".join("".join(map(_literal, SPECIAL[character][1:])) for character in special)
    escaped = f'"\\\\" /(?:{escapes})/'
    if all(chr(byte) in SPECIAL for byte in found):
        return f"({escaped})"
    others = f"[{character_class}&&{_OTHERS}]"
    return f"({f'/(?i:{others})/' if fold else f'/{others}/'} | {escaped})"


def _literal(character: str) -> str:
    return character if character.isalnum() or character in ' "' or ord(character) > 127 else f"\\x{ord(character):02x}"


# ---- regular expressions, in the syntax of Rust's regex crate --------------------------------------------------------

_ESCAPES: Mapping[str, str] = MappingProxyType(
    {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
)
_NUMBERED = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|[xuU]\{([0-9A-Fa-f]{1,8})\})")
_PROPERTY = re.compile(r"\\[pP](?:\{[^}]*\}|.)|\\[dDwWsS]")
_GROUP = re.compile(r"\((?:\?(?:P?<\w+>|(?P<on>[a-zA-Z]*)(?:-(?P<off>[a-zA-Z]*))?(?P<close>[:)])))?")
_REPEATED = re.compile(r"([*+?]|\{\d*,?\d*\})\??")


class Flags(NamedTuple):
    fold: bool
    dot_all: bool


def of_regex(pattern: str, matches: Matches, *, fold: bool = False, dot_all: bool = False) -> str:
    """An expression of Lark. fold, dot_all: the flags i and s. Raises NotQuotable."""
    return _Expression(pattern, matches).either(Flags(fold, dot_all))


class _Expression:
    """Reads a regular expression from left to right."""

    def __init__(self, pattern: str, matches: Matches) -> None:
        self._pattern = pattern
        self._matches = matches
        self._place = 0

    def either(self, flags: Flags) -> str:
        """Alternatives, up to the end of the group or of the whole."""
        branches: list[list[str]] = [[]]
        while self._place < len(self._pattern) and self._pattern[self._place] != ")":
            if self._pattern[self._place] == "|":
                self._place += 1
                branches.append([])
            elif (changed := self._flags(flags)) is not None:
                flags = changed
            else:
                branches[-1].append(self._atom(flags) + self._repetition())
        return " | ".join(" ".join(filter(None, branch)) or _NOTHING for branch in branches)

    def _flags(self, flags: Flags) -> Flags | None:
        """The flags that are set from here on, as by (?i); None if none are."""
        found = _GROUP.match(self._pattern, self._place)
        if found is None or found["close"] != ")":
            return None
        self._place = found.end()
        return self._changed(found, flags)

    def _changed(self, group: re.Match[str], flags: Flags) -> Flags:
        on, off = group["on"] or "", group["off"] or ""
        if "x" in on:
            raise NotQuotable("the flag x of regular expressions is not supported there")
        fold = "i" not in off and (flags.fold or "i" in on)
        return Flags(fold, "s" not in off and (flags.dot_all or "s" in on))

    def _repetition(self) -> str:
        found = _REPEATED.match(self._pattern, self._place)
        if found is None:
            return ""
        self._place = found.end()
        return found[1]

    def _atom(self, flags: Flags) -> str:
        pattern, place = self._pattern, self._place
        character = pattern[place]
        if character == "(":
            found = _GROUP.match(pattern, place)
            assert found is not None
            self._place = found.end()
            within = self.either(self._changed(found, flags))
            self._place += 1
            return f"({within})"
        if character == "[":
            self._place = self._class_end()
            return _class(pattern[place : self._place], self._matches, fold=flags.fold)
        if character == "\\":
            return self._escape(flags)
        self._place += 1
        if character == ".":
            return _class(r"[\s\S]" if flags.dot_all else r"[^\n]", self._matches)
        if character in "^$":  # llguidance takes them at the ends alone, where they say nothing
            return ""
        return _character(character, fold=flags.fold)

    def _escape(self, flags: Flags) -> str:
        pattern, place = self._pattern, self._place
        if numbered := _NUMBERED.match(pattern, place):
            self._place = numbered.end()
            code = int(next(group for group in numbered.groups() if group), 16)
            if code > 0x10FFFF:
                raise NotQuotable("a character beyond U+10FFFF is not supported there")
            return _character(chr(code), fold=flags.fold)
        if whole := _PROPERTY.match(pattern, place):
            self._place = whole.end()
            return _class(f"[{whole[0]}]", self._matches, fold=flags.fold)
        self._place += 2
        following = pattern[place + 1 : place + 2]
        if following.isalnum() and following not in _ESCAPES:
            raise NotQuotable(f"\\{following} in a regular expression is not supported there")
        return _character(_ESCAPES.get(following, following), fold=flags.fold)

    def _class_end(self) -> int:
        """Where the class that begins here is over."""
        pattern, depth, at = self._pattern, 0, self._place
        while at < len(pattern):
            character = pattern[at]
            if character == "\\":
                at += 1
            elif character == "[":
                depth += 1
                at += pattern[at + 1 : at + 2] == "^"
                at += pattern[at + 1 : at + 2] == "]"  # a first ] is a character
            elif character == "]":
                depth -= 1
                if not depth:
                    return at + 1
            at += 1
        raise NotQuotable("a character class has no end")
