"""Tessera's commands, and those of plugins. A command is only imported when it runs, so listing them imports none."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import click
from click.shell_completion import CompletionItem

WIDTH = 100

BUILT_IN: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "serve": ("tessera.cli.serve:serve", "Serve a model over the OpenAI API."),
        "router": ("tessera.cli.router:router", "Pass requests on to several servers of a model."),
        "chat": ("tessera.cli.talk.commands:chat", "Chat with a model, run here or on a server."),
        "complete": ("tessera.cli.talk.commands:complete", "Complete text with a model, run here or on a server."),
        "embed": ("tessera.cli.embed.commands:embed", "Embed texts and compare them, here or on a server."),
        "run-batch": ("tessera.cli.run_batch:run_batch", "Run a file of requests and write their answers."),
        "bench": ("tessera.cli.bench:bench", "Measure latency, throughput, or a running server."),
        "plan": ("tessera.cli.plan:plan_command", "Show a model's memory use and how many requests fit."),
        "quantize": ("tessera.cli.quantize:quantize", "Write a model with quantized weights and measure the loss."),
        "platforms": ("tessera.cli.platforms:platforms", "List the installed platforms and which one is chosen."),
        "plugins": ("tessera.cli.plugins:plugins", "List the installed plugins and the hooks they implement."),
        "plugin": ("tessera.cli.plugins:plugin", "Create a platform package, or check one."),
        "conformance": ("tessera.cli.conformance:conformance", "Test a platform against the contract."),
        "doctor": ("tessera.cli.doctor:doctor", "Diagnose the installation and suggest fixes."),
        "completion": ("tessera.cli.completion:completion", "Print the shell completion script."),
    }
)
"""The dotted path of each command, and its line in the list."""


OTHER_PROGRAMS: Mapping[str, str] = MappingProxyType(
    {
        "run": "There is no command run: tessera chat MODEL chats, and tessera serve MODEL serves.",
        **dict.fromkeys(
            ("list", "ls"), "There is no list of models: tessera serve takes a folder or ORGANIZATION/NAME."
        ),
        "ps": "There is no command ps: each tessera serve is a process of its own, and its page shows what it does.",
        **dict.fromkeys(
            ("pull", "download"), "There is no command pull: tessera serve ORGANIZATION/NAME downloads it."
        ),
        "help": "There is no command help: tessera --help lists the commands, and COMMAND --help the flags of one.",
        "version": "There is no command version: tessera --version prints it.",
    }
)
"""Messages for commands of other programs that a user may try."""


class LazyGroup(click.Group):
    """table: by name, the dotted path of a command ("package.module:name") and its line in the list."""

    def __init__(self, name: str, *, table: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(
            name,
            callback=click.pass_context(_show_help),
            invoke_without_command=True,
            context_settings={"max_content_width": WIDTH, "help_option_names": ["-h", "--help"]},
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
        """click's own version asks every command for its help, which would import them all."""
        if incomplete.startswith("-"):
            return list(click.Command.shell_complete(self, ctx, incomplete))
        return [
            CompletionItem(name, help=self.table[name][1] if name in self.table else None)
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]


def _show_help(context: click.Context) -> None:
    """Prints a group's help if no command was given."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


class CommandGroup(LazyGroup):
    """Lists core's own commands first. A plugin's command cannot replace one of them."""

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name, table=BUILT_IN, **settings)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *sorted(self._of_plugins())]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            if error.command_name not in OTHER_PROGRAMS:
                raise
            raise click.UsageError(OTHER_PROGRAMS[error.command_name], ctx) from error

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or self._of_plugins().get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        plugins = self._of_plugins()
        if plugins:
            with formatter.section("Commands of plugins"):
                formatter.write_dl([(name, plugins[name].get_short_help_str(80)) for name in sorted(plugins)])

    def _of_plugins(self) -> dict[str, click.Command]:
        """Commands of plugins by name. Prints problems as warnings, so that none is missed; `tessera doctor` explains
        them."""
        from tessera.config.environment import read_environment
        from tessera.plugins.extensions import plugin_commands
        from tessera.plugins.loading import load_plugins

        plugins = load_plugins(read_environment())
        commands, problems = plugin_commands(plugins)
        problems += [f"plugin {plugin}: {plugin.error}" for plugin in plugins if plugin.error is not None]
        problems += [taken_name(name) for name in commands if name in BUILT_IN]
        for problem in problems:
            click.echo(f"warning: {problem} (run tessera doctor for details)", err=True)
        return {name: command for name, command in commands.items() if name not in BUILT_IN}


def taken_name(command: str) -> str:
    """The warning about a plugin's command that a built-in one hides."""
    return f"a plugin's command '{command}' has the name of a built-in command"


# ---- -v, which every command accepts, before or after its name ------------------


@dataclass
class Verbosity:
    """Whether to print tracebacks; the object of click's context."""

    tracebacks: bool = False


def verbose_option() -> click.Option:
    settings: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _set_verbose}
    return click.Option(["-v", "--verbose"], help="Show the traceback of an error.", **settings)


def _set_verbose(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    verbosity = context.find_object(Verbosity)
    if wanted and verbosity is not None:
        verbosity.tracebacks = True
