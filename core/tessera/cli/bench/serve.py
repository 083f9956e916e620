"""`tessera bench serve`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tessera.arrays import Array
from tessera.cli.bench.arrivals import arrivals
from tessera.cli.bench.drive import Driver
from tessera.cli.bench.failures import exit_code_of
from tessera.cli.bench.flags import SERVE, filled
from tessera.cli.bench.goodput import parse_objectives
from tessera.cli.bench.record import Record
from tessera.cli.bench.result import check_writable, result, settings_of, write
from tessera.cli.bench.run import progress, run
from tessera.cli.bench.serving_figures import details, serving_figures, show
from tessera.cli.bench.vocabulary import vocabulary_of
from tessera.cli.bench.workload import Lengths, check_count, check_fits, draw, lengths_of
from tessera.cli.client import Client
from tessera.cli.client.remote import connect
from tessera.cli.flag_command import FlagCommand
from tessera.config.environment import read_environment
from tessera.errors import ConfigError
from tessera.log import TEXT, set_up_logging


@click.command(cls=FlagCommand, table=SERVE)
def serve(**given: Any) -> int:
    """Time requests to a running server."""
    values = filled(given)
    set_up_logging(values["log_level"].upper(), TEXT)
    check_writable(values["json"])
    lengths = lengths_of(values)
    count = check_count("num-prompts", values["num_prompts"])
    check_count("num-warmups", values["num_warmups"], least=0)
    if values["max_concurrency"] is not None:
        check_count("max-concurrency", values["max_concurrency"])
    vocabulary = vocabulary_of(values["tokenizer"], values["vocab_size"])
    if not values["timeout"] > 0:
        raise ConfigError(f"--timeout must be above 0, got {values['timeout']:g}.")
    objectives = parse_objectives(values["goodput"])
    times = arrivals(count, values["request_rate"], values["burstiness"], values["seed"])
    environment = read_environment()
    key = values["api_key"] or environment.api_key or environment.openai_api_key

    async def measure() -> int:
        async with connect(values["url"], api_key=key, model_name=values["model_name"]) as client:
            check_fits(lengths, client.max_model_len)
            await _warm_up(client, lengths, vocabulary, values)
            records, seconds = await _time(client, lengths, vocabulary, times, values)
            figures = serving_figures(records, seconds, objectives)
            click.echo(show(figures))
            more = details(records) if values["save_detailed"] else {}
            write(values["json"], result("serve", settings_of(values), {"model": client.model, **figures, **more}))
        return exit_code_of(records)

    return run(measure)


async def _warm_up(client: Client, lengths: Lengths, vocabulary: Array, values: Mapping[str, Any]) -> None:
    """Raises what goes wrong with one of these: the others would go the same way."""
    count = values["num_warmups"]
    jobs = draw(lengths, count, vocabulary=vocabulary, seed=(values["seed"], 1))
    driver = Driver(client, _sampling(values), timeout=values["timeout"])
    records, _ = await driver.run(jobs, [0.0] * count)
    for record in records:
        if record.error is not None:
            raise record.error


async def _time(
    client: Client, lengths: Lengths, vocabulary: Array, times: list[float], values: Mapping[str, Any]
) -> tuple[list[Record], float]:
    jobs = draw(lengths, len(times), vocabulary=vocabulary, seed=(values["seed"],))
    with progress("requests", len(jobs)) as on_done:
        driver = Driver(
            client,
            _sampling(values),
            max_concurrency=values["max_concurrency"],
            timeout=values["timeout"],
            on_done=on_done,
        )
        return await driver.run(jobs, times)


def _sampling(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"temperature": values["temperature"]}
