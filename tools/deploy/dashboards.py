"""The dashboards of Grafana in deploy/grafana, from the panels below: `python -m tools.deploy.dashboards --write`.
Without --write it says which files differ."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/grafana"
WIDTH = 24
"""Columns of a dashboard."""
HEIGHT = 8
STAT_HEIGHT = 4
ENGINE = 'model_name=~"$model",instance=~"$instance"'
"""Of the engine's metrics."""
SERVER = 'instance=~"$instance"'
"""Of the server's, which have no model."""
RATE = "$__rate_interval"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Query:
    """expression: PromQL with Grafana's variables. legend: with labels in double braces."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """description: what to make of it. unit: Grafana's name of one. kind: timeseries or stat."""

    title: str
    unit: str
    queries: Sequence[Query]
    description: str = ""
    kind: str = "timeseries"
    # of WIDTH columns
    width: int = 12


@dataclass(frozen=True)
class Dashboard:
    """uid: the file's name too. rows: panels by the row's title."""

    uid: str
    title: str
    rows: Mapping[str, Sequence[Panel]]

    @property
    def panels(self) -> Iterator[Panel]:
        for panels in self.rows.values():
            yield from panels


def total(metric: str, labels: str = ENGINE) -> str:
    return f"sum(tessera:{metric}{{{labels}}})"


def rate(metric: str, by: str = "", labels: str = ENGINE) -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate(tessera:{metric}{{{labels}}}[{RATE}]))"


def increase(metric: str, by: str = "instance", labels: str = ENGINE) -> str:
    return f"sum by ({by}) (increase(tessera:{metric}{{{labels}}}[{RATE}]))"


def quantiles(metric: str) -> list[Query]:
    """The median, the 95th and the 99th percentile of a histogram, over all servers."""
    buckets = rate(f"{metric}_bucket", "le")
    return [Query(f"histogram_quantile({share}, {buckets})", f"p{round(share * 100)}") for share in (0.5, 0.95, 0.99)]


def share_within(metric: str, variable: str) -> Query:
    """Of the requests, those within the bound of the dashboard's variable."""
    within = rate(f"{metric}_bucket", labels=f'{ENGINE},le="${variable}"')
    return Query(f"{within} / {rate(f'{metric}_count')}", f"within ${variable} s")


def share_of_answers(statuses: str) -> str:
    """statuses: a regular expression; of all HTTP answers, those that have one."""
    with_status = rate("http_requests_total", labels=f'{SERVER},status=~"{statuses}"')
    return f"({with_status} or vector(0)) / {rate('http_requests_total', labels=SERVER)}"


