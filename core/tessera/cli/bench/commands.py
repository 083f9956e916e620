"""`tessera bench latency`, `throughput` and `serve`. Flags have vLLM's names where it has the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click
import numpy as np

from tessera.arrays import Array
from tessera.cli.bench.drive import Driver, Record, exit_code_of
from tessera.cli.bench.results import (
    check_writable,
    details,
    latency_figures,
    serving_figures,
    show_latency,
    show_serving,
    show_throughput,
    throughput_figures,
    write,
)
from tessera.cli.bench.workload import Lengths, arrivals, check_fits, draw, parse_objectives, vocabulary_of
from tessera.cli.client import Client
from tessera.cli.client.local import LocalClient, start
from tessera.cli.client.remote import DEFAULT_URL, connect
from tessera.cli.client.source import key_of
from tessera.cli.event_loop import run_until_end
from tessera.cli.flag_command import MODEL_FORMS, FlagCommand, FlagTable, model_argument
from tessera.cli.report import progress
from tessera.config import EngineConfig, build_config
from tessera.config.engine import ENGINE_FLAGS, GROUPS
from tessera.config.flags import Flag, flag, flags_of, given_values, record_of
from tessera.log import TEXT, set_up_logging

MAX_COUNT = 10**6


@dataclass(frozen=True)
class RunOptions:
    """Options of every benchmark."""

    seed: int = flag(0, "Seed of prompts, lengths, arrivals and dummy weights.", low=0)
    json: str | None = flag(
        None, "Write the result as JSON, with all settings, versions and the machine.", group="result", metavar="FILE",
        aliases=("--output-json",),
    )  # fmt: skip
    log_level: str = flag(
        "warning", "Minimum severity of log messages.", group="result", metavar="LEVEL",
        choices=("debug", "info", "warning", "error"),
    )  # fmt: skip


@dataclass(frozen=True)
class LatencyOptions:
    batch_size: int = flag(8, "Requests per batch.", low=1, high=MAX_COUNT)
    num_iters_warmup: int = flag(2, "Batches to run before measuring.", low=0, high=MAX_COUNT)
    num_iters: int = flag(10, "Batches to measure.", low=1, high=MAX_COUNT)


@dataclass(frozen=True)
class RequestOptions:
    """Options of benchmarks with many requests."""

    num_prompts: int = flag(100, "Requests to measure.", low=1, high=MAX_COUNT)
    num_warmups: int = flag(1, "Requests to run before measuring.", low=0, high=MAX_COUNT)
    save_detailed: bool = flag(False, "Add the times and lengths of each request to the JSON.", group="result")


@dataclass(frozen=True)
class EngineOptions:
    """Options of benchmarks that start an engine."""

    disable_detokenize: bool = flag(False, "Do not detokenize, so that its time is not measured.")


@dataclass(frozen=True)
class ServingOptions:
    """Options of the benchmark of a running server."""

    url: str = flag(DEFAULT_URL, "URL of the server.", group="server", metavar="URL", aliases=("--base-url",))
    api_key: str | None = flag(
        None, "API key of the server.", group="server", metavar="KEY", variable="TESSERA_API_KEY or OPENAI_API_KEY"
    )
    model_name: str | None = flag(
        None, "Model of the server.", group="server", metavar="NAME", shown_default="its first", aliases=("--model",)
    )
    tokenizer: str | None = flag(
        None, "Draw prompts from the ordinary tokens of this tokenizer, a folder or Hub repository, instead of "
        "--vocab-size.", metavar="MODEL",
    )  # fmt: skip
    vocab_size: int | None = flag(
        None, "Draw prompts from token ids below this.", low=1, high=MAX_COUNT, shown_default="1000"
    )
    temperature: float = flag(0.0, "Sampling temperature; 0 always picks the likeliest token.")
    request_rate: float = flag(
        math.inf, "Requests sent per second, as a Poisson process; inf sends all at once.", group="arrival", above=0,
        metavar="RATE",
    )  # fmt: skip
    burstiness: float = flag(
        1.0, "1 is a Poisson process; lower is burstier, higher is more even.", group="arrival", above=0, below=math.inf
    )
    max_concurrency: int | None = flag(
        None, "Maximum requests in flight; others are sent as these finish.", group="arrival", low=1, high=MAX_COUNT,
        shown_default="no limit",
    )  # fmt: skip
    timeout: float = flag(
        600.0,
        "Time after which a request counts as failed.",
        group="arrival",
        above=0,
        unit="seconds",
        metavar="SECONDS",
    )
    goodput: tuple[str, ...] = flag(
        (), "Limits in milliseconds that a good request meets: ttft:200,tpot:50,e2el:5000.", group="result",
        metavar="METRIC:MS", multiple=True,
    )  # fmt: skip


def _work_flags(*records: type) -> tuple[Flag, ...]:
    return tuple(replace(one, common=True) for record in records for one in flags_of(record, "work"))


_ENGINE_FLAGS = tuple(
    replace(one, common=False) for one in ENGINE_FLAGS if one.name not in ("seed", "served_model_name")
)
_ENGINE_RECORDS = frozenset(one.record for one in ENGINE_FLAGS)
_WITHOUT_RATIO = tuple(one for one in _work_flags(Lengths) if one.attribute != "range_ratio")
_MODEL = f"MODEL is {MODEL_FORMS}; without it, the bundled demo runs."
_WORK = {"work": "Workload", "result": "Output"}

LATENCY = FlagTable(
    usage="bench latency [MODEL] [FLAGS]",
    summary=f"Measure the time of one batch, from its start to its last token, repeatedly. {_MODEL}",
    flags=(*_work_flags(LatencyOptions), *_WITHOUT_RATIO, *_work_flags(EngineOptions, RunOptions), *_ENGINE_FLAGS),
    groups={**_WORK, **GROUPS},
)
THROUGHPUT = FlagTable(
    usage="bench throughput [MODEL] [FLAGS]",
    summary=f"Measure the throughput of an engine that is given all requests at once. {_MODEL}",
    flags=(*_work_flags(Lengths, RequestOptions, EngineOptions, RunOptions), *_ENGINE_FLAGS),
    groups={**_WORK, **GROUPS},
)
SERVE = FlagTable(
    usage="bench serve [FLAGS]",
    summary="Measure a running server with an OpenAI API (/v1/completions, streaming, prompts of token ids).",
    flags=_work_flags(Lengths, RequestOptions, ServingOptions, RunOptions),
    groups={"server": "Server", "work": "Workload", "arrival": "Arrival of requests", "result": "Output"},
)


@dataclass(frozen=True)
class _BenchRun:
    """The validated flags of a run. values: those that were given."""

    table: FlagTable
    values: Mapping[str, Any]

    @classmethod
    def from_flags(cls, table: FlagTable, flags: Mapping[str, Any]) -> _BenchRun:
        """Validates the flags and sets up logging. Raises ConfigError."""
        # build_config validates the engine's flags.
        own = [one for one in table.flags if one.record not in _ENGINE_RECORDS]
        run = cls(table, given_values(own, flags, as_options=True))
        options = run.record(RunOptions)
        set_up_logging(options.log_level.upper(), TEXT)
        check_writable(options.json)
        return run

    def record(self, record: type[Any]) -> Any:
        return record_of(record, self.table.flags, self.values)

    def config(self, model: str | None, flags: Mapping[str, Any], **fixed: Any) -> EngineConfig:
        """Raises ConfigError, ModelError or PlatformError."""
        engine = {one.name: flags[one.name] for one in _ENGINE_FLAGS}
        return build_config(model, **{**engine, "seed": self.record(RunOptions).seed, **fixed})

    def write(self, benchmark: str, flags: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
        """Writes the figures, and every flag that was given or has a default of this command. Raises ConfigError."""
        settings = {one.name: one.default for one in self.table.flags if one.record not in _ENGINE_RECORDS}
        settings |= {name: value for name, value in flags.items() if value not in (None, ())}
        write(self.record(RunOptions).json, benchmark, settings, figures)


@click.command(cls=FlagCommand, table=LATENCY, params=[model_argument()])
def latency(model: str | None, **flags: Any) -> int:
    """Measure the time of one batch."""
    run = _BenchRun.from_flags(LATENCY, flags)
    lengths, options, seed = run.record(Lengths), run.record(LatencyOptions), run.record(RunOptions).seed
    # It is only one batch if all rows run at once.
    rows = options.batch_size if flags["max_num_seqs"] is None else flags["max_num_seqs"]
    config = run.config(model, flags, max_num_seqs=rows)
    check_fits(lengths, config.model.max_model_len)
    vocabulary, total = np.arange(config.model.vocab_size), options.num_iters_warmup + options.num_iters

    async def measure() -> int:
        async with start(config) as client:
            with progress("batches", total) as on_done:
                times = []
                for number in range(total):
                    # New prompts each time, so that nothing is cached.
                    jobs = draw(lengths, options.batch_size, vocabulary=vocabulary, seed=(seed, number))
                    driver = Driver(client, _sampling(run))
                    records, seconds = await driver.run(jobs, [0.0] * options.batch_size)
                    _raise_first(records)
                    times.append(seconds)
                    on_done(number + 1)
            figures = latency_figures(times[options.num_iters_warmup :])
            click.echo(show_latency(figures, lengths, options.batch_size))
            run.write("latency", flags, {**_facts_of(client), **figures})
        return 0

    return run_until_end(measure)


@click.command(cls=FlagCommand, table=THROUGHPUT, params=[model_argument()])
def throughput(model: str | None, **flags: Any) -> int:
    """Measure an engine that is given all requests at once."""
    run = _BenchRun.from_flags(THROUGHPUT, flags)
    lengths, options, seed = run.record(Lengths), run.record(RequestOptions), run.record(RunOptions).seed
    config = run.config(model, flags)
    check_fits(lengths, config.model.max_model_len)
    vocabulary = np.arange(config.model.vocab_size)

    async def measure() -> int:
        async with start(config) as client:
            first = draw(lengths, options.num_warmups, vocabulary=vocabulary, seed=(seed, 1))
            await Driver(client, _sampling(run)).run(first, [0.0] * options.num_warmups)
            with progress("requests", options.num_prompts) as on_done:
                driver = Driver(
                    client,
                    _sampling(run),
                    # The most the engine accepts; it would refuse more.
                    max_concurrency=client.info.max_num_seqs + config.scheduler.max_waiting,
                    on_done=on_done,
                )
                jobs = draw(lengths, options.num_prompts, vocabulary=vocabulary, seed=(seed,))
                records, seconds = await driver.run(jobs, [0.0] * options.num_prompts)
            figures = throughput_figures(records, seconds)
            click.echo(show_throughput(figures))
            more = details(records) if options.save_detailed else {}
            run.write("throughput", flags, {**_facts_of(client), **figures, **more})
        return exit_code_of(records)

    return run_until_end(measure)


def _sampling(run: _BenchRun) -> dict[str, Any]:
    """Sampling for a benchmark's own engine: as little work besides the model as possible, and text only if needed."""
    return {"temperature": 0.0, **({"detokenize": False} if run.record(EngineOptions).disable_detokenize else {})}


