"""The global functions of a chat template: raise_exception, strftime_now, namespace, dict, range."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, NoReturn

from jinja2.exceptions import SecurityError, TemplateError
from jinja2.sandbox import safe_range
from jinja2.utils import Namespace

from tessera.text.sandbox.budget import Budget, LazyItems, LimitExceededError

_MAX_DATE_FORMAT_CHARS = 256
# Entry in a dict: hash, key, value and their share of the table.
_BYTES_PER_ENTRY = 64
_BYTES_PER_NAMESPACE = 512


class TemplateRaisedError(TemplateError):
    """The template called raise_exception: its message is meant for whoever wrote the messages."""


class TemplateFunction:
    """A function that templates may call; it is handed the budget before the template's arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, budget: Budget, *args: Any, **kwargs: Any) -> Any:
        return self._function(budget, *args, **kwargs)


class TemplateNamespace(Namespace):
    """A namespace without private names; its repr stays short, since a namespace may hold itself."""

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold the private name {name[:80]!r}")


def _raise_exception(budget: Budget, message: Any) -> NoReturn:
    raise TemplateRaisedError(budget.text(message))


def _strftime_now(budget: Budget, date_format: Any) -> str:
    if len(budget.text(date_format)) > _MAX_DATE_FORMAT_CHARS:
        raise LimitExceededError(f"it uses a date format of more than {_MAX_DATE_FORMAT_CHARS} characters")
    return datetime.now().astimezone().strftime(date_format)


def _dict(budget: Budget, *args: Any, **kwargs: Any) -> dict[Any, Any]:
    for argument in args:
        budget.weigh(argument)
    pairs = tuple(arg if isinstance(arg, dict) else LazyItems(budget, iter(arg)) for arg in args)
    return budget.charge(dict(*pairs, **kwargs), _BYTES_PER_ENTRY)


def _namespace(budget: Budget, *args: Any, **kwargs: Any) -> TemplateNamespace:
    budget.spend(_BYTES_PER_NAMESPACE)
    attributes = _dict(budget, *args, **kwargs)
    for name in attributes:
        _check_name(budget.text(name))
    return TemplateNamespace(attributes)


def _range(budget: Budget, *args: Any) -> range:
    return safe_range(*args)


FUNCTIONS: Mapping[str, TemplateFunction] = MappingProxyType(
    {
        "dict": TemplateFunction(_dict),
        "namespace": TemplateFunction(_namespace),
        "raise_exception": TemplateFunction(_raise_exception),
        "range": TemplateFunction(_range),
        "strftime_now": TemplateFunction(_strftime_now),
    }
)
