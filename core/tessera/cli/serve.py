"""`tessera serve`: its flags and the command. It starts the engine process before it imports anything else it needs."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import click

from tessera.cli.descriptors import raise_limit
from tessera.cli.flag_command import MODEL_FORMS, FlagCommand, FlagTable, ignored, model_argument
from tessera.cli.model_text import TEMPLATE_FLAGS
from tessera.config.engine import ENGINE_FLAGS, GROUPS
from tessera.engine.child import EngineChild, executor_path
from tessera.server.settings import SERVER_FLAGS

if TYPE_CHECKING:
    from tessera.config.other_names import OtherName


def _other(option: str) -> OtherName | None:
    from tessera.config.other_names import other_flag

    return other_flag(option)


TABLE = FlagTable(
    usage="serve [MODEL] [FLAGS]",
    summary=f"Serve MODEL: {MODEL_FORMS}. Without MODEL, serve the bundled demo.",
    flags=(*ENGINE_FLAGS, *TEMPLATE_FLAGS, *SERVER_FLAGS),
    groups={**GROUPS, "server": "HTTP server", "security": "Access and TLS", "logging": "Logging"},
    other=_other,
)


@click.command(cls=FlagCommand, table=TABLE, params=[model_argument()])
def serve(model: str | None, **flags: Any) -> int:
    """Serve a model over the OpenAI API."""
    began = time.monotonic()
    raise_limit()
    for number in (signal.SIGTERM, signal.SIGHUP):  # during start-up; later the server handles them
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, signal.default_int_handler)
    ctx = click.get_current_context()
    if flags["models"] is not None:
        from tessera.cli.model_entries import read_model_entries
        from tessera.cli.serving_models import run_models

        if model is not None:
            raise click.UsageError("Give MODEL or --models, not both.", ctx)
        return run_models(read_model_entries(flags["models"], flags, ctx), flags, ignored(ctx))
    num_hosts = flags["nnodes"] or 1
    if num_hosts > 1 and flags["node_rank"]:
        from tessera.cli.serving_host import run_host

        return run_host(flags)
    num_workers = (flags["pipeline_parallel_size"] or 1) * (flags["tensor_parallel_size"] or 1)
    with EngineChild(executor_path(num_workers, num_hosts)) as child:
        # This import takes about as long as a good part of the engine's own, so they run in parallel.
        from tessera.cli.serving import run

        return run(model, flags, child, began, ignored(ctx))
