"""What requests to a server add up to, under the names vLLM's benchmark gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.cli.bench.failures import failures
from tessera.cli.bench.figures import PERCENTILES, in_milliseconds, spread
from tessera.cli.bench.goodput import kept
from tessera.cli.bench.record import Record, peak_concurrency
from tessera.cli.bench.table import table

_TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


def serving_figures(records: Sequence[Record], seconds: float, objectives: Mapping[str, float]) -> dict[str, Any]:
    """Times of whole answers alone; a request that failed is in no figure but `failed` and `errors`. objectives: what
    goodput asks for; empty for none."""
    whole = [record for record in records if record.completed]
    tokens_in, tokens_out = sum(r.prompt_len for r in whole), sum(r.output_len for r in whole)
    figures: dict[str, Any] = {
        "duration": seconds,
        "completed": len(whole),
        "failed": len(records) - len(whole),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": len(whole) / seconds,
        "output_throughput": tokens_out / seconds,
        "total_token_throughput": (tokens_in + tokens_out) / seconds,
        "max_concurrent_requests": peak_concurrency(whole),
        "short_answers": sum(record.output_len < record.asked for record in whole),
        "errors": failures(records),
    }
    if objectives:
        figures["request_goodput"] = sum(kept(record, objectives) for record in whole) / seconds
    for name, values in _times(whole).items():
        figures |= in_milliseconds(name, spread(values))
    return figures


def _times(whole: Sequence[Record]) -> dict[str, list[float]]:
    return {
        "ttft": [record.ttft for record in whole],
        "tpot": [tpot for record in whole if (tpot := record.tpot) is not None],
        "itl": [gap for record in whole for gap in record.itl],
        "e2el": [record.e2el for record in whole],
    }


def details(records: Sequence[Record]) -> dict[str, Any]:
    """Of each request, in the order of their arrival; times of those that failed are empty."""
    return {
        "input_lens": [record.prompt_len for record in records],
        "output_lens": [record.output_len for record in records],
        "ttfts": [record.ttft if record.completed else None for record in records],
        "itls": [record.itl if record.completed else [] for record in records],
        "e2els": [record.e2el if record.completed else None for record in records],
        "reasons": [None if record.error is None else record.error.message for record in records],
    }


def show(figures: Mapping[str, Any]) -> str:
    sections = [("", list(_rows(figures)))]
    for name, title in _TITLES.items():
        kinds = {"mean": "Mean", "median": "Median", **{f"p{percent}": f"P{percent}" for percent in PERCENTILES}}
        sections.append(
            (
                title,
                [
                    (f"{label} {name.upper()} (ms)", f"{figures[f'{kind}_{name}_ms']:.2f}")
                    for kind, label in kinds.items()
                ],
            )
        )
    if figures["errors"]:
        sections.append(("Failed requests by reason", [(why, str(count)) for why, count in figures["errors"].items()]))
    return table("Serving Benchmark Result", sections)


def _rows(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Successful requests", str(figures["completed"])
    yield "Failed requests", str(figures["failed"])
    yield "Benchmark duration (s)", f"{figures['duration']:.2f}"
    yield "Total input tokens", str(figures["total_input_tokens"])
    yield "Total generated tokens", str(figures["total_output_tokens"])
    yield "Request throughput (req/s)", f"{figures['request_throughput']:.2f}"
    if "request_goodput" in figures:
        yield "Request goodput (req/s)", f"{figures['request_goodput']:.2f}"
    yield "Output token throughput (tok/s)", f"{figures['output_throughput']:.2f}"
    yield "Total token throughput (tok/s)", f"{figures['total_token_throughput']:.2f}"
    yield "Peak concurrent requests", str(figures["max_concurrent_requests"])
    if figures["short_answers"]:
        yield "Answers shorter than asked", str(figures["short_answers"])