def _facts_of(client: LocalClient) -> dict[str, Any]:
    """The facts about the benchmark's own engine that go into a result."""
    info = client.info
    return {
        "model": client.model,
        "platform": info.platform,
        "device": info.device,
        "dtype": info.dtype,
        "fallback_ops": list(info.fallback_ops),
    }


@click.command(cls=FlagCommand, table=SERVE)
def serve(**flags: Any) -> int:
    """Measure a running server."""
    run = _BenchRun.from_flags(SERVE, flags)
    lengths, requests, options = run.record(Lengths), run.record(RequestOptions), run.record(ServingOptions)
    seed = run.record(RunOptions).seed
    vocabulary = vocabulary_of(options.tokenizer, options.vocab_size)
    objectives = parse_objectives(options.goodput)
    times = arrivals(requests.num_prompts, options.request_rate, options.burstiness, seed)
    key = key_of(options.api_key)

    async def measure() -> int:
        async with connect(options.url, api_key=key, model_name=options.model_name) as client:
            check_fits(lengths, client.max_model_len)
            await _warm_up(client, lengths, requests.num_warmups, vocabulary, seed, options)
            jobs = draw(lengths, len(times), vocabulary=vocabulary, seed=(seed,))
            with progress("requests", len(jobs)) as on_done:
                driver = Driver(
                    client,
                    {"temperature": options.temperature},
                    max_concurrency=options.max_concurrency,
                    timeout=options.timeout,
                    on_done=on_done,
                )
                records, seconds = await driver.run(jobs, times)
            figures = serving_figures(records, seconds, objectives)
            click.echo(show_serving(figures))
            more = details(records) if requests.save_detailed else {}
            run.write("serve", flags, {"model": client.model, **figures, **more})
        return exit_code_of(records)

    return run_until_end(measure)


async def _warm_up(
    client: Client, lengths: Lengths, count: int, vocabulary: Array, seed: int, options: ServingOptions
) -> None:
    """Runs the warm-up requests. Raises the first error, since the other requests would fail the same way."""
    jobs = draw(lengths, count, vocabulary=vocabulary, seed=(seed, 1))
    driver = Driver(client, {"temperature": options.temperature}, timeout=options.timeout)
    records, _ = await driver.run(jobs, [0.0] * count)
    _raise_first(records)


def _raise_first(records: list[Record]) -> None:
    for record in records:
        if record.error is not None:
            raise record.error
