"""`tessera serve`: the command. The engine's process begins before anything else of it."""

from __future__ import annotations

import signal
import time
from typing import Any

import click

from tessera.cli.flag_command import FlagCommand
from tessera.cli.serve_flags import TABLE
from tessera.cli.suggestions import model_folders
from tessera.engine.child import EngineChild
from tessera.engine.executors import executor_path


@click.command(cls=FlagCommand, table=TABLE)
@click.argument("model", required=False, shell_complete=model_folders)
def serve(model: str | None, **flags: Any) -> int:
    """Serve a model over the OpenAI API."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end the start alike; later they are the server's
    with EngineChild(executor_path(flags["tensor_parallel_size"] or 1)) as child:
        # Takes as long as the engine needs for a good part of its own imports.
        from tessera.cli.serving import run

        return run(model, flags, child, began)