DRAFTED = rate("spec_decode_num_draft_tokens_total")
DRAFTS = rate("spec_decode_num_drafts_total")
ACCEPTED = rate("spec_decode_num_accepted_tokens_total")
OVERVIEW = Dashboard(
    "tessera-overview",
    "Tessera: overview",
    {
        "Now": [
            Panel(
                "Servers", "none", [Query("count(tessera:http_requests_in_progress)", "servers")], kind="stat", width=4
            ),
            Panel("Running", "none", [Query(total("num_requests_running"), "running")], kind="stat", width=4),
            Panel("Waiting", "none", [Query(total("num_requests_waiting"), "waiting")], kind="stat", width=4),
            Panel(
                "KV cache",
                "percentunit",
                [Query(f"avg(tessera:kv_cache_usage_perc{{{ENGINE}}})", "in use")],
                "A share: the mean over servers, never their sum.",
                kind="stat",
                width=4,
            ),
            Panel("Generated", "none", [Query(rate("generation_tokens_total"), "tokens/s")], kind="stat", width=4),
            Panel("Prompts", "none", [Query(rate("prompt_tokens_total"), "tokens/s")], kind="stat", width=4),
        ],
        "Load": [
            Panel(
                "Tokens per second",
                "none",
                [
                    Query(rate("generation_tokens_total"), "generated"),
                    Query(rate("prompt_tokens_by_source_total", "source"), "prompt, {{source}}"),
                ],
                "Prompt tokens that were computed, and those that a cache had.",
            ),
            Panel(
                "Requests",
                "none",
                [
                    Query(total("num_requests_running"), "running"),
                    Query(total("num_requests_waiting"), "waiting"),
                    Query(total("http_requests_in_progress", SERVER), "HTTP requests"),
                ],
                "Waiting requests for minutes on end: more servers, or fewer clients.",
            ),
            Panel(
                "Why requests wait",
                "none",
                [
                    Query(
                        f"sum by (reason) (tessera:num_requests_waiting_by_reason{{{ENGINE}}})",
                        "{{reason}}",
                    )
                ],
                "capacity: more servers help. deferred: each waits for something of its own, as a grammar.",
            ),
            Panel(
                "Requests refused at the queue, by limit",
                "reqps",
                [Query(rate("admission_rejections_total", "reason"), "{{reason}}")],
                "Clients got a 429 or 503 and come again: more servers, or a longer queue.",
            ),
            Panel(
                "Answers per second, by reason of their end",
                "reqps",
                [Query(rate("request_success_total", "finished_reason"), "{{finished_reason}}")],
            ),
            Panel(
                "HTTP answers per second, by status",
                "reqps",
                [Query(rate("http_requests_total", "status", SERVER), "{{status}}")],
                "499: the client went away. 503: refused, as too many waited or the server was not ready.",
            ),
        ],
        "What clients wait": [
            Panel("Time to the first token", "s", quantiles("time_to_first_token_seconds")),
            Panel("Time between tokens", "s", quantiles("inter_token_latency_seconds")),
        ],
        "What is served": [
            Panel(
                "Engines, by whether they sleep",
                "none",
                [Query(f"sum by (sleep_state) (tessera:engine_sleep_state{{{ENGINE}}})", "{{sleep_state}}")],
                "discard_all: asleep, and its devices are free.",
            ),
            Panel(
                "Adapters of requests",
                "none",
                [
                    Query(
                        f"count by (instance, {state}_lora_adapters) "
                        f'(tessera:lora_requests_info{{{ENGINE},{state}_lora_adapters!=""}}) or vector(0)',
                        f"{{{{instance}}}}: {{{{{state}_lora_adapters}}}} ({state})",
                    )
                    for state in ("running", "waiting")
                ],
                "Of servers with --enable-lora.",
            ),
        ],
    },
)

LATENCY = Dashboard(
    "tessera-latency",
    "Tessera: latency",
    {
        "Objectives": [
            Panel(
                "Requests with their first token in time",
                "percentunit",
                [share_within("time_to_first_token_seconds", "first_token")],
                "The bound is a variable at the top; it must be one of the histogram's bounds.",
            ),
            Panel(
                "Requests with their tokens in time",
                "percentunit",
                [share_within("request_time_per_output_token_seconds", "each_token")],
            ),
        ],
        "Where the time goes": [
            Panel("Whole request", "s", quantiles("e2e_request_latency_seconds")),
            Panel("Waiting for the first step", "s", quantiles("request_queue_time_seconds"), "High: too few servers."),
            Panel(
                "Prefill", "s", quantiles("request_prefill_time_seconds"), "High: long prompts, or little in the cache."
            ),
            Panel("Decode", "s", quantiles("request_decode_time_seconds"), "High: long answers, or large batches."),
            Panel("Time to the first token", "s", quantiles("time_to_first_token_seconds")),
            Panel("Time per token of a request", "s", quantiles("request_time_per_output_token_seconds")),
        ],
        "What is asked": [
            Panel("Prompt tokens of a request", "none", quantiles("request_prompt_tokens")),
            Panel("Tokens of an answer", "none", quantiles("request_generation_tokens")),
            Panel("Answers of a request", "none", quantiles("request_params_n")),
            Panel("Most tokens that an answer may have", "none", quantiles("request_params_max_tokens")),
        ],
    },
)

