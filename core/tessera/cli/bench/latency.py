"""`tessera bench latency`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
import numpy as np

from tessera.cli.bench.drive import Driver
from tessera.cli.bench.engine_facts import facts_of
from tessera.cli.bench.figures import spread
from tessera.cli.bench.flags import LATENCY, filled
from tessera.cli.bench.result import check_writable, result, settings_of, write
from tessera.cli.bench.run import progress, run
from tessera.cli.bench.table import table
from tessera.cli.bench.workload import Lengths, check_count, check_fits, draw
from tessera.cli.client.local import LocalClient, start
from tessera.cli.engine_flags import engine_config
from tessera.cli.flag_command import FlagCommand
from tessera.cli.suggestions import model_folders
from tessera.log import TEXT, set_up_logging

PERCENTILES = (10, 25, 50, 75, 90, 99)


@click.command(cls=FlagCommand, table=LATENCY)
@click.argument("model", required=False, shell_complete=model_folders)
def latency(model: str | None, **given: Any) -> int:
    """Time one batch from its start to its last token."""
    values = filled(given)
    set_up_logging(values["log_level"].upper(), TEXT)
    check_writable(values["json"])
    lengths = Lengths(values["input_len"], values["output_len"])
    batch = check_count("batch-size", values["batch_size"])
    warm_up = check_count("num-iters-warmup", values["num_iters_warmup"], least=0)
    iterations = check_count("num-iters", values["num_iters"])
    # A batch is one only where all its rows run at once.
    rows = batch if values["max_num_seqs"] is None else values["max_num_seqs"]
    config = engine_config(model, values, max_num_seqs=rows)
    check_fits(lengths, config.model.max_model_len)

    async def measure() -> int:
        async with start(config) as client:
            with progress("batches", warm_up + iterations) as on_done:
                seconds = []
                for number in range(warm_up + iterations):
                    seed = (values["seed"], number)
                    seconds.append(await _time(client, lengths, batch, config.model.vocab_size, seed, values))
                    on_done(number + 1)
            figures = latency_figures(seconds[warm_up:])
            click.echo(show(figures, lengths, batch))
            write(values["json"], result("latency", settings_of(values), {**facts_of(client), **figures}))
        return 0

    return run(measure)


async def _time(
    client: LocalClient, lengths: Lengths, batch: int, vocab_size: int, seed: tuple[int, ...], values: Mapping[str, Any]
) -> float:
    """Seconds of one batch; its prompts are new, so that nothing comes from a cache. Raises what a request did."""
    jobs = draw(lengths, batch, vocabulary=np.arange(vocab_size), seed=seed)
    records, seconds = await Driver(client, sampling_of(values)).run(jobs, [0.0] * batch)
    for record in records:
        if record.error is not None:
            raise record.error
    return seconds


def sampling_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of a benchmark's own engine: what costs least beside the model, and the text only where it is wanted."""
    return {"temperature": 0.0, **({"detokenize": False} if values["disable_detokenize"] else {})}


def latency_figures(seconds: Sequence[float]) -> dict[str, Any]:
    figures = spread(seconds, PERCENTILES)
    return {
        "avg_latency": figures["mean"],
        "std_latency": figures["std"],
        "percentiles": {str(percent): figures[f"p{percent}"] for percent in PERCENTILES},
        "latencies": list(seconds),
    }


def show(figures: Mapping[str, Any], lengths: Lengths, batch: int) -> str:
    rows = [("Avg latency (s)", f"{figures['avg_latency']:.4f}"), ("Std latency (s)", f"{figures['std_latency']:.4f}")]
    rows += [
        (f"{percent}% percentile latency (s)", f"{value:.4f}") for percent, value in figures["percentiles"].items()
    ]
    rate = batch * lengths.output_len / figures["avg_latency"]
    rows.append(("Output token throughput (tok/s)", f"{rate:.2f}"))
    title = (
        f"{len(figures['latencies'])} batches of {batch} requests, {lengths.input_len} tokens in and "
        f"{lengths.output_len} out"
    )
    return table(title, [("", rows)])
