"""`tessera chat`."""

from __future__ import annotations

from typing import Any

import click

from tessera.cli.flag_command import FlagCommand
from tessera.cli.suggestions import model_folders
from tessera.cli.talk.dialogue import Conversation
from tessera.cli.talk.flags import CHAT, sampling_of
from tessera.cli.talk.run import talk


@click.command(cls=FlagCommand, table=CHAT)
@click.argument("model", required=False, shell_complete=model_folders)
def chat(model: str | None, **values: Any) -> int:
    """Talk with a model."""
    return talk(model, values, lambda client: Conversation(client, sampling_of(values), values["system"]))
