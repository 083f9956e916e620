"""`tessera bench latency`, `throughput` and `serve`. Flags have vLLM's names where it has the same."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from tessera.cli.bench.drive import CompletionExchange, Driver, Record, exit_code_of, raise_first, run_warm
from tessera.cli.bench.options import (
    ARRIVAL_GROUPS,
    ENGINE_FLAGS,
    MAX_COUNT,
    MODEL,
    WORK_GROUPS,
    ArrivalOptions,
    BenchRun,
    RequestOptions,
    RunOptions,
    VocabularyOptions,
    engine_facts,
    work_flags,
)
from tessera.cli.bench.plot import PlotOptions, checked_rates, draw_rates, rate_figures, show_rate
from tessera.cli.bench.results import (
    details,
    latency_figures,
    serving_figures,
    show_latency,
    show_serving,
    show_throughput,
    throughput_figures,
)
from tessera.cli.bench.workload import Lengths, arrivals, check_fits, draw, parse_objectives, vocabulary_of
from tessera.cli.client.local import start
from tessera.cli.client.remote import DEFAULT_URL, RemoteClient, connect
from tessera.cli.client.source import key_of
from tessera.cli.event_loop import run_until_end
from tessera.cli.flag_command import FlagCommand, FlagTable, model_argument
from tessera.cli.report import progress
from tessera.config.engine import GROUPS
from tessera.config.flags import flag


@dataclass(frozen=True)
class LatencyOptions:
    batch_size: int = flag(8, "Requests per batch.", low=1, high=MAX_COUNT)
    num_iters_warmup: int = flag(2, "Batches to run before measuring.", low=0, high=MAX_COUNT)
    num_iters: int = flag(10, "Batches to measure.", low=1, high=MAX_COUNT)


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
    temperature: float = flag(0.0, "Sampling temperature; 0 always picks the likeliest token.")
    goodput: tuple[str, ...] = flag(
        (), "Limits in milliseconds that a good request meets: ttft:200,tpot:50,e2el:5000.", group="result",
        metavar="METRIC:MS", multiple=True,
    )  # fmt: skip


_WITHOUT_RATIO = tuple(one for one in work_flags(Lengths) if one.attribute != "range_ratio")
LATENCY = FlagTable(
    usage="bench latency [MODEL] [FLAGS]",
    summary=f"Measure the time of one batch, from its start to its last token, repeatedly. {MODEL}",
    flags=(*work_flags(LatencyOptions), *_WITHOUT_RATIO, *work_flags(EngineOptions, RunOptions), *ENGINE_FLAGS),
    groups={**WORK_GROUPS, **GROUPS},
)
THROUGHPUT = FlagTable(
    usage="bench throughput [MODEL] [FLAGS]",
    summary=f"Measure the throughput of an engine that is given all requests at once. {MODEL}",
    flags=(*work_flags(Lengths, RequestOptions, EngineOptions, RunOptions), *ENGINE_FLAGS),
    groups={**WORK_GROUPS, **GROUPS},
)
SERVE = FlagTable(
    usage="bench serve [FLAGS]",
    summary="Measure a running server with an OpenAI API (/v1/completions, streaming, prompts of token ids).",
    flags=work_flags(
        Lengths, RequestOptions, VocabularyOptions, ServingOptions, ArrivalOptions, RunOptions, PlotOptions
    ),
    groups={"server": "Server", **WORK_GROUPS, **ARRIVAL_GROUPS, "plot": "Plot"},
)


@click.command(cls=FlagCommand, table=LATENCY, params=[model_argument()])
def latency(model: str | None, **flags: Any) -> int:
    """Measure the time of one batch."""
    run = BenchRun.from_flags(LATENCY, flags)
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
                    driver = Driver(CompletionExchange(client, _sampling(run)))
                    records, seconds = await driver.run(jobs, [0.0] * options.batch_size)
                    raise_first(records)
                    times.append(seconds)
                    on_done(number + 1)
            figures = latency_figures(times[options.num_iters_warmup :])
            click.echo(show_latency(figures, lengths, options.batch_size))
            run.write("latency", flags, {**engine_facts(client.model, client.info), **figures})
        return 0

    return run_until_end(measure)


@click.command(cls=FlagCommand, table=THROUGHPUT, params=[model_argument()])
def throughput(model: str | None, **flags: Any) -> int:
    """Measure an engine that is given all requests at once."""
    run = BenchRun.from_flags(THROUGHPUT, flags)
    lengths, options, seed = run.record(Lengths), run.record(RequestOptions), run.record(RunOptions).seed
    config = run.config(model, flags)
    check_fits(lengths, config.model.max_model_len)
    vocabulary = np.arange(config.model.vocab_size)

    async def measure() -> int:
        async with start(config) as client:
            first = draw(lengths, options.num_warmups, vocabulary=vocabulary, seed=(seed, 1))
            await Driver(CompletionExchange(client, _sampling(run))).run(first, [0.0] * options.num_warmups)
            with progress("requests", options.num_prompts) as on_done:
                driver = Driver(
                    CompletionExchange(client, _sampling(run)),
                    # The most the engine accepts; it would refuse more.
                    max_concurrency=client.info.max_num_seqs + config.scheduler.max_waiting,
                    on_done=on_done,
                )
                jobs = draw(lengths, options.num_prompts, vocabulary=vocabulary, seed=(seed,))
                records, seconds = await driver.run(jobs, [0.0] * options.num_prompts)
            figures = throughput_figures(records, seconds)
            click.echo(show_throughput(figures))
            more = details(records) if options.save_detailed else {}
            run.write("throughput", flags, {**engine_facts(client.model, client.info), **figures, **more})
        return exit_code_of(records)

    return run_until_end(measure)


def _sampling(run: BenchRun) -> dict[str, Any]:
    """Sampling for a benchmark's own engine: as little work besides the model as possible, and text only if needed."""
    return {"temperature": 0.0, **({"detokenize": False} if run.record(EngineOptions).disable_detokenize else {})}


