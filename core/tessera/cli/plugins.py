"""`tessera plugins`: what entry points were found, what each implements, and which are left out or broken."""

from __future__ import annotations

import json
from typing import Any

import click

from tessera.cli.columns import columns
from tessera.cli.verbosity import verbose_option
from tessera.config.environment import read_environment
from tessera.plugins.loading import Plugin, Plugins, load_plugins


def _plugins(as_json: bool) -> int:
    """List the installed plugins and what each implements."""
    found = load_plugins(read_environment())
    rows = [_described(found, plugin) for plugin in found]
    click.echo(json.dumps(rows, indent=2) if as_json else _table(rows))
    return 0


plugins = click.Command(
    "plugins",
    callback=_plugins,
    help="List the installed plugins and what each implements. TESSERA_DISABLE_PLUGINS=NAME,NAME leaves plugins out, "
    "TESSERA_TRACE_PLUGINS=1 writes each call of a hook to the log.",
    params=[verbose_option(), click.Option(["--json", "as_json"], is_flag=True, help="Print a JSON list.")],
)


def _described(found: Plugins, plugin: Plugin) -> dict[str, Any]:
    """A plugin as --json has it."""
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "entry_point": plugin.entry,
        "hooks": found.hooks(plugin),
        "left_out": plugin.left_out,
        "error": plugin.error,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    head = ("NAME", "DISTRIBUTION", "ENTRY POINT", "HOOKS", "STATE")
    return "\n".join(columns([head, *map(_cells, rows)]))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    state = "loaded"
    if row["left_out"] is not None:
        state = f"left out: {row['left_out']}"
    elif row["error"] is not None:
        state = f"error: {row['error']}"
    distribution = f"{row['distribution']} {row['version']}".strip()
    return row["name"], distribution, row["entry_point"], ", ".join(row["hooks"]) or "-", state
