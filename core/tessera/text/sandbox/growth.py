"""How large the result of a text operation can become, in characters, found out before the operation starts.

Shared by the operators, filters and methods that can make much out of little.
"""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup

from tessera.text.sandbox.budget import Budget, LimitExceededError

# Widths and precisions in format strings, and the length of sets of characters to strip.
MAX_FORMAT_WIDTH = 1000
_MAX_STRIP_CHARS = 1000
# Characters one character becomes: HTML escapes (`"` is `&#34;`), and %-escapes of UTF-8.
HTML_ESCAPE_GROWTH = 5
URL_ESCAPE_GROWTH = 12
# The same when its case changes: the upper case of U+0390 is three characters.
CASE_GROWTH = 3
# Python's rfind and its kin compare in len(text) x len(part) steps at worst.
_MAX_BACKWARD_STEPS = 1 << 26
# Bytes of a short string, as the pieces of a split text are.
BYTES_PER_PIECE = 64

_LINE_ENDS = ("\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
_PERCENT_SPEC = re.compile(r"[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?")
_DIGITS = re.compile(r"\d+")


def of_text(value: Any) -> int:
    """Characters that `value` adds to a text it is joined to; a text marked safe makes its neighbours be escaped."""
    if not isinstance(value, str):
        return 0
    return len(value)


def of_joined(*texts: Any) -> int:
    factor = HTML_ESCAPE_GROWTH if any(isinstance(text, Markup) for text in texts) else 1
    return factor * sum(of_text(text) for text in texts)


def of_replaced(text: str, old: str, new: str) -> int:
    return len(text) + text.count(old) * of_joined(new, text)


def num_lines(text: str) -> int:
    return 1 + sum(text.count(end) for end in _LINE_ENDS)


def check_strip(chars: Any) -> None:
    if isinstance(chars, str) and len(chars) > _MAX_STRIP_CHARS:
        raise LimitExceededError(f"it strips more than {_MAX_STRIP_CHARS} different characters")


def check_backward_search(text: str, part: Any) -> None:
    if isinstance(part, str) and len(text) * len(part) > _MAX_BACKWARD_STEPS:
        raise LimitExceededError("it searches a long text backwards for another")


def check_width(width: Any) -> None:
    """Refuse a width or precision, or the text of a format specification that holds one, that is too large."""
    numbers = _DIGITS.findall(width) if isinstance(width, str) else [width]
    if any(isinstance(number, int) and abs(number) > MAX_FORMAT_WIDTH for number in map(_as_int, numbers)):
        raise LimitExceededError(f"it formats to a width above {MAX_FORMAT_WIDTH}")


def _as_int(number: Any) -> Any:
    # Leading zeros do not count; ten digits are too many whatever they say.
    return int(number.lstrip("0")[:10] or "0") if isinstance(number, str) else number


def of_percent_format(budget: Budget, template: str, arguments: Any) -> int:
    """Characters of `template % arguments`, after refusing widths that are large or come out of the arguments."""
    num_specs = 0
    at = template.find("%")
    while at >= 0:
        num_specs += 1
        at = _skip_mapping_key(template, at + 1)
        spec = _PERCENT_SPEC.match(template, at)
        assert spec is not None  # every part of the pattern may be empty
        if "*" in spec.groups():
            raise LimitExceededError("it takes the width of a format from an argument")
        check_width(spec.group())
        at = template.find("%", spec.end() + 1)
    factor = HTML_ESCAPE_GROWTH if isinstance(template, Markup) else 1
    return len(template) + num_specs * (MAX_FORMAT_WIDTH + factor * budget.weigh(arguments))


def _skip_mapping_key(template: str, at: int) -> int:
    """The position after a key in parentheses, which may hold balanced parentheses of its own."""
    depth = 0
    while at < len(template):
        depth += {"(": 1, ")": -1}.get(template[at], 0)
        if depth == 0:
            return at + 1 if template[at] == ")" else at
        at += 1
    return at
