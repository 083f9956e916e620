"""`tessera platforms`: what is installed, what each platform says of this machine, and which one runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import click

from tessera.cli.verbosity import verbose_option
from tessera.errors import PlatformError
from tessera.plugins.discovery import discover
from tessera.plugins.modules import Plugins
from tessera.plugins.selection import Candidate, Selected, ask, choose


def _platforms(as_json: bool) -> int:
    """List the installed platforms and which one is chosen."""
    candidates, chosen, problem = survey()
    rows = [describe(one, chosen) for one in candidates]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return 0
    if rows:
        click.echo(_table(rows))
    if problem is not None:
        click.echo(f"\n{problem.message}" if rows else problem.message)
    return 0


platforms = click.Command(
    "platforms",
    callback=_platforms,
    help=_platforms.__doc__,
    params=[verbose_option(), click.Option(["--json", "as_json"], is_flag=True, help="Print a JSON list.")],
)


def survey(plugins: Plugins | None = None) -> tuple[list[Candidate], Selected | None, PlatformError | None]:
    """Every platform with its probe's answer, and the choice or why there is none. plugins: those loaded already."""
    candidates = ask(discover(plugins))
    try:
        return candidates, choose(candidates), None
    except PlatformError as error:
        return candidates, None, error


def describe(candidate: Candidate, chosen: Selected | None) -> dict[str, Any]:
    """A platform as --json has it."""
    found, probe = candidate.found, candidate.probe
    return {
        "name": found.name,
        "distribution": found.distribution,
        "version": found.version,
        "api_levels": {} if found.manifest is None else dict(found.manifest.levels),
        "score": None if probe is None else probe.score,
        "reason": None if probe is None else probe.reason,
        "devices": [] if probe is None else [dataclasses.asdict(device) for device in probe.devices],
        "selected": chosen is not None and (chosen.name, chosen.distribution) == (found.name, found.distribution),
        "error": candidate.error,
    }


def _table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [["", "NAME", "SCORE", "DISTRIBUTION", "DEVICES", "REASON"], *map(_cells, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(5)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]) for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: dict[str, Any]) -> list[str]:
    names = [device["name"] for device in row["devices"]]
    devices = ", ".join(
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )
    return [
        "*" if row["selected"] else "",
        row["name"],
        "-" if row["score"] is None else str(row["score"]),
        f"{row['distribution']} {row['version']}",
        devices or "-",
        row["reason"] if row["error"] is None else f"error: {row['error']}",
    ]
