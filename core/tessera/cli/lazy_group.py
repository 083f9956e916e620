"""A group whose commands are imported when they are needed: the list is printed without any of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

WIDTH = 100


class LazyGroup(click.Group):
    """table: where a command lies ("package.module:name") and its line in the list, by name."""

    def __init__(self, name: str, *, table: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(
            name,
            callback=click.pass_context(_page),
            invoke_without_command=True,
            context_settings={"max_content_width": WIDTH},
            **settings,
        )
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, _, name = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """click's own asks every command for its line, which would import them all."""
        if incomplete.startswith("-"):
            return list(click.Command.shell_complete(self, ctx, incomplete))
        return [
            CompletionItem(name, help=self.table[name][1] if name in self.table else None)
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]


def _page(context: click.Context) -> None:
    """A group alone asks what there is."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