@click.command(cls=FlagCommand, table=SERVE)
def serve(**flags: Any) -> int:
    """Measure a running server."""
    run = BenchRun.from_flags(SERVE, flags)
    lengths, requests, options = run.record(Lengths), run.record(RequestOptions), run.record(ServingOptions)
    seed, drawn, arriving = run.record(RunOptions).seed, run.record(VocabularyOptions), run.record(ArrivalOptions)
    vocabulary = vocabulary_of(drawn.tokenizer, drawn.vocab_size)
    objectives = parse_objectives(options.goodput)
    drawing = run.record(PlotOptions)
    rates = checked_rates(drawing, has_rate="request_rate" in run.values)
    key = key_of(options.api_key)

    async def measured(client: RemoteClient, rate: float, *number: int) -> tuple[list[Record], float]:
        """number: of the rate among several, so that no prompt comes again and nothing is cached."""
        times = arrivals(requests.num_prompts, rate, arriving.burstiness, seed)
        exchange = CompletionExchange(client, {"temperature": options.temperature})
        first = draw(lengths, requests.num_warmups, vocabulary=vocabulary, seed=(seed, *number, 1))
        jobs = draw(lengths, len(times), vocabulary=vocabulary, seed=(seed, *number))
        return await run_warm(
            exchange, first, jobs, times, max_concurrency=arriving.max_concurrency, timeout=arriving.timeout
        )

    async def compare() -> int:
        urls = [options.url, *([] if drawing.beside is None else [drawing.beside])]
        async with AsyncExitStack() as opened:
            connections = [connect(url, api_key=key, model_name=options.model_name) for url in urls]
            clients = [await opened.enter_async_context(connection) for connection in connections]
            for client in clients:
                check_fits(lengths, client.max_model_len)
            names = [f"{client.model} at {url}" for client, url in zip(clients, urls, strict=True)]
            servers: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
            for number, rate in enumerate(rates, 2):
                for client, (name, points) in zip(clients, servers.items(), strict=True):
                    records, seconds = await measured(client, rate, number)
                    points.append(rate_figures(records, seconds, objectives, rate))
                    click.echo(show_rate(name, points[-1]))
        title = f"{requests.num_prompts} prompts of {lengths.input_len} tokens, answers of {lengths.output_len}, a rate"
        draw_rates(drawing.plot, servers, title)
        run.write("serve", flags, {"servers": servers})
        return int(any(point["failed"] for points in servers.values() for point in points))

    async def measure() -> int:
        async with connect(options.url, api_key=key, model_name=options.model_name) as client:
            check_fits(lengths, client.max_model_len)
            records, seconds = await measured(client, arriving.request_rate)
            figures = serving_figures(records, seconds, objectives)
            click.echo(show_serving(figures))
            more = details(records) if requests.save_detailed else {}
            run.write("serve", flags, {"model": client.model, **figures, **more})
        return exit_code_of(records)

    return run_until_end(compare if rates else measure)
