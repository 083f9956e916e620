"""A flag as data: from it come the option, its help and its documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import click

from tessera.config.sizes import parse_size
from tessera.errors import ConfigError


@dataclass(frozen=True)
class Flag:
    """name: with underscores, as build_config and vLLM's Python call it. group: of the help. kind: "size" takes
    suffixes (32K, 4GiB), "switch" has a --no- form where `default` is "on" or "off". default: in words, for the help.
    common: shown by a plain --help. multiple: may be given again."""

    name: str
    group: str
    help: str
    kind: Literal["text", "int", "float", "size", "switch", "choice"] = "text"
    default: str = ""
    choices: tuple[str, ...] = ()
    metavar: str = ""
    common: bool = False
    multiple: bool = False

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def shown(self) -> str:
        """As the help's left column has it."""
        if self.kind == "switch":
            return f"--[no-]{self.option[2:]}" if self.default else self.option
        return f"{self.option} {self.metavar or '|'.join(self.choices) or _METAVARS[self.kind]}"

    @property
    def description(self) -> str:
        return f"{self.help} [{self.default}]" if self.default else self.help


_METAVARS = {"text": "TEXT", "int": "N", "float": "X", "size": "SIZE"}


def option_of(flag: Flag) -> click.Option:
    """The click option; what is not given is None, or () where it may be given again."""
    if flag.kind == "switch":
        names = f"{flag.option}/--no-{flag.option[2:]}" if flag.default else flag.option
        return click.Option([names, flag.name], default=None, is_flag=True, help=flag.description)
    return click.Option(
        [flag.option, flag.name],
        type=_type_of(flag),
        multiple=flag.multiple,
        metavar=flag.metavar or None,
        help=flag.description,
    )


def _type_of(flag: Flag) -> click.ParamType[Any]:
    if flag.kind == "choice":
        return click.Choice(flag.choices)
    return {"text": click.STRING, "int": click.INT, "float": click.FLOAT, "size": SizeType()}[flag.kind]


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
