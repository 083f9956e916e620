"""`tessera plugin check PATH`: what in a plugin's package breaks the contract."""

from __future__ import annotations

from pathlib import Path

import click

from tessera.cli.verbosity import verbose_option


def _check(path: Path) -> int:
    """Say what in a plugin's package breaks the contract."""
    from tessera.plugins.check import check as findings_of
    from tessera.plugins.check import read_package

    package = read_package(path)
    findings = findings_of(package)
    for finding in findings:
        click.echo(str(finding))
    count = f"{len(findings)} finding{'' if len(findings) == 1 else 's'}" if findings else "no finding"
    click.echo(f"{count} in {len(package.sources)} files")
    return 1 if findings else 0


check = click.Command(
    "check",
    callback=_check,
    help="Read a plugin's package and import its module once, in a child process: one line for each thing that breaks "
    "the contract, with its place and what to do. Exit code 1 where there is any.",
    short_help=_check.__doc__,
    params=[verbose_option(), click.Argument(["path"], type=click.Path(path_type=Path))],
)
