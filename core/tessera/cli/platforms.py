"""`tessera platforms` and --explain: which platforms are installed, which one is chosen, and why not the others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from tessera.cli.commands import verbose_option
from tessera.errors import PlatformError
from tessera.platform.explain import Explained
from tessera.plugins.discovery import discover
from tessera.plugins.loading import Plugins
from tessera.plugins.selection import Candidate, Selected, ask, choose, named, usable, verdict


def _platforms(as_json: bool, explain: bool) -> int:
    """List the installed platforms and which one is chosen."""
    candidates, chosen, problem = survey()
    rows = [describe(one, chosen) for one in candidates]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return 0
    if rows:
        click.echo(table(rows, explain=explain))
    if problem is not None:
        click.echo(f"\n{problem.message}" if rows else problem.message)
    return 0


platforms = click.Command(
    "platforms",
    callback=_platforms,
    help=_platforms.__doc__,
    params=[
        verbose_option(),
        click.Option(["--json", "as_json"], is_flag=True, help="Print a JSON list."),
        click.Option(["--explain"], is_flag=True, help="Show why each platform is chosen or not."),
    ],
)


def survey(
    plugins: Plugins | None = None, name: str | None = None
) -> tuple[list[Candidate], Selected | None, PlatformError | None]:
    """Every platform with its probe's result, and the selected one, or the error if there is none. plugins: None loads
    them. name: of the platform that the user chose."""
    candidates = ask(discover(plugins))
    try:
        return candidates, _choose(candidates, name), None
    except PlatformError as error:
        return candidates, None, error


def _choose(candidates: Sequence[Candidate], name: str | None) -> Selected:
    if name is None:
        return choose(candidates)
    found = named(name, [one.platform for one in candidates])
    return usable(next(one for one in candidates if one.platform is found))


def describe(candidate: Candidate, chosen: Selected | None, name: str | None = None) -> dict[str, Any]:
    """A platform as --json prints it. name: the one that the user gave."""
    found, probe = candidate.platform, candidate.probe
    return {
        "name": found.name,
        "distribution": found.distribution,
        "version": found.version,
        "api_levels": {} if found.manifest is None else dict(found.manifest.api_levels),
        "shims": list(found.shims),
        "score": None if probe is None else probe.score,
        "reason": None if probe is None else probe.reason,
        "devices": [] if probe is None else [dataclasses.asdict(device) for device in probe.devices],
        "selected": chosen is not None and (chosen.name, chosen.distribution) == (found.name, found.distribution),
        "verdict": verdict(candidate, chosen, name),
        "error": candidate.error,
    }


def table(rows: Sequence[dict[str, Any]], *, explain: bool = False) -> str:
    """A table of platforms. explain: adds a column of verdicts."""
    head = ["", "NAME", "SCORE", *(["VERDICT"] if explain else []), "DISTRIBUTION", "DEVICES", "REASON"]
    return "\n".join(columns([head, *(_cells(row, explain) for row in rows)]))


def _cells(row: dict[str, Any], explain: bool) -> list[str]:
    names = [device["name"] for device in row["devices"]]
    devices = ", ".join(
        f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )
    return [
        "*" if row["selected"] else "",
        row["name"],
        "-" if row["score"] is None else str(row["score"]),
        *(["; ".join([row["verdict"], *(f"shim: {one}" for one in row["shims"])])] if explain else []),
        f"{row['distribution']} {row['version']}",
        devices or "-",
        row["reason"] if row["error"] is None else f"error: {row['error']}",
    ]


def explained_platform(name: str | None) -> tuple[str, dict[str, int], str]:
    """The dotted path of the platform that `--platform name` selects, the API levels it was written for, and a table
    that explains the choice. Raises PlatformError."""
    if name is not None and ":" in name:
        return name, {}, f"Platform {name}: given by its path."
    candidates, chosen, problem = survey(name=name)
    if problem is not None:
        raise problem
    assert chosen is not None
    text = table([describe(one, chosen, name) for one in candidates], explain=True)
    return chosen.platform, dict(chosen.levels), text


def choices_table(platform: str, choices: Sequence[Explained]) -> str:
    """A table of the kernel or backend that runs each part of a model on a platform."""
    if not choices:
        return f"Platform '{platform}' runs models with its own runner and does not report its choices."
    rows = [
        (one.what, one.place or "-", one.chosen, "; ".join(f"{name}: {why}" for name, why in one.others) or "-")
        for one in choices
    ]
    return "\n".join(columns([("WHAT", "WHERE", "CHOSEN", "WHY NOT THE OTHERS"), *rows]))


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Formats rows of cells as lines. Each column is as wide as its widest cell, except the last one, which is not
    padded. rows: all of the same length."""
    listed = list(rows)
    widths = [max(map(len, cells)) for cells in zip(*listed, strict=True)][:-1]
    return ["  ".join([*map(str.ljust, row[:-1], widths), row[-1]]).rstrip() for row in listed]
