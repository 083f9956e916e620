"""The attributes a template may reach, by the type that holds them, and what is checked before a method runs."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace
from markupsafe import Markup

from tessera.text.sandbox import growth
from tessera.text.sandbox.budget import Budget

_STR_METHODS = frozenset(
    {
        "capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find", "format", "format_map",
        "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric",
        "isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition",
        "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip",
        "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill",
    }
)  # fmt: skip
_LIST_METHODS = frozenset({"copy", "count", "index"})
# What the items of the groupby filter are called.
_GROUP_ATTRIBUTES = frozenset({"grouper", "list"})
_DICT_METHODS = frozenset({"copy", "get", "items", "keys", "values"})
_LOOP_ATTRIBUTES = frozenset(
    {
        "changed", "cycle", "depth", "depth0", "first", "index", "index0", "last", "length", "nextitem", "previtem",
        "revindex", "revindex0",
    }
)  # fmt: skip


def is_allowed_attribute(obj: Any, name: str) -> bool:
    """Whether a template may see `obj.name`. Everything not listed, above all Python's internals, is out of reach."""
    if isinstance(obj, str):
        return name in _STR_METHODS
    if isinstance(obj, dict):
        return name in _DICT_METHODS
    if isinstance(obj, list):
        return name in _LIST_METHODS
    if isinstance(obj, tuple):
        return name in _LIST_METHODS or name in _GROUP_ATTRIBUTES
    if isinstance(obj, LoopContext):
        return name in _LOOP_ATTRIBUTES
    return isinstance(obj, Namespace) and not name.startswith("_")


class StrFormat:
    """`text.format` or `text.format_map`, not called yet."""

    def __init__(self, environment: SandboxedEnvironment, text: str, takes_mapping: bool) -> None:
        if isinstance(text, Markup):
            raise SecurityError("format of a text marked safe is not supported in a chat template")
        self._environment = environment
        self._text = text
        self._takes_mapping = takes_mapping

    def __call__(self, budget: Budget, *args: Any, **kwargs: Any) -> str:
        if self._takes_mapping:
            (kwargs,) = args
            args = ()
        return _BudgetedFormatter(self._environment, budget).vformat(self._text, args, kwargs)


class _BudgetedFormatter(SandboxedFormatter):
    def __init__(self, environment: SandboxedEnvironment, budget: Budget) -> None:
        super().__init__(environment)
        self._budget = budget

    def convert_field(self, value: Any, conversion: Any) -> Any:
        self._budget.weigh(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        self._budget.tick()
        self._budget.weigh(value)
        growth.check_width(format_spec)
        return self._budget.charge(str(string.Formatter.format_field(self, value, format_spec)))


def _check_pad(budget: Budget, text: str, width: Any, *_: Any) -> None:
    if isinstance(width, int):
        budget.require_text(width)


def _check_case(budget: Budget, text: str) -> None:
    budget.require_text(growth.CASE_GROWTH * len(text))


def _check_expandtabs(budget: Budget, text: str, tabsize: Any = 8) -> None:
    if isinstance(tabsize, int):
        budget.require_text(len(text) + text.count("\t") * tabsize)


def _check_replace(budget: Budget, text: str, old: Any, new: Any, *_: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        budget.require_text(growth.of_replaced(text, old, new))


def _check_join(budget: Budget, text: str, items: Any) -> None:
    num_items = len(items) if hasattr(items, "__len__") else 0
    budget.require_text(growth.HTML_ESCAPE_GROWTH * (budget.weigh(items) + num_items * len(text)))


def _check_split(budget: Budget, text: str, sep: Any = None, maxsplit: Any = -1) -> None:
    num_pieces = text.count(sep) + 1 if isinstance(sep, str) else len(text) // 2 + 1
    if isinstance(maxsplit, int) and maxsplit >= 0:
        num_pieces = min(num_pieces, maxsplit + 1)
    budget.require(growth.BYTES_PER_PIECE * num_pieces + 4 * len(text))


def _check_rsplit(budget: Budget, text: str, sep: Any = None, maxsplit: Any = -1) -> None:
    growth.check_backward_search(text, sep)
    _check_split(budget, text, sep, maxsplit)


def _check_splitlines(budget: Budget, text: str, *_: Any, **__: Any) -> None:
    budget.require(growth.BYTES_PER_PIECE * growth.num_lines(text) + 4 * len(text))


def _check_strip(budget: Budget, text: str, chars: Any = None) -> None:
    growth.check_strip(chars)


def _check_backward(budget: Budget, text: str, part: Any, *_: Any) -> None:
    growth.check_backward_search(text, part)


_STR_CHECKS: Mapping[str, Callable[..., None]] = MappingProxyType(
    {
        "capitalize": _check_case,
        "casefold": _check_case,
        "center": _check_pad,
        "expandtabs": _check_expandtabs,
        "join": _check_join,
        "ljust": _check_pad,
        "lower": _check_case,
        "lstrip": _check_strip,
        "replace": _check_replace,
        "rfind": _check_backward,
        "rindex": _check_backward,
        "rjust": _check_pad,
        "rpartition": _check_backward,
        "rsplit": _check_rsplit,
        "rstrip": _check_strip,
        "split": _check_split,
        "splitlines": _check_splitlines,
        "strip": _check_strip,
        "swapcase": _check_case,
        "title": _check_case,
        "upper": _check_case,
        "zfill": _check_pad,
    }
)
# Their result is a new list of new strings.
SPLITTING = frozenset({"split", "rsplit", "splitlines"})


def check_method(budget: Budget, owner: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises LimitExceededError where the method could cost more than is left."""
    for argument in (*args, *kwargs.values()):
        budget.weigh(argument)
    if isinstance(owner, str):
        check = _STR_CHECKS.get(name)
        if check is not None:
            check(budget, owner, *args, **kwargs)
    elif name in ("count", "index"):  # of a list: they compare every item
        budget.weigh(owner)