CACHE = Dashboard(
    "tessera-cache",
    "Tessera: cache and batches",
    {
        "KV cache": [
            Panel(
                "In use, by server",
                "percentunit",
                [Query(f"avg by (instance) (tessera:kv_cache_usage_perc{{{ENGINE}}})", "{{instance}}")],
                "At 1, requests are preempted and computed again.",
            ),
            Panel("Preemptions", "none", [Query(increase("num_preemptions_total"), "{{instance}}")]),
            Panel(
                "Preemptions of one completion",
                "none",
                quantiles("request_num_preemptions"),
                "Above 1: some begin again and again. Fewer --max-num-seqs, or more memory for the cache.",
            ),
            Panel(
                "Settings",
                "none",
                [
                    Query(
                        "sum by (instance, block_size, num_gpu_blocks, cache_dtype, enable_prefix_caching) "
                        f"(tessera:cache_config_info{{{ENGINE}}})",
                        "{{instance}}: {{num_gpu_blocks}} blocks of {{block_size}} tokens, {{cache_dtype}}, "
                        "prefix caching {{enable_prefix_caching}}",
                    )
                ],
            ),
        ],
        "Prefixes": [
            Panel(
                "Prompt tokens found in the prefix cache",
                "percentunit",
                [Query(f"{rate('prefix_cache_hits_total')} / {rate('prefix_cache_queries_total')}", "found")],
            ),
            Panel(
                "Prompt tokens by source",
                "none",
                [Query(rate("prompt_tokens_by_source_total", "source"), "{{source}}")],
            ),
            Panel(
                "Prompt tokens that a request had to compute",
                "none",
                quantiles("request_prefill_kv_computed_tokens"),
            ),
        ],
        "Steps": [
            Panel("Tokens of a step", "none", quantiles("iteration_tokens_total")),
            Panel(
                "Draft tokens that were right",
                "percentunit",
                [Query(f"{ACCEPTED} / {DRAFTED}", "accepted")],
                "Nothing where --speculative-config is not set. Below a tenth, drafts cost more than they save.",
            ),
            Panel(
                "Tokens from one verified draft",
                "none",
                [Query(f"1 + {ACCEPTED} / {DRAFTS}", "tokens")],
                "1: all draft tokens were wrong.",
            ),
        ],
    },
)

FAULTS = Dashboard(
    "tessera-faults",
    "Tessera: faults",
    {
        "Processes": [
            Panel(
                "Processes that were replaced",
                "none",
                [
                    Query(increase("engine_restarts_total"), "{{instance}}: engine"),
                    Query(increase("text_worker_restarts_total"), "{{instance}}: text worker"),
                    Query(increase("media_worker_restarts_total"), "{{instance}}: media worker"),
                ],
                "Each has a line in the log that says why.",
            ),
            Panel(
                "Requests that ran again on a new engine",
                "none",
                [Query(increase("replayed_requests_total"), "{{instance}}")],
            ),
            Panel(
                "Standstills of over a second",
                "none",
                [Query(increase("event_loop_stands_total", labels=SERVER), "{{instance}}")],
                "In which the server answered nobody, health checks included.",
            ),
            Panel(
                "Tasks of the server",
                "none",
                [Query(f"sum by (instance) (tessera:asyncio_tasks{{{SERVER}}})", "{{instance}}")],
            ),
        ],
        "Requests": [
            Panel(
                "HTTP errors",
                "percentunit",
                [Query(share_of_answers("5.."), "5xx"), Query(share_of_answers("4.."), "4xx")],
            ),
            Panel(
                "Answers that ended in an error",
                "none",
                [
                    Query(increase("request_failures_total", "reason"), "{{reason}}"),
                    Query(
                        increase("request_success_total", "finished_reason", f'{ENGINE},finished_reason="error"'),
                        "engine lost",
                    ),
                ],
            ),
            Panel(
                "Answers that clients gave up",
                "none",
                [
                    Query(
                        increase("request_success_total", "instance", f'{ENGINE},finished_reason="abort"'),
                        "{{instance}}",
                    )
                ],
            ),
            Panel(
                "Requests with fields that have no effect",
                "none",
                [Query(f"{increase('unknown_request_fields_total', 'field', SERVER)} or vector(0)", "{{field}}")],
            ),
        ],
        "Slow paths": [
            Panel(
                "Runs of an op's reference",
                "none",
                [Query(f"{increase('reference_fallbacks_total', 'op')} or vector(0)", "{{op}}")],
                "Ops that no kernel of the platform runs; --no-fallback refuses to start with any.",
            ),
            Panel(
                "Kernels compiled while requests were served",
                "none",
                [Query(increase("kernel_compilations_total"), "{{instance}}")],
                "Each held up all streams. Should stay 0 after the start.",
            ),
        ],
        "What runs out": [
            Panel(
                "Free share of a store's disk",
                "percentunit",
                [
                    Query(
                        f"sum by (instance, store) (tessera:storage_free_bytes{{{SERVER}}}) "
                        f"/ sum by (instance, store) (tessera:storage_size_bytes{{{SERVER}}})",
                        "{{instance}}: {{store}}",
                    )
                ],
                "At 0, files, batches and responses are answered with 503 (storage_full).",
            ),
            Panel(
                "Free room of a store's disk",
                "bytes",
                [
                    Query(
                        f"sum by (instance, store) (tessera:storage_free_bytes{{{SERVER}}})", "{{instance}}: {{store}}"
                    )
                ],
            ),
            Panel(
                "Time until the certificate expires",
                "s",
                [
                    Query(
                        f"min by (instance) (tessera:certificate_expiry_timestamp_seconds{{{SERVER}}}) - time()",
                        "{{instance}}",
                    )
                ],
                "Nothing where a proxy ends TLS. At 0, clients refuse to connect.",
            ),
        ],
    },
)

