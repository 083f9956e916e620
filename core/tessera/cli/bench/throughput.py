"""`tessera bench throughput`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
import numpy as np

from tessera.cli.bench.drive import Driver
from tessera.cli.bench.engine_facts import facts_of
from tessera.cli.bench.failures import exit_code_of, failures
from tessera.cli.bench.flags import THROUGHPUT, filled
from tessera.cli.bench.latency import sampling_of
from tessera.cli.bench.record import Record
from tessera.cli.bench.result import check_writable, result, settings_of, write
from tessera.cli.bench.run import progress, run
from tessera.cli.bench.serving_figures import details
from tessera.cli.bench.table import table
from tessera.cli.bench.workload import check_count, check_fits, draw, lengths_of
from tessera.cli.client.local import start
from tessera.cli.engine_flags import engine_config
from tessera.cli.flag_command import FlagCommand
from tessera.cli.suggestions import model_folders
from tessera.log import TEXT, set_up_logging


@click.command(cls=FlagCommand, table=THROUGHPUT)
@click.argument("model", required=False, shell_complete=model_folders)
def throughput(model: str | None, **given: Any) -> int:
    """Time requests given to an engine all at once."""
    values = filled(given)
    set_up_logging(values["log_level"].upper(), TEXT)
    check_writable(values["json"])
    lengths = lengths_of(values)
    count = check_count("num-prompts", values["num_prompts"])
    warm_up = check_count("num-warmups", values["num_warmups"], least=0)
    config = engine_config(model, values)
    check_fits(lengths, config.model.max_model_len)
    vocabulary, scheduler = np.arange(config.model.vocab_size), config.scheduler

    async def measure() -> int:
        async with start(config) as client:
            first = draw(lengths, warm_up, vocabulary=vocabulary, seed=(values["seed"], 1))
            await Driver(client, sampling_of(values)).run(first, [0.0] * warm_up)
            with progress("requests", count) as on_done:
                driver = Driver(
                    client,
                    sampling_of(values),
                    # All that the engine takes in; more would be refused.
                    max_concurrency=scheduler.max_num_seqs + scheduler.max_waiting,
                    on_done=on_done,
                )
                jobs = draw(lengths, count, vocabulary=vocabulary, seed=(values["seed"],))
                records, seconds = await driver.run(jobs, [0.0] * count)
            figures = throughput_figures(records, seconds)
            click.echo(show(figures))
            more = details(records) if values["save_detailed"] else {}
            content = {**facts_of(client), **figures, **more}
            write(values["json"], result("throughput", settings_of(values), content))
        return exit_code_of(records)

    return run(measure)


def throughput_figures(records: Sequence[Record], seconds: float) -> dict[str, Any]:
    """Tokens and requests of whole answers, by the seconds of all."""
    whole = [record for record in records if record.completed]
    tokens_in, tokens_out = sum(r.prompt_len for r in whole), sum(r.output_len for r in whole)
    return {
        "elapsed_time": seconds,
        "num_requests": len(records),
        "completed": len(whole),
        "failed": len(records) - len(whole),
        "total_num_tokens": tokens_in + tokens_out,
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "requests_per_second": len(whole) / seconds,
        "tokens_per_second": (tokens_in + tokens_out) / seconds,
        "input_tokens_per_second": tokens_in / seconds,
        "output_tokens_per_second": tokens_out / seconds,
        "errors": failures(records),
    }


def show(figures: Mapping[str, Any]) -> str:
    rows = [
        ("Requests", f"{figures['completed']}"),
        ("Elapsed time (s)", f"{figures['elapsed_time']:.2f}"),
        ("Total input tokens", f"{figures['total_input_tokens']}"),
        ("Total output tokens", f"{figures['total_output_tokens']}"),
        ("Request throughput (req/s)", f"{figures['requests_per_second']:.2f}"),
        ("Total token throughput (tok/s)", f"{figures['tokens_per_second']:.2f}"),
        ("Input token throughput (tok/s)", f"{figures['input_tokens_per_second']:.2f}"),
        ("Output token throughput (tok/s)", f"{figures['output_tokens_per_second']:.2f}"),
    ]
    failed = [(reason, str(count)) for reason, count in figures["errors"].items()]
    return table("Throughput", [("", rows), *([("Failed requests", failed)] if failed else [])])
