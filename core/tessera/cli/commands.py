"""Tessera's commands, and those of plugins beside them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import click

from tessera.cli.lazy_group import LazyGroup

BUILT_IN: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "serve": ("tessera.cli.serve:serve", "Serve a model over the OpenAI API."),
        "chat": ("tessera.cli.talk.chat:chat", "Talk with a model, here or on a server."),
        "complete": ("tessera.cli.talk.complete:complete", "Let a model continue texts, here or on a server."),
        "bench": ("tessera.cli.bench:bench", "Measure latency, throughput, or a running server."),
        "plan": ("tessera.cli.plan:plan_command", "Say what a model takes and how many requests fit."),
        "platforms": ("tessera.cli.platforms:platforms", "List the installed platforms and which one is chosen."),
        "plugins": ("tessera.cli.plugins:plugins", "List the installed plugins and what each implements."),
        "plugin": ("tessera.cli.plugin:plugin", "Write a platform's package, or check one."),
        "conformance": ("tessera.cli.conformance:conformance", "Try whether a platform does what it claims."),
        "doctor": ("tessera.cli.doctor:doctor", "Say what keeps Tessera from running here, and what to do."),
        "completion": ("tessera.cli.completion:completion", "Print the script that lets a shell complete commands."),
    }
)
"""Where a command lies, and its line in the list."""


class CommandGroup(LazyGroup):
    """Core's own commands first. A plugin's command cannot take the name of one of them."""

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name, table=BUILT_IN, **settings)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *sorted(self._of_plugins())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or self._of_plugins().get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        plugins = self._of_plugins()
        if plugins:
            with formatter.section("Commands of plugins"):
                formatter.write_dl([(name, plugins[name].get_short_help_str(80)) for name in sorted(plugins)])

    def _of_plugins(self) -> dict[str, click.Command]:
        """Problems are for `tessera doctor`, and noted here so that none goes unseen."""
        from tessera.config.environment import read_environment
        from tessera.plugins.extensions import plugin_commands
        from tessera.plugins.loading import load_plugins

        plugins = load_plugins(read_environment())
        commands, problems = plugin_commands(plugins)
        problems += [f"plugin {plugin}: {plugin.error}" for plugin in plugins if plugin.error is not None]
        problems += [
            f"command '{name}' of a plugin has the name of one of Tessera's own"
            for name in commands
            if name in BUILT_IN
        ]
        for problem in problems:
            click.echo(f"warning: {problem} (tessera doctor says more)", err=True)
        return {name: command for name, command in commands.items() if name not in BUILT_IN}
