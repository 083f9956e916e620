"""`tessera bench embed`. Flags have vLLM's names where it has the same."""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

import click

from tessera.cli.bench.drive import exit_code_of, run_warm
from tessera.cli.bench.embeddings import EmbeddingExchange, EmbeddingJob, draw_jobs, repeat_jobs
from tessera.cli.bench.options import (
    ARRIVAL_GROUPS,
    ENGINE_FLAGS,
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
from tessera.cli.bench.results import embedding_details, embedding_figures, show_embedding
from tessera.cli.bench.workload import PromptLengths, arrivals, check_fits, vocabulary_of
from tessera.cli.client import Embedder
from tessera.cli.client.own_embedder import OwnEmbedder, embedder_config, start_embedder
from tessera.cli.client.remote import connect
from tessera.cli.client.source import SourceOptions, check_source, key_of
from tessera.cli.client.vectors import MAX_BATCH
from tessera.cli.embed.texts import read_texts
from tessera.cli.event_loop import run_until_end
from tessera.cli.flag_command import FlagCommand, FlagTable, model_argument
from tessera.config import EngineConfig
from tessera.config.engine import GROUPS
from tessera.config.flags import flag
from tessera.errors import ConfigError
from tessera.server.pooling.encoding import FORMATS


@dataclass(frozen=True)
class EmbeddingOptions:
    batch_size: int = flag(1, "Texts in one request.", low=1, high=MAX_BATCH, aliases=("--random-batch-size",))
    file: str | None = flag(
        None, "Embed the lines of this file, again from the first where --num-prompts are more, instead of random "
        "token ids.", metavar="FILE",
    )  # fmt: skip
    truncate_prompt_tokens: int | None = flag(
        None, "Cut longer texts to this many tokens; -1 is what the model takes.", low=-1, metavar="N",
        shown_default="the server refuses what the model does not take",
    )  # fmt: skip
    encoding_format: str = flag(
        "base64", "How the server writes vectors; OpenAI's own clients ask for base64.", choices=FORMATS
    )

    @property
    def fields(self) -> dict[str, Any]:
        """Of each request."""
        fields = {"encoding_format": self.encoding_format, "truncate_prompt_tokens": self.truncate_prompt_tokens}
        return {name: value for name, value in fields.items() if value is not None}


# --tokenizer is the engine's here.
_VOCABULARY = tuple(
    replace(one, shown_default="the model's size, 1000 for a server")
    for one in work_flags(VocabularyOptions)
    if one.name == "vocab_size"
)
_ALIASES = {"url": ("--base-url",), "model_name": ("--model",)}
_SERVER = tuple(replace(one, aliases=_ALIASES.get(one.name, one.aliases)) for one in work_flags(SourceOptions))
EMBED = FlagTable(
    usage="bench embed [MODEL] [FLAGS]",
    summary="Measure how fast texts become vectors (/v1/embeddings): by a running server with --url, otherwise by an "
    f"engine that is started. {MODEL}",
    flags=(
        *_SERVER,
        *work_flags(PromptLengths, RequestOptions, EmbeddingOptions),
        *_VOCABULARY,
        *work_flags(ArrivalOptions, RunOptions),
        *ENGINE_FLAGS,
    ),
    groups={"client": "Server", **WORK_GROUPS, **ARRIVAL_GROUPS, **GROUPS},
)


@click.command(cls=FlagCommand, table=EMBED, params=[model_argument()])
def embed(model: str | None, **flags: Any) -> int:
    """Measure how fast texts become vectors."""
    run = BenchRun.from_flags(EMBED, flags)
    requests, options, arriving = run.record(RequestOptions), run.record(EmbeddingOptions), run.record(ArrivalOptions)
    check_source(model, flags, (one.name for one in ENGINE_FLAGS))
    server = run.record(SourceOptions)
    config = None if server.url is not None else embedder_config(model, run.engine_values(flags))
    vocab_size = None if config is None else config.model.vocab_size
    jobs, warmups = _random_jobs(run, vocab_size) if options.file is None else _file_jobs(run, options.file)
    times = arrivals(len(jobs), arriving.request_rate, arriving.burstiness, run.record(RunOptions).seed)

    async def measure() -> int:
        async with _source(server, config) as embedder:
            if options.file is None and options.truncate_prompt_tokens is None:
                check_fits(run.record(PromptLengths), embedder.max_model_len)
            exchange, most = EmbeddingExchange(embedder, options.fields), _most_requests(config, options, arriving)
            records, seconds = await run_warm(
                exchange, warmups, jobs, times, max_concurrency=most, timeout=arriving.timeout
            )
            figures = embedding_figures(records, seconds)
            click.echo(show_embedding(figures))
            more = embedding_details(records) if requests.save_detailed else {}
            run.write("embed", flags, {**_facts(embedder), **figures, **more})
        return exit_code_of(records)

    return run_until_end(measure)


def _random_jobs(run: BenchRun, vocab_size: int | None) -> tuple[list[EmbeddingJob], list[EmbeddingJob]]:
    """What is measured, and the warm-ups. vocab_size: of the model, if it is known. Raises ConfigError, ModelError."""
    drawn, seed = run.record(VocabularyOptions), run.record(RunOptions).seed
    vocabulary = vocabulary_of(None, vocab_size if drawn.vocab_size is None else drawn.vocab_size)
    lengths, (measured, warm_up, batch_size) = run.record(PromptLengths), _counts(run)
    return (
        draw_jobs(lengths, measured, batch_size, vocabulary=vocabulary, seed=(seed,)),
        draw_jobs(lengths, warm_up, batch_size, vocabulary=vocabulary, seed=(seed, 1)),
    )


def _file_jobs(run: BenchRun, file: str) -> tuple[list[EmbeddingJob], list[EmbeddingJob]]:
    """The same of a file's lines. Raises ConfigError, RequestError."""
    for one in (*work_flags(PromptLengths), *_VOCABULARY):
        if one.name in run.values:
            raise ConfigError(f"{one.option} is for random prompts; remove it, or --file.")
    texts, (measured, warm_up, batch_size) = read_texts((), file, sys.stdin), _counts(run)
    return repeat_jobs(texts, measured, batch_size), repeat_jobs(texts, warm_up, batch_size)


def _counts(run: BenchRun) -> tuple[int, int, int]:
    """Texts to measure, those of the warm-ups, and texts in one request."""
    requests, batch_size = run.record(RequestOptions), run.record(EmbeddingOptions).batch_size
    return requests.num_prompts, requests.num_warmups * batch_size, batch_size


def _source(server: SourceOptions, config: EngineConfig | None) -> AbstractAsyncContextManager[Embedder]:
    """The server, or an engine of our own with the configuration. Raises TesseraError."""
    if config is not None:
        return start_embedder(config)
    assert server.url is not None
    return connect(server.url, api_key=key_of(server.api_key), model_name=server.model_name)


def _most_requests(config: EngineConfig | None, options: EmbeddingOptions, arriving: ArrivalOptions) -> int | None:
    """In flight. An engine of our own would refuse more than it has room for."""
    if config is None:
        return arriving.max_concurrency
    room = (config.scheduler.max_num_seqs + config.scheduler.max_waiting) // options.batch_size
    return max(1, room if arriving.max_concurrency is None else min(room, arriving.max_concurrency))


def _facts(embedder: Embedder) -> dict[str, Any]:
    """What a result says of the model and, if it is ours, of the engine."""
    if isinstance(embedder, OwnEmbedder):
        return engine_facts(embedder.model, embedder.info)
    return {"model": embedder.model}
