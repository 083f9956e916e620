"""`serve` as a click command made from its table: grouped help, one line for flags that come later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from tessera.cli.flags import Flag, option_of
from tessera.cli.serve_flags import ALWAYS_ON, FLAGS, GROUPS, NOT_SERVED
from tessera.cli.verbosity import verbose_option

WIDTH = 100
_COMMON = "common"


class ServeCommand(click.Command):
    """Its --help shows the most used flags, `--help GROUP` a group, --help-all everything."""

    def __init__(self, name: str, **settings: Any) -> None:
        settings["params"] = [*settings.get("params", ()), *map(option_of, FLAGS)]
        super().__init__(name, add_help_option=False, **settings)
        self.params.append(verbose_option())
        self.params += [click.Option([name], is_flag=True, hidden=True, expose_value=False) for name in ALWAYS_ON]
        eager: dict[str, Any] = {"is_eager": True, "expose_value": False}
        self.params += [
            click.Option(
                ["-h", "--help", "group"],
                is_flag=False,
                flag_value=_COMMON,
                metavar="GROUP",
                callback=_show_group,
                **eager,
            ),
            click.Option(["--help-all"], is_flag=True, callback=_show_all, **eager),
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, [_dashed(argument) for argument in args])
        except click.NoSuchOption as error:
            if error.option_name not in NOT_SERVED:
                raise
            raise click.UsageError(NOT_SERVED[error.option_name], ctx) from error

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.width = WIDTH
        _write_help(formatter, [flag for flag in FLAGS if flag.common])


def _dashed(argument: str) -> str:
    """Flags may be written with underscores, as vLLM takes them."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}"


def _show_group(ctx: click.Context, _parameter: click.Parameter, group: str | None) -> None:
    if group is not None:
        if group != _COMMON and group not in GROUPS:
            raise click.UsageError(f"--help {group} is no group of flags; there is {', '.join(GROUPS)}.", ctx)
        chosen = [flag for flag in FLAGS if flag.group == group or (group == _COMMON and flag.common)]
        _show(ctx, chosen)


def _show_all(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        _show(ctx, FLAGS)


def _show(ctx: click.Context, flags: Sequence[Flag]) -> None:
    formatter = click.HelpFormatter(width=WIDTH)
    _write_help(formatter, flags)
    click.echo(formatter.getvalue().rstrip("\n"))
    ctx.exit()


def _write_help(formatter: click.HelpFormatter, flags: Iterable[Flag]) -> None:
    formatter.write_usage("tessera serve", "[MODEL] [FLAGS]")
    formatter.write_paragraph()
    formatter.write_text(
        "Serve MODEL: a folder (config.json, *.safetensors, tokenizer.json) or ORGANIZATION/NAME on the hub. Without "
        "one, serve the bundled demo."
    )
    by_group: dict[str, list[Flag]] = {}
    for flag in flags:
        by_group.setdefault(flag.group, []).append(flag)
    for group, members in by_group.items():
        with formatter.section(f"{GROUPS[group]} ({group})"):
            formatter.write_dl([(flag.shown, flag.description) for flag in members], col_max=36)
    with formatter.section("Help"):
        formatter.write_dl(
            [("--help GROUP", f"Every flag of a group: {', '.join(GROUPS)}."), ("--help-all", "Every flag.")],
            col_max=36,
        )
