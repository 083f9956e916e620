"""`tessera complete`."""

from __future__ import annotations

from typing import Any

import click

from tessera.cli.flag_command import FlagCommand
from tessera.cli.suggestions import model_folders
from tessera.cli.talk.dialogue import Completions
from tessera.cli.talk.flags import COMPLETE, sampling_of
from tessera.cli.talk.run import talk


@click.command(cls=FlagCommand, table=COMPLETE)
@click.argument("model", required=False, shell_complete=model_folders)
def complete(model: str | None, **values: Any) -> int:
    """Let a model continue texts."""
    return talk(model, values, lambda client: Completions(client, sampling_of(values)))
