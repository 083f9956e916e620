"""What llguidance says of a grammar that it refuses, in one line for the client: what is wrong, and where."""

from __future__ import annotations

import re

from tessera.text.json_schema import MAX_REASON_CHARS, TOO_COMPLEX

_REGEX_ERROR = re.compile(r"regex parse error:\n    (?P<excerpt>.*)\n    (?P<before> *)\^+\nerror: (?P<reason>.+)")
_LARK_ERROR = re.compile(r"^(?:at )?(?P<line>\d+)\((?P<column>\d+)\): (?P<reason>.+)")
_LOOK_AROUND = "lookarounds not supported"


def regex_reason(regex: str, error: str) -> str:
    """Of what llguidance says of a regular expression: what is wrong, and where."""
    if match := _REGEX_ERROR.search(error):
        return f"{match['reason']} (at character {_place(regex, match['excerpt'], len(match['before']))})"
    if _LOOK_AROUND in error:
        return r"^ may only be its beginning and $ its end; \b and \B are not supported"
    return TOO_COMPLEX


def _place(regex: str, excerpt: str, column: int) -> int:
    """The character of the expression, from 1 on, that stands in a column of the error. There, a slash or a line break
    of the expression has a backslash before it."""
    at = 0
    for number, character in enumerate(regex, 1):
        at += 1 if excerpt.startswith(character, at) else 2
        if at > column:
            return number
    return len(regex)


def lark_reason(error: str) -> str:
    """Of what llguidance says of a grammar in Lark's syntax: what is wrong, and where."""
    match = _LARK_ERROR.match(error)
    if match is None:
        first = error.partition("\n")[0]
        return first if first and "NoExtension" not in first and "oo complex" not in first else TOO_COMPLEX
    reason = match["reason"][:MAX_REASON_CHARS].rstrip(".:")
    if reason.startswith("unknown special token"):
        reason = "special tokens are not supported in a grammar"
    return f"{reason[:1].lower()}{reason[1:]} (at line {match['line']}, column {match['column']})"
