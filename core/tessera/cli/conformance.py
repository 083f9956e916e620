"""`tessera conformance --platform NAME`: test a platform against the contract."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tessera.cli.commands import verbose_option
from tessera.errors import ConfigError

if TYPE_CHECKING:
    from tessera.testing.conformance import Level, Result


def _conformance(
    platform: str,
    level: Level,
    perf: bool,
    case: str | None,
    devices: int | None,
    json_file: Path | None,
    dump_folder: Path | None,
    matrix_file: Path | None,
) -> int:
    """Test a platform against the contract."""
    from tessera.testing.conformance import (
        Target,
        cases_of,
        chosen,
        matrix,
        perf_cases,
        reached,
        record,
        speeds,
        table,
        tried,
    )

    target = Target.named(platform, devices, shared=False)
    cases = cases_of(target, level)
    if perf and level != "gold":
        cases += perf_cases(target, judged=False)
    results = []
    for one in cases if case is None else chosen(cases, case):
        results.append(tried(one))
        _tell(results[-1], dump_folder)
    click.echo(table(results))
    if any(result.timings for result in results):
        click.echo(f"\n{speeds(results)}")
    failed = [result for result in results if result.status == "failed"]
    highest = reached(results, level) if case is None else None
    if case is None:
        click.echo(f"\n{target.platform.name}: {highest or 'not even bronze'}, {len(failed)} of {len(results)} failed")
    if failed and dump_folder is None:
        click.echo(_look_closer(platform, failed[0]))
    if json_file is not None:
        facts: dict[str, Any] = {"platform": target.platform.name, "asked": level, "reached": highest}
        _write(json_file, json.dumps({**facts, "cases": [record(result) for result in results]}, indent=2))
    if matrix_file is not None:
        _write(matrix_file, f"# {target.platform.name}\n\n{matrix(target, results)}")
    return 1 if failed else 0


conformance = click.Command(
    "conformance",
    callback=_conformance,
    help="Test a platform against the contract: its results beside core's reference. A wrong result fails, with exit "
    "code 1; an op without a kernel is a fallback. docs/conformance.md lists the tests.",
    short_help=_conformance.__doc__,
    params=[
        verbose_option(),
        click.Option(["--platform"], required=True, metavar="NAME", help="Platform to test, or package.module:Class."),
        click.Option(
            ["--level"], type=click.Choice(["bronze", "silver", "gold"]), default="silver", show_default=True,
            help="How much to test.",
        ),
        click.Option(["--case"], metavar="ID", help="Run this case only, or all below it: op/linear."),
        click.Option(
            ["--devices"], type=click.IntRange(1, 64), metavar="N",
            help="Devices to test collectives on; default: all that the probe reports.",
        ),
        click.Option(
            ["--json", "json_file"], type=click.Path(path_type=Path), metavar="FILE", help="Write all results as JSON."
        ),
        click.Option(
            ["--dump", "dump_folder"], type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
            help="Write the tensors of failed cases as safetensors.",
        ),
        click.Option(["--perf"], is_flag=True, help="Measure the speed of each op too; gold always does."),
        click.Option(
            ["--matrix", "matrix_file"], type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
            help="Write which kernel computes each op in each dtype, as Markdown.",
        ),
    ],
)  # fmt: skip


def _tell(result: Result, dump_folder: Path | None) -> None:
    """Prints a failure at once, and where its tensors were written."""
    if result.status != "failed":
        return
    from tessera.testing.conformance import dump

    click.echo(f"failed  {result.line}")
    if dump_folder is not None:
        try:
            path = dump(result, dump_folder)
        except OSError as error:
            raise _unwritable(dump_folder, error) from None
        if path is not None:
            click.echo(f"        {path}")


def _look_closer(platform: str, failed: Result) -> str:
    """A hint on how to investigate a failure."""
    level = " --level gold" if failed.case.level == "gold" else ""
    return (
        "\nTo run one case and keep its tensors: tessera conformance "
        f"--platform {platform}{level} --case {failed.case.id} --dump DIR"
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"'{path}' cannot be written: {os.strerror(error.errno or 0)}.")
