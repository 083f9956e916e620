"""A flag is one field of a configuration record: `block_size: int | None = flag(None, "Tokens per block.", low=1)`.

The field defines the option of every command that accepts it, the keyword of LLM, the key in a --config file, the range
check and the generated documentation. A record stays a plain frozen dataclass; the flag is described in field metadata.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from tessera.errors import ConfigError

R = TypeVar("R")

_KINDS = {"str": "text", "int": "int", "float": "float", "bool": "switch", "tuple[str, ...]": "list"}


@dataclass(eq=False, repr=False)  # a hundred are created before `tessera serve` starts its engine, so keep them cheap
class Flag:
    """The description of a flag and, once flags_of() has read it, the location of its field."""

    help: str  # one sentence
    name: str = ""  # with underscores; defaults to the field's, and differs where vLLM has another name
    group: str = ""
    # How it is parsed, derived from the field's annotation; "size" accepts suffixes (32K, 4GiB), "switch" has a --no-
    # form if it defaults to on, "list" accepts a JSON list or comma-separated values, "json" an object.
    kind: str = ""
    default: Any = None  # the field's
    shown_default: str = ""  # the default in words, for the help, if the value is not clear by itself
    low: float | None = None  # the smallest value
    high: float | None = None  # the largest value
    above: float | None = None  # exclusive bound
    below: float | None = None  # exclusive bound
    unit: str = ""  # of the value, for messages
    choices: tuple[str, ...] = ()  # all accepted values
    spellings: Mapping[str, str] = field(default_factory=dict)  # values that stand for another one
    metavar: str = ""
    variable: str = ""  # environment variable that is read if the flag is absent
    unset: str = ""  # the word that stands for leaving the flag out
    common: bool = False  # listed by plain --help
    multiple: bool = False  # repeatable
    several: bool = False  # one occurrence may also have several values, as argparse has them
    aliases: tuple[str, ...] = ()  # further options, such as "-q", or another program's name, which the help omits
    online: bool = False  # for servers alone, so LLM does not accept it
    plan: bool = False  # affects what fits into memory, so `tessera plan` accepts it
    record: type | None = None  # the dataclass where the value is stored
    attribute: str = ""  # the field of record
    path: str = ""  # the same as a dotted path in EngineConfig ("cache.block_size")

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def default_text(self) -> str:
        if self.shown_default or self.default is None or self.default in ("", ()):
            return self.shown_default
        if self.kind == "switch":
            return "on" if self.default else ""
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


def flag(default: Any, help: str, **fields: Any) -> Any:  # noqa: A002  # `help` is what option parsers call it
    """A field of a frozen dataclass that is a flag. default: MISSING for a required field. fields: fields of Flag."""
    described = {"flag": {"help": help, **fields}}
    return field(metadata=described) if default is MISSING else field(default=default, metadata=described)


def flags_of(record: type, group: str, path: str | None = None) -> tuple[Flag, ...]:
    """The flags of a record, in the order of its fields. group: the help group of flags that name none. path: the
    record's place in EngineConfig, ending in a dot; None if it is not part of it."""
    found = []
    for one in fields(record):
        said = one.metadata.get("flag")
        if said is not None:
            said = {"name": one.name, "group": group, "kind": _kind_of(str(one.type), said), **said}
            where: dict[str, Any] = {
                "default": None if one.default is MISSING else one.default,
                "record": record,
                "attribute": one.name,
                "path": "" if path is None else f"{path}{one.name}",
            }
            found.append(Flag(**said, **where))
    return tuple(found)


def _kind_of(annotation: str, fields: Mapping[str, Any]) -> str:
    if "choices" in fields:
        return "choice"
    if "multiple" in fields:
        return "text"
    return _KINDS.get(annotation.removesuffix(" | None"), "json")


def given_values(flags: Iterable[Flag], values: Mapping[str, Any], *, as_options: bool = False) -> dict[str, Any]:
    """The values that were given, by flag name: not None and, for a repeatable flag, not (). as_options: messages call
    a flag --its-name, because only the command line has it. Raises ConfigError for an invalid type or value."""
    return {
        one.name: _checked(one, values[one.name], one.option if as_options else one.name)
        for one in flags
        if values.get(one.name) not in (None, ()) and not (one.unset and values[one.name] == one.unset)
    }


def record_of(record: type[R], flags: Iterable[Flag], values: Mapping[str, Any], **fixed: Any) -> R:
    """Creates a record from its flags' values and its defaults. flags: of this record and others. values: from
    given_values(). fixed: fields that are set directly."""
    given = {one.attribute: values[one.name] for one in flags if one.record is record and one.name in values}
    return record(**{**given, **fixed})


def _checked(flag: Flag, value: Any, name: str) -> Any:
    """A value as its record stores it. name: what messages call it."""
    if flag.kind == "size" and isinstance(value, str):
        from tessera.sizes import parse_size

        value = parse_size(value, param=flag.name)
    if flag.choices:
        if type(value).__module__ == "torch":  # torch.bfloat16
            value = str(value).removeprefix("torch.")
        if value not in flag.choices:
            choices = ", ".join(flag.choices)
            raise ConfigError(f"{name} must be one of {choices}, got '{str(value)[:40]}'.", param=flag.name)
        return flag.spellings.get(value, value)
    if flag.kind in ("int", "size", "float"):
        _check_number(flag, value, name)
    if flag.kind == "list":
        return _texts(flag, value, name)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _check_number(flag: Flag, value: Any, name: str) -> None:
    kind, what = (float | int, "number") if flag.kind == "float" else (int, "whole number")
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ConfigError(f"{name} must be a {what}.", param=flag.name)
    above, low, below, high = flag.above, flag.low, flag.below, flag.high
    # Written so that NaN, for which every comparison is false, is out of range.
    holds = (
        (above is None or value > above)
        and (low is None or value >= low)
        and (below is None or value < below)
        and (high is None or value <= high)
    )
    if not holds:
        unit = f" {flag.unit}" if flag.unit else ""
        raise ConfigError(f"{name} must be {_range(flag)}{unit}, got {_number(value)}.", param=flag.name)


def _texts(flag: Flag, value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) and text for text in value):
        raise ConfigError(f"{name} must be a list of strings.", param=flag.name)
    return tuple(value)


def _range(flag: Flag) -> str:
    if flag.low is not None and flag.high is not None:
        return f"from {_number(flag.low)} to {_number(flag.high)}"
    bounds = (("above", flag.above), ("at least", flag.low), ("below", flag.below), ("at most", flag.high))
    return " and ".join(f"{word} {_number(bound)}" for word, bound in bounds if bound is not None)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def check_names(function: str, keywords: Mapping[str, Any], flags: Iterable[Flag]) -> None:
    """Raises TypeError, as Python does, for a keyword that is not a flag, with the closest match."""
    known = [one.name for one in flags]
    for name in keywords:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
