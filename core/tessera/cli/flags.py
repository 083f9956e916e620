"""A flag as data: from it come the option, its help, its completion, its key in a file and its documentation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import click

from tessera.cli.suggestions import platform_names
from tessera.errors import ConfigError
from tessera.sizes import parse_size


@dataclass(frozen=True)
class Flag:
    """name: with underscores, as build_config and vLLM's Python call it. group: of the help. kind: "size" takes
    suffixes (32K, 4GiB), "switch" has a --no- form where `default` is "on" or "off", "list" takes a JSON list, values
    with commas between, or is given again, "json" an object. default: in words, for the help. common: shown by a plain
    --help. multiple: may be given again. aliases: further options that do the same: "-q", or another
    program's name for it, which the help leaves out."""

    name: str
    group: str
    help: str
    kind: Literal["text", "int", "float", "size", "switch", "choice", "list", "json"] = "text"
    default: str = ""
    choices: tuple[str, ...] = ()
    metavar: str = ""
    common: bool = False
    multiple: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def shown(self) -> str:
        """As the help's left column has it."""
        if self.kind == "switch":
            return f"--[no-]{self.option[2:]}" if self.default else self.option
        names = [*(name for name in self.aliases if not name.startswith("--")), self.option]
        return f"{', '.join(names)} {self.metavar or '|'.join(self.choices) or _METAVARS[self.kind]}"

    @property
    def description(self) -> str:
        return f"{self.help} [{self.default}]" if self.default else self.help


_METAVARS = {"text": "TEXT", "int": "N", "float": "X", "size": "SIZE", "list": "LIST", "json": "JSON"}
_PATHS: Mapping[str, click.ParamType[Any]] = {
    "FILE": click.Path(dir_okay=False),
    "FOLDER": click.Path(file_okay=False),
}
"""Metavars of paths, which a shell completes."""


@dataclass(frozen=True)
class FlagTable:
    """All flags of a command. usage: what stands behind `tessera`. groups: their names and titles, in the help's order.
    not_served: options that are known and not taken, with the answer to each. always_on: options that are taken and
    change nothing, and why."""

    usage: str
    summary: str
    flags: tuple[Flag, ...]
    groups: Mapping[str, str]
    not_served: Mapping[str, str] = field(default_factory=dict)
    always_on: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert {flag.group for flag in self.flags} == set(self.groups), self.usage
        assert len({flag.name for flag in self.flags}) == len(self.flags), self.usage


def option_of(flag: Flag) -> click.Option:
    """The click option; what is not given is None, or () where it may be given again."""
    if flag.kind == "switch":
        names = f"{flag.option}/--no-{flag.option[2:]}" if flag.default else flag.option
        return click.Option([names, *flag.aliases, flag.name], default=None, is_flag=True, help=flag.description)
    return click.Option(
        [flag.option, *flag.aliases, flag.name],
        type=_type_of(flag),
        multiple=flag.multiple or flag.kind == "list",
        callback=_flat if flag.kind == "list" else None,
        metavar=flag.metavar or None,
        help=flag.description,
        shell_complete=platform_names if flag.name == "platform" else None,
    )


def _type_of(flag: Flag) -> click.ParamType[Any]:
    if flag.kind == "choice":
        return click.Choice(flag.choices)
    if flag.metavar in _PATHS:
        return _PATHS[flag.metavar]
    types: dict[str, click.ParamType[Any]] = {
        "text": click.STRING,
        "int": click.INT,
        "float": click.FLOAT,
        "size": SizeType(),
        "list": ListType(),
        "json": JsonType(),
    }
    return types[flag.kind]


def _flat(_context: click.Context, _parameter: click.Parameter, values: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(chain.from_iterable(values))


class SizeType(click.ParamType[int]):
    """A whole number with an optional suffix."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ConfigError as error:
            self.fail(error.message, param, ctx)


class ListType(click.ParamType[tuple[str, ...]]):
    """A JSON list of texts, as vLLM takes it, or texts with commas between."""

    name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        items = _json(self, value, param, ctx) if value.startswith("[") else value.split(",")
        if not all(isinstance(item, str) and item.strip() for item in items):
            self.fail(f'\'{value}\' is no list of texts, such as a,b or ["a", "b"].', param, ctx)
        return tuple(item.strip() for item in items)


class JsonType(click.ParamType[dict[str, Any]]):
    """A JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        found = _json(self, value, param, ctx)
        if not isinstance(found, dict):
            self.fail(f"'{value}' is no JSON object, such as {{\"a\": 1}}.", param, ctx)
        return found


def _json(kind: click.ParamType[Any], value: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        kind.fail(f"'{value}' is not JSON: {error}.", param, ctx)
