"""The filters and tests a template may use, and what is checked before each runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from jinja2.filters import FILTERS

from tessera.text.sandbox import growth
from tessera.text.sandbox.budget import Budget, LimitExceededError

# Left out of Jinja's filters: those for HTML pages (urlize, striptags, xmlattr, ...), whose regular expressions and
# wrapping have no bound worth the work, and random.
_NAMES = (
    "abs", "attr", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape", "first",
    "float", "forceescape", "format", "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower",
    "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr",
    "slice", "sort", "string", "sum", "title", "trim", "truncate", "unique", "upper", "urlencode", "wordcount",
)  # fmt: skip

# These hand on what they are given and look no deeper than its first level, so that a list of all messages is cheap.
_SHALLOW = frozenset(
    {
        "attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "reject",
        "rejectattr", "reverse", "select", "selectattr", "slice",
    }
)  # fmt: skip
# Of these the result is a value that existed before.
SELECTING = frozenset({"attr", "d", "default", "first", "last", "max", "min"})
# These walk through their whole input, so they are given an iterator with a clock in it, or a list.
ITERATING = frozenset({"batch", "list", "map", "reject", "rejectattr", "select", "selectattr", "slice"})
MATERIALISING = frozenset({"groupby", "join", "max", "min", "sort", "sum", "unique"})

# Tests that compare, or print to look at the text; all others look at the value's type only.
DEEP_TESTS = frozenset(
    {
        "==", "!=", "<", "<=", ">", ">=", "eq", "equalto", "ne", "lt", "lessthan", "le", "gt", "greaterthan", "ge",
        "in", "divisibleby", "lower", "upper",
    }
)  # fmt: skip

_MAX_NUMBER_CHARS = 4096
_MAX_ROUND_DIGITS = 100
_MAX_SLICES = 100_000
_MAX_JSON_INDENT = 32


def goes_deep(name: str) -> bool:
    return name not in _SHALLOW


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates expect it: Jinja's own filter escapes HTML and sorts keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


FILTERS_ALLOWED: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {**{name: FILTERS[name] for name in _NAMES}, "tojson": tojson}
)


def _check_center(budget: Budget, value: Any, width: Any = 80) -> None:
    if isinstance(width, int):
        budget.require_text(width)


def _check_indent(budget: Budget, value: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    indention = len(width) if isinstance(width, str) else int(width)
    budget.require_text(indention)
    text = budget.text(value)
    num_lines = growth.num_lines(text)
    budget.require(growth.BYTES_PER_PIECE * num_lines)
    budget.require_text(growth.HTML_ESCAPE_GROWTH * (len(text) + num_lines * (indention + 1)))


def _check_replace(budget: Budget, value: Any, old: Any, new: Any, count: Any = None) -> None:
    budget.require_text(growth.of_replaced(budget.text(value), budget.text(old), budget.text(new)))


def _check_trim(budget: Budget, value: Any, chars: Any = None) -> None:
    growth.check_strip(chars)


def _check_join(budget: Budget, value: Any, d: Any = "", attribute: Any = None) -> None:
    num_items = len(value) if hasattr(value, "__len__") else 0
    budget.require_text(growth.HTML_ESCAPE_GROWTH * (budget.weigh(value) + num_items * len(budget.text(d))))


def _check_format(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    budget.require_text(growth.of_percent_format(budget, budget.text(value), kwargs or args))


def _check_escape(budget: Budget, value: Any) -> None:
    budget.require_text(growth.HTML_ESCAPE_GROWTH * budget.weigh(value))


def _check_urlencode(budget: Budget, value: Any) -> None:
    budget.require_text(growth.URL_ESCAPE_GROWTH * budget.weigh(value))


def _check_case(budget: Budget, value: Any) -> None:
    budget.require_text(growth.CASE_GROWTH * budget.weigh(value))


def _check_words(budget: Budget, value: Any) -> None:
    budget.require(growth.BYTES_PER_PIECE * budget.weigh(value))


def _check_list(budget: Budget, value: Any) -> None:
    if hasattr(value, "__len__"):
        budget.require(growth.BYTES_PER_PIECE * len(value))


def _check_number(budget: Budget, value: Any, *_: Any, **__: Any) -> None:
    if isinstance(value, str) and len(value) > _MAX_NUMBER_CHARS:
        raise LimitExceededError(f"it reads a number out of more than {_MAX_NUMBER_CHARS} characters")


def _check_round(budget: Budget, value: Any, precision: Any = 0, method: Any = "common") -> None:
    if isinstance(precision, int) and abs(precision) > _MAX_ROUND_DIGITS:
        raise LimitExceededError(f"it rounds to more than {_MAX_ROUND_DIGITS} digits")


def _check_batch(budget: Budget, value: Any, linecount: Any, fill_with: Any = None) -> None:
    if fill_with is not None and isinstance(linecount, int):
        budget.require(growth.BYTES_PER_PIECE * linecount)


def _check_slice(budget: Budget, value: Any, slices: Any, fill_with: Any = None) -> None:
    if isinstance(slices, int) and slices > _MAX_SLICES:
        raise LimitExceededError(f"it cuts a list into more than {_MAX_SLICES} slices")


def _check_sum(budget: Budget, value: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, (int, float)):
        raise LimitExceededError("it sums something other than numbers")


def _check_tojson(budget: Budget, value: Any, ensure_ascii: Any = False, indent: Any = None,
                  separators: Any = None, sort_keys: Any = False) -> None:  # fmt: skip
    width = len(indent) if isinstance(indent, str) else indent
    if isinstance(width, int) and width > _MAX_JSON_INDENT:
        raise LimitExceededError(f"it indents JSON by more than {_MAX_JSON_INDENT}")
    if separators is not None and budget.weigh(separators) > 2 * _MAX_JSON_INDENT + 100:
        raise LimitExceededError("it separates JSON by long texts")


_CHECKS: Mapping[str, Callable[..., None]] = MappingProxyType(
    {
        "batch": _check_batch,
        "capitalize": _check_case,
        "center": _check_center,
        "e": _check_escape,
        "escape": _check_escape,
        "float": _check_number,
        "forceescape": _check_escape,
        "format": _check_format,
        "indent": _check_indent,
        "int": _check_number,
        "join": _check_join,
        "list": _check_list,
        "lower": _check_case,
        "replace": _check_replace,
        "round": _check_round,
        "slice": _check_slice,
        "sum": _check_sum,
        "title": _check_words,
        "tojson": _check_tojson,
        "trim": _check_trim,
        "upper": _check_case,
        "urlencode": _check_urlencode,
        "wordcount": _check_words,
    }
)


def check_filter(name: str, budget: Budget, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises LimitExceededError where the filter could cost more than is left."""
    check = _CHECKS.get(name)
    if check is not None:
        check(budget, value, *args, **kwargs)
