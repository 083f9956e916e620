"""A click command made from a table of flags: grouped help, a file of flags, one line for flags that come later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from tessera.cli.flags import Flag, FlagTable, option_of
from tessera.cli.verbosity import verbose_option

WIDTH = 100
_COLUMN = 36
_COMMON = "common"
_CONFIG_HELP = (
    "YAML file with flags as keys (max-model-len: 4096). What stands on the command line goes before it; relative "
    "paths are relative to the working directory."
)


class FlagCommand(click.Command):
    """Its --help shows the most used flags, `--help GROUP` a group, --help-all everything."""

    def __init__(self, name: str, *, table: FlagTable, **settings: Any) -> None:
        settings["params"] = [*settings.get("params", ()), *map(option_of, table.flags)]
        super().__init__(name, add_help_option=False, short_help=table.summary, **settings)
        self.table = table
        self.params.append(verbose_option())
        self.params += [click.Option([name], is_flag=True, hidden=True, expose_value=False) for name in table.always_on]
        eager: dict[str, Any] = {"is_eager": True, "expose_value": False}
        self.params += [
            click.Option(
                ["--config", "config_file"],
                type=click.Path(dir_okay=False),
                metavar="FILE",
                help=_CONFIG_HELP,
                callback=_use_config_file,
                **eager,
            ),
            click.Option(
                ["-h", "--help", "group"],
                is_flag=False,
                flag_value=_COMMON,
                metavar="GROUP",
                help=f"Every flag of a group: {', '.join(table.groups)}.",
                callback=_show_group,
                shell_complete=_group_names,
                **eager,
            ),
            click.Option(["--help-all"], is_flag=True, help="Every flag.", callback=_show_all, **eager),
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, [_dashed(argument) for argument in args])
        except click.NoSuchOption as error:
            if error.option_name not in self.table.not_served:
                raise
            raise click.UsageError(self.table.not_served[error.option_name], ctx) from error

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.width = WIDTH
        _write_help(formatter, self.table, [flag for flag in self.table.flags if flag.common])


def _dashed(argument: str) -> str:
    """Flags may be written with underscores, as vLLM takes them."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}"


def _command_of(ctx: click.Context) -> FlagCommand:
    assert isinstance(ctx.command, FlagCommand)
    return ctx.command


def _use_config_file(ctx: click.Context, _parameter: click.Parameter, file: str | None) -> None:
    """Its values become the defaults of this run, before any other flag is looked at."""
    if file is not None and not ctx.resilient_parsing:
        from tessera.cli.config_file import read_config_file

        command = _command_of(ctx)
        names = {flag.name for flag in command.table.flags}
        parameters = {one.name: one for one in command.params if one.name in names or isinstance(one, click.Argument)}
        ctx.default_map = read_config_file(file, parameters, command.table.not_served, ctx)


def _show_group(ctx: click.Context, _parameter: click.Parameter, group: str | None) -> None:
    if group is None or ctx.resilient_parsing:
        return
    table = _command_of(ctx).table
    if group != _COMMON and group not in table.groups:
        raise click.UsageError(f"--help {group} is no group of flags; there is {', '.join(table.groups)}.", ctx)
    _show(ctx, [flag for flag in table.flags if flag.group == group or (group == _COMMON and flag.common)])


def _group_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    groups = _command_of(ctx).table.groups
    return [CompletionItem(name, help=title) for name, title in groups.items() if name.startswith(incomplete)]


def _show_all(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        _show(ctx, _command_of(ctx).table.flags)


def _show(ctx: click.Context, flags: Sequence[Flag]) -> None:
    formatter = click.HelpFormatter(width=WIDTH)
    _write_help(formatter, _command_of(ctx).table, flags)
    click.echo(formatter.getvalue().rstrip("\n"))
    ctx.exit()


def _write_help(formatter: click.HelpFormatter, table: FlagTable, flags: Iterable[Flag]) -> None:
    formatter.write_usage("tessera", table.usage)
    formatter.write_paragraph()
    formatter.write_text(table.summary)
    by_group: dict[str, list[Flag]] = {}
    for flag in flags:
        by_group.setdefault(flag.group, []).append(flag)
    for group, members in by_group.items():
        with formatter.section(f"{table.groups[group]} ({group})"):
            formatter.write_dl([(flag.shown, flag.description) for flag in members], col_max=_COLUMN)
    with formatter.section("Help and settings"):
        formatter.write_dl(
            [
                ("--config FILE", _CONFIG_HELP),
                ("--help GROUP", f"Every flag of a group: {', '.join(table.groups)}."),
                ("--help-all", "Every flag."),
            ],
            col_max=_COLUMN,
        )
