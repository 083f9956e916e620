"""The engine's values and the server's counts as Prometheus text, under vLLM's names with the prefix `tessera:`, and
with vLLM's own prefix where that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tessera.engine.messages import EngineInfo
from tessera.engine.metrics import Histogram, Metric
from tessera.server.access import HttpCounts
from tessera.server.context import ServerContext

PREFIX = "tessera:"
VLLM_PREFIX = "vllm:"
NOT_VLLMS = frozenset(  # it has no such names
    {"engine_restarts", "replayed_requests", "text_worker_restarts", "reference_fallbacks"}
)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def routes(context: ServerContext) -> list[Route]:
    model = {"model_name": context.model_names[0]}
    names = {PREFIX: model}
    if context.settings.vllm_metrics:
        # What reads vLLM's metrics may ask for its second label.
        names[VLLM_PREFIX] = {**model, "engine": "0"}

    async def metrics(_request: Request) -> Response:
        values = list(context.engine.metrics.read())
        cache = cache_labels(context.engine.info)
        lines = list(http_lines(context.http_counts))
        for prefix, labels in names.items():
            shown = [value for value in values if prefix == PREFIX or value.name not in NOT_VLLMS]
            lines += [*engine_lines(shown, prefix, labels), *cache_lines(prefix, {**cache, **labels})]
        return Response("\n".join([*lines, ""]), headers={"Content-Type": CONTENT_TYPE})

    return [Route("/metrics", metrics)]


def engine_lines(metrics: Iterable[Metric], prefix: str, labels: Mapping[str, str]) -> Iterator[str]:
    """Values of one name stand together, under one head."""
    last = ""
    for metric in metrics:
        name = f"{prefix}{family(metric)}"
        if name != last:
            yield from _head(name, metric.kind, metric.documentation)
            last = name
        own = labels if metric.label is None else {**labels, metric.label[0]: metric.label[1]}
        if isinstance(metric.value, Histogram):
            yield from _histogram(name, metric.value, own)
        else:
            yield f"{name}{_labels(own)} {metric.value}"


def family(metric: Metric) -> str:
    total = metric.kind == "counter" and not metric.name.endswith("_total")
    return f"{metric.name}{'_total' if total else ''}"


def cache_labels(info: EngineInfo) -> dict[str, str]:
    """What the gateway API's picker of endpoints reads of a cache, by vLLM's names."""
    return {"block_size": str(info.block_size), "num_gpu_blocks": str(info.num_blocks)}


def cache_lines(prefix: str, labels: Mapping[str, str]) -> Iterator[str]:
    name = f"{prefix}cache_config_info"
    yield from _head(name, "gauge", "The KV cache, in its labels.")
    yield f"{name}{_labels(labels)} 1"


def http_lines(counts: HttpCounts) -> Iterator[str]:
    name = f"{PREFIX}http_requests_total"
    yield from _head(name, "counter", "HTTP requests answered; 499: the client went away before.")
    for (method, route, status), count in sorted(counts.done.items()):
        yield f"{name}{_labels({'method': method, 'handler': route, 'status': str(status)})} {count}"
    name = f"{PREFIX}http_requests_in_progress"
    yield from _head(name, "gauge", "HTTP requests in work.")
    yield f"{name} {counts.in_progress}"
    name = f"{PREFIX}asyncio_tasks"
    yield from _head(name, "gauge", "Tasks of the server's event loop.")
    yield f"{name} {len(asyncio.all_tasks())}"


def _head(name: str, kind: str, documentation: str) -> Iterator[str]:
    yield f"# HELP {name} {documentation}"
    yield f"# TYPE {name} {kind}"


def _histogram(name: str, value: Histogram, labels: Mapping[str, str]) -> Iterator[str]:
    total = 0
    for bound, count in zip((*value.bounds, "+Inf"), value.counts, strict=True):
        total += count
        yield f"{name}_bucket{_labels({**labels, 'le': str(bound)})} {total}"
    yield f"{name}_sum{_labels(labels)} {value.sum}"
    yield f"{name}_count{_labels(labels)} {total}"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