DASHBOARDS = (OVERVIEW, LATENCY, CACHE, FAULTS)
BOUNDS = {
    "first_token": ("0.25", "0.5", "1.0", "2.5", "5.0", "10.0"),
    "each_token": ("0.025", "0.05", "0.1", "0.2", "0.5"),
}
"""The values of variables that are bounds of histograms; the middle one is chosen."""


def grafana(dashboard: Dashboard) -> dict[str, Any]:
    """What Grafana imports."""
    text = json.dumps([query.expression for panel in dashboard.panels for query in panel.queries])
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["tessera"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [*_variables(), *(_bound(name) for name in BOUNDS if f"${name}" in text)]},
        "links": [
            {"type": "dashboards", "tags": ["tessera"], "title": "Tessera", "asDropdown": False, "includeVars": True}
        ],
        "panels": list(_panels(dashboard)),
    }


def _variables() -> list[dict[str, Any]]:
    def labels(name: str, label: str, metric: str) -> dict[str, Any]:
        query = f"label_values({metric}, {label})"
        return {
            "name": name, "type": "query", "datasource": DATASOURCE, "query": query, "definition": query, "refresh": 2,
            "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]},
        }  # fmt: skip

    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        labels("model", "model_name", "tessera:num_requests_running"),
        labels("instance", "instance", "tessera:num_requests_running"),
    ]


def _bound(name: str) -> dict[str, Any]:
    values = BOUNDS[name]
    chosen = values[len(values) // 2]
    return {
        "name": name, "type": "custom", "query": ",".join(values), "current": {"text": chosen, "value": chosen},
        "options": [{"text": value, "value": value, "selected": value == chosen} for value in values],
    }  # fmt: skip


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    identity, top = 1, 0
    for title, panels in dashboard.rows.items():
        yield {
            "id": identity,
            "type": "row",
            "title": title,
            "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
            "panels": [],
        }
        identity, top, left, tallest = identity + 1, top + 1, 0, 0
        for panel in panels:
            height = STAT_HEIGHT if panel.kind == "stat" else HEIGHT
            if left + panel.width > WIDTH:
                left, top, tallest = 0, top + tallest, 0
            yield _panel(panel, identity, {"x": left, "y": top, "w": panel.width, "h": height})
            identity, left, tallest = identity + 1, left + panel.width, max(tallest, height)
        top += tallest


def _panel(panel: Panel, identity: int, place: Mapping[str, int]) -> dict[str, Any]:
    return {
        "id": identity,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "gridPos": place,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": DATASOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for number, query in enumerate(panel.queries)
        ],
    }


def files() -> dict[Path, str]:
    return {FOLDER / f"{each.uid}.json": json.dumps(grafana(each), indent=2) + "\n" for each in DASHBOARDS}


def main() -> int:
    different = [
        path for path, text in files().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in different:
        if "--write" in sys.argv:
            path.write_text(files()[path], encoding="utf-8")
        print(f"{'wrote' if '--write' in sys.argv else 'differs:'} {path.relative_to(ROOT)}")
    return int(bool(different) and "--write" not in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
