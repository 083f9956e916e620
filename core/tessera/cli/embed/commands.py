"""`tessera embed`: its flags, and what it prints."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass, replace
from typing import Any

import click
import msgspec
import numpy as np

from tessera.cli.client import Embedder
from tessera.cli.client.own_embedder import embedder_config, start_embedder
from tessera.cli.client.remote import connect
from tessera.cli.client.source import SourceOptions, check_source, key_of
from tessera.cli.client.vectors import MAX_BATCH, embed_texts
from tessera.cli.embed.similarity import check_comparable, cosines, pair_table, query_table
from tessera.cli.embed.texts import read_texts
from tessera.cli.event_loop import run_until_end
from tessera.cli.flag_command import MODEL_FORMS, FlagCommand, FlagTable
from tessera.cli.report import progress
from tessera.config.engine import ENGINE_FLAGS, GROUPS
from tessera.config.flags import flag, flags_of, given_values, record_of
from tessera.log import TEXT, set_up_logging


@dataclass(frozen=True)
class EmbedOptions(SourceOptions):
    model: str | None = flag(
        None, f"Model to run here: {MODEL_FORMS}.", metavar="MODEL", shown_default="the bundled demo", common=True,
    )  # fmt: skip
    file: str | None = flag(None, "Read texts from this file, one on each line.", metavar="FILE", common=True)
    query: str | None = flag(
        None, "Order the texts by their similarity to this one.", metavar="TEXT", common=True, aliases=("-q",)
    )
    dimensions: int | None = flag(None, "Length of the vectors, of a model made for shorter ones.", low=1, common=True)
    prompt_name: str | None = flag(
        None, "The model's instruction to put in front of each text, such as document.", metavar="NAME", common=True
    )
    query_prompt_name: str | None = flag(
        None, "The same for --query.", metavar="NAME", shown_default="--prompt-name", common=True
    )
    batch_size: int = flag(256, "Texts in one request.", low=1, high=MAX_BATCH, common=True)
    output: str | None = flag(
        None, "table has the cosines of the vectors, jsonl a line for each text, json a list of these.",
        shown_default="table on a terminal, jsonl elsewhere", choices=("table", "jsonl", "json"), common=True,
    )  # fmt: skip
    log_level: str = flag(
        "warning", "Minimum severity of log messages.", group="logging", metavar="LEVEL",
        choices=("debug", "info", "warning", "error"),
    )  # fmt: skip

    def fields(self, prompt_name: str | None) -> dict[str, Any]:
        """Those of a request that have a value."""
        fields = {"dimensions": self.dimensions, "prompt_name": prompt_name}
        return {name: value for name, value in fields.items() if value is not None}


# -q is a query here, and requests do not name the model.
_ENGINE_FLAGS = tuple(
    replace(one, common=False, aliases=tuple(name for name in one.aliases if name != "-q"))
    for one in ENGINE_FLAGS
    if one.name != "served_model_name"
)
TABLE = FlagTable(
    usage="embed [TEXT ...] [FLAGS]",
    summary="Embed texts and compare them: arguments, the lines of a --file, or those of stdin. On a terminal, a table "
    "has the cosine of each pair, or with --query of each text with the query; elsewhere, each text has a line of JSON "
    "with its vector (with --query, its similarity). --model or the bundled demo runs here; with --url, a server "
    "answers instead.",
    flags=(*flags_of(EmbedOptions, "texts"), *_ENGINE_FLAGS),
    groups={"texts": "Texts", "client": "Server", **GROUPS, "logging": "Logging"},
)


@click.command(cls=FlagCommand, table=TABLE, params=[click.Argument(["texts"], nargs=-1, metavar="[TEXT]...")])
def embed(texts: Sequence[str], **values: Any) -> int:
    """Embed texts and compare them."""
    own = flags_of(EmbedOptions, "texts")
    options = record_of(EmbedOptions, own, given_values(own, values, as_options=True))
    set_up_logging(options.log_level.upper(), TEXT)
    texts = read_texts(texts, options.file, sys.stdin)
    output = _output_of(options, len(texts))
    if output == "table" and options.query is None:
        check_comparable(len(texts))
    source = _source(values, options)

    async def work() -> int:
        async with source as embedder:
            if options.query is not None:
                await _compare(embedder, options.query, texts, options, output)
            else:
                await _show(embedder, texts, options, output)
        return 0

    return run_until_end(work)


def _output_of(options: EmbedOptions, count: int) -> str:
    """A table compares, so a single text has none, unless there is a query or the flag says so."""
    if options.output is not None:
        return options.output
    return "table" if sys.stdout.isatty() and (count > 1 or options.query is not None) else "jsonl"


def _source(values: Mapping[str, Any], options: EmbedOptions) -> AbstractAsyncContextManager[Embedder]:
    """The server of --url, otherwise an engine of our own. Raises TesseraError."""
    check_source(options.model, values, (one.name for one in _ENGINE_FLAGS), "a --model")
    if options.url is None:
        return start_embedder(embedder_config(options.model, {one.name: values[one.name] for one in _ENGINE_FLAGS}))
    return connect(options.url, api_key=key_of(options.api_key), model_name=options.model_name)


async def _show(embedder: Embedder, texts: Sequence[str], options: EmbedOptions, output: str) -> None:
    """Prints the vectors, or a table that compares them. Lines of JSON are printed as soon as they are there."""
    vectors: list[list[float]] = []
    with closing(_batches(texts, options.batch_size)) as batches:
        for start, batch in batches:
            made = await embed_texts(embedder, batch, options.fields(options.prompt_name))
            if output != "jsonl":
                vectors += made
                continue
            for item in _embedded(batch, made, start):
                click.echo(msgspec.json.encode(item))
    if output == "table":
        click.echo(pair_table(texts, cosines(vectors, vectors)))
    elif output == "json":
        click.echo(msgspec.json.encode(list(_embedded(texts, vectors, 0))))


def _embedded(texts: Sequence[str], vectors: Sequence[Sequence[float]], start: int) -> Iterator[dict[str, Any]]:
    """start: the index of the first text."""
    for index, (text, vector) in enumerate(zip(texts, vectors, strict=True), start):
        yield {"index": index, "text": text, "embedding": vector}


async def _compare(embedder: Embedder, query: str, texts: Sequence[str], options: EmbedOptions, output: str) -> None:
    """Prints the texts by their similarity to the query."""
    named = options.prompt_name if options.query_prompt_name is None else options.query_prompt_name
    wanted = await embed_texts(embedder, [query], options.fields(named))
    similarities: list[float] = []
    with closing(_batches(texts, options.batch_size)) as batches:
        for _, batch in batches:
            made = await embed_texts(embedder, batch, options.fields(options.prompt_name))
            similarities += cosines(wanted, made)[0].tolist()
    similarity = np.array(similarities)
    if output == "table":
        click.echo(query_table(texts, similarity))
        return
    items = [
        {"index": index, "text": texts[index], "similarity": round(similarities[index], 6)}
        for index in np.argsort(-similarity, kind="stable").tolist()
    ]
    for item in [items] if output == "json" else items:
        click.echo(msgspec.json.encode(item))


def _batches(texts: Sequence[str], size: int) -> Generator[tuple[int, Sequence[str]]]:
    """The index of each batch's first text, and its texts. Shows progress if there are several."""
    if len(texts) <= size:
        yield 0, texts
        return
    with progress("texts", len(texts)) as on_done:
        for start in range(0, len(texts), size):
            yield start, texts[start : start + size]
            on_done(min(start + size, len(texts)))
