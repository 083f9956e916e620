"""The results of a run: figures under the names of vLLM's benchmark, tables, and a JSON file."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tessera._version import __version__
from tessera.cli.bench.drive import Record, failures, meets_objectives, peak_concurrency
from tessera.cli.bench.workload import Lengths
from tessera.config.environment import allowed_cores
from tessera.errors import ConfigError

LATENCY_PERCENTILES = (10, 25, 50, 75, 90, 99)
PERCENTILES = (90, 99)
EMBEDDING_PERCENTILES = (95, 99)
SECRETS = frozenset({"api_key", "hf_token"})
_NOT_SETTINGS = frozenset({"json"})
_LABEL = 34
Section = tuple[str, Iterable[tuple[str, str]]]
"""Of a table: its heading, "" for none, and its rows."""
_TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


def spread(values: Sequence[float], percentiles: Sequence[int] = PERCENTILES) -> dict[str, float]:
    """mean, median, std and percentiles ("p99"), interpolated linearly; all 0 if there are no values."""
    array = np.asarray(values if len(values) else [0.0], dtype=float)
    named = {f"p{percent}": float(np.percentile(array, percent)) for percent in percentiles}
    return {"mean": float(array.mean()), "median": float(np.median(array)), "std": float(array.std()), **named}


def in_milliseconds(name: str, figures: Mapping[str, float]) -> dict[str, float]:
    """Turns {"mean": 0.5} of "ttft" into {"mean_ttft_ms": 500.0}."""
    return {f"{kind}_{name}_ms": value * 1000 for kind, value in figures.items()}


# ---- the benchmark's own engine -------------------------------------------------


def latency_figures(seconds: Sequence[float]) -> dict[str, Any]:
    figures = spread(seconds, LATENCY_PERCENTILES)
    return {
        "avg_latency": figures["mean"],
        "std_latency": figures["std"],
        "percentiles": {str(percent): figures[f"p{percent}"] for percent in LATENCY_PERCENTILES},
        "latencies": list(seconds),
    }


def show_latency(figures: Mapping[str, Any], lengths: Lengths, batch: int) -> str:
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


def throughput_figures(records: Sequence[Record], seconds: float) -> dict[str, Any]:
    """Tokens and requests of complete answers, divided by the total duration."""
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


def show_throughput(figures: Mapping[str, Any]) -> str:
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


# ---- a running server -----------------------------------------------------------


def serving_figures(records: Sequence[Record], seconds: float, objectives: Mapping[str, float]) -> dict[str, Any]:
    """Figures of complete answers; failed requests only count in `failed` and `errors`. objectives: for goodput, or
    empty."""
    whole = [record for record in records if record.completed]
    tokens_in, tokens_out = sum(r.prompt_len for r in whole), sum(r.output_len for r in whole)
    figures: dict[str, Any] = {
        **_request_figures(records, seconds),
        "total_output_tokens": tokens_out,
        "output_throughput": tokens_out / seconds,
        "total_token_throughput": (tokens_in + tokens_out) / seconds,
        "short_answers": sum(record.output_len < record.max_tokens for record in whole),
    }
    if objectives:
        figures["request_goodput"] = sum(meets_objectives(record, objectives) for record in whole) / seconds
    for name, values in _times_of(whole).items():
        figures |= in_milliseconds(name, spread(values))
    return figures


def _request_figures(records: Sequence[Record], seconds: float) -> dict[str, Any]:
    """Those of any kind of request."""
    whole = [record for record in records if record.completed]
    return {
        "duration": seconds,
        "completed": len(whole),
        "failed": len(records) - len(whole),
        "total_input_tokens": sum(record.prompt_len for record in whole),
        "request_throughput": len(whole) / seconds,
        "max_concurrent_requests": peak_concurrency(whole),
        "errors": failures(records),
    }


def _times_of(whole: Sequence[Record]) -> dict[str, list[float]]:
    return {
        "ttft": [record.ttft for record in whole],
        "tpot": [tpot for record in whole if (tpot := record.tpot) is not None],
        "itl": [gap for record in whole for gap in record.itl],
        "e2el": [record.e2el for record in whole],
    }


def details(records: Sequence[Record]) -> dict[str, Any]:
    """Values of each request, in order of arrival; failed ones have no times."""
    return {
        "input_lens": [record.prompt_len for record in records],
        "output_lens": [record.output_len for record in records],
        "ttfts": [record.ttft if record.completed else None for record in records],
        "itls": [record.itl if record.completed else [] for record in records],
        "e2els": [record.e2el if record.completed else None for record in records],
        "reasons": [None if record.error is None else record.error.message for record in records],
    }


def show_serving(figures: Mapping[str, Any]) -> str:
    sections: list[Section] = [("", _serving_rows(figures))]
    sections += [_latency_section(name, figures, PERCENTILES) for name in _TITLES]
    return table("Serving Benchmark Result", [*sections, *_failure_sections(figures)])


def _latency_section(name: str, figures: Mapping[str, Any], percentiles: Sequence[int]) -> Section:
    kinds = {"mean": "Mean", "median": "Median", **{f"p{percent}": f"P{percent}" for percent in percentiles}}
    rows = [(f"{label} {name.upper()} (ms)", f"{figures[f'{kind}_{name}_ms']:.2f}") for kind, label in kinds.items()]
    return _TITLES[name], rows


def _failure_sections(figures: Mapping[str, Any]) -> list[Section]:
    rows = [(why, str(count)) for why, count in figures["errors"].items()]
    return [("Failed requests by error", rows)] if rows else []


def _serving_rows(figures: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
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
        yield "Answers shorter than requested", str(figures["short_answers"])


# ---- vectors of texts -----------------------------------------------------------


def embedding_figures(records: Sequence[Record], seconds: float) -> dict[str, Any]:
    """Figures of complete answers; failed requests only count in `failed` and `errors`."""
    whole = [record for record in records if record.completed]
    figures, texts = _request_figures(records, seconds), sum(record.num_prompts for record in whole)
    figures |= {
        "total_texts": texts,
        "text_throughput": texts / seconds,
        "total_token_throughput": figures["total_input_tokens"] / seconds,
    }
    return figures | in_milliseconds("e2el", spread([record.e2el for record in whole], EMBEDDING_PERCENTILES))


def embedding_details(records: Sequence[Record]) -> dict[str, Any]:
    """Values of each request, in order of arrival; failed ones have no times."""
    return {
        "input_lens": [record.prompt_len for record in records],
        "num_texts": [record.num_prompts for record in records],
        "e2els": [record.e2el if record.completed else None for record in records],
        "reasons": [None if record.error is None else record.error.message for record in records],
    }


def show_embedding(figures: Mapping[str, Any]) -> str:
    rows = [
        ("Successful requests", str(figures["completed"])),
        ("Failed requests", str(figures["failed"])),
        ("Benchmark duration (s)", f"{figures['duration']:.2f}"),
        ("Total texts", str(figures["total_texts"])),
        ("Total input tokens", str(figures["total_input_tokens"])),
        ("Request throughput (req/s)", f"{figures['request_throughput']:.2f}"),
        ("Text throughput (texts/s)", f"{figures['text_throughput']:.2f}"),
        ("Total token throughput (tok/s)", f"{figures['total_token_throughput']:.2f}"),
        ("Peak concurrent requests", str(figures["max_concurrent_requests"])),
    ]
    latency = _latency_section("e2el", figures, EMBEDDING_PERCENTILES)
    return table("Embedding Benchmark Result", [("", rows), latency, *_failure_sections(figures)])


def table(title: str, sections: Iterable[Section]) -> str:
    lines = [title]
    for heading, rows in sections:
        lines += ["", *([heading] if heading else [])]
        lines += [f"  {label:<{_LABEL}} {text:>12}" for label, text in rows]
    return "\n".join(lines)


# ---- the JSON file ----------------------------------------------------------------


def machine() -> dict[str, Any]:
    """The machine this program runs on."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": allowed_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """The processor's name according to the system."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def check_writable(file: str | None) -> None:
    """Raises ConfigError before anything slow starts."""
    if file is not None and not Path(file).expanduser().parent.is_dir():
        raise ConfigError(f"--json '{file}': the folder does not exist.")


def write(file: str | None, benchmark: str, settings: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    """Writes the figures of a run with its settings (without secrets), versions and the machine. file: None writes
    nothing. Raises ConfigError."""
    if file is None:
        return
    shown = {
        name: value
        for name, value in settings.items()
        if value not in (None, ()) and name not in SECRETS | _NOT_SETTINGS
    }
    content = {
        "benchmark": benchmark,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "tessera": __version__,
        "machine": machine(),
        "settings": shown,
        **figures,
    }
    try:
        Path(file).expanduser().write_text(json.dumps(_finite(content), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json '{file}' cannot be written: {error.strerror}.") from error


def _finite(value: Any) -> Any:
    """Replaces infinity, which JSON lacks, by "inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
