"""The entries of --models: a name, a MODEL, and flags that are of the model and not of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from tessera.cli.config_file import read_model_file
from tessera.cli.flag_command import FlagCommand
from tessera.cli.model_text import TEMPLATE_FLAGS
from tessera.config.build import lora_module
from tessera.config.engine import ENGINE_FLAGS
from tessera.errors import ConfigError

NOT_OF_ALL = frozenset({"served_model_name", "lora_modules"})
"""Names belong to one entry each."""
OF_HOSTS = frozenset({"nnodes", "node_rank", "master_addr", "master_port", "cluster_key_file"})
"""Other hosts join one engine. Some of these may come from the environment, where there is one host."""
ENTRY_FLAGS = frozenset(flag.name for flag in (*ENGINE_FLAGS, *TEMPLATE_FLAGS)) - {"served_model_name"} - OF_HOSTS | {
    "tool_call_parser",
    "reasoning_parser",
}
MAX_NAME_CHARS = 256


@dataclass(frozen=True)
class ModelEntry:
    # that requests give
    name: str
    # as for build_config; None: the bundled demo
    model: str | None
    # the command's, by name, with the entry's own in place of those of the command line
    flags: Mapping[str, Any]
    # names of its adapters, which requests may give too
    adapters: Sequence[str] = ()


def read_model_entries(file: str, flags: Mapping[str, Any], ctx: click.Context) -> Sequence[ModelEntry]:
    """flags: the command's, by name, which hold where an entry says nothing else. Raises ConfigError."""
    command = ctx.command
    assert isinstance(command, FlagCommand)
    for name in NOT_OF_ALL:
        if flags[name] not in (None, ()):
            what = "remove it" if name == "served_model_name" else "give it to a model of the file"
            raise ConfigError(f"--{name.replace('_', '-')} cannot be used with --models; {what}.")
    if (flags["nnodes"] or 1) > 1:
        raise ConfigError("--nnodes above 1 cannot be used with --models; remove it.")
    parameters: dict[str, click.Parameter] = {"name": click.Option(["--name"])}
    parameters |= {
        one.name: one for one in command.params if one.name in ENTRY_FLAGS or isinstance(one, click.Argument)
    }
    entries = read_model_file(file, parameters, partial(command.ignores, ctx=ctx), ctx)
    if not entries:
        raise ConfigError(f"--models '{file}' must be a list of models, each with a name and a model.")
    named = [_entry(file, number, values, flags) for number, values in enumerate(entries, 1)]
    names = [name for entry in named for name in (entry.name, *entry.adapters)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"--models '{file}' has two models or adapters with the name '{twice}'; rename one.")
    return named


def _entry(file: str, number: int, values: dict[str, Any], flags: Mapping[str, Any]) -> ModelEntry:
    name = values.pop("name", None)
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise ConfigError(f"--models '{file}': entry {number} needs a name of at most {MAX_NAME_CHARS} characters.")
    model = values.pop("model", None)
    adapters = [lora_module(text)[0] for text in values.get("lora_modules", ())]
    return ModelEntry(name, model, {**flags, **values, "served_model_name": (name,)}, adapters)
