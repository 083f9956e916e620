"""What the server reports about itself: health, version, load, models and metrics."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from tessera._version import __version__
from tessera.engine.messages import EngineInfo
from tessera.engine.metrics import Histogram, Metric
from tessera.engine.model_tasks import tasks_of
from tessera.lora import NAME as LORA
from tessera.server.access import Counts
from tessera.server.anthropic import models as anthropic
from tessera.server.context import ServerContext, ServerState
from tessera.server.host_metrics import host_metrics
from tessera.server.http import header, json_response, not_ready
from tessera.server.keys import allows
from tessera.server.loop_watch import LoopWatch
from tessera.server.openai.protocol import ModelCard, ModelList, ModelPermission
from tessera.server.openapi import JsonRoute
from tessera.server.served_model import ServedModel
from tessera.server.settings import ServerSettings

if TYPE_CHECKING:
    from tessera.engine.async_engine import AsyncEngine

PREFIX = "tessera:"
VLLM_PREFIX = "vllm:"
NOT_VLLMS = frozenset(  # vLLM has no such metrics
    {
        "engine_restarts",
        "kernel_compilations",
        "kv_transfer_bytes_received",
        "kv_transfer_bytes_sent",
        "kv_transfer_expired_leases",
        "kv_transfer_recomputed_requests",
        "media_worker_restarts",
        "reference_fallbacks",
        "replayed_requests",
        "request_failures",
        "text_worker_restarts",
    }
)
ONLY_VLLMS = (  # what vLLM reports also where there is nothing to count
    Metric("external_prefix_cache_queries", "counter", "Tokens asked of other engines, which are not asked.", 0),
    Metric("external_prefix_cache_hits", "counter", "Tokens received from other engines, which are not asked.", 0),
    Metric("mm_cache_queries", "counter", "Images and the like looked up in a cache; the model takes text alone.", 0),
    Metric("mm_cache_hits", "counter", "Images and the like found in a cache; the model takes text alone.", 0),
)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServerStatus(msgspec.Struct):
    """status: ok, starting, shutting down, engine restarting, engine asleep, engine stalled or engine dead."""

    status: str


class Version(msgspec.Struct):
    version: str


class ServerLoad(msgspec.Struct):
    """server_load: the number of requests that are generating."""

    server_load: int


def routes(context: ServerContext) -> list[JsonRoute]:
    async def livez(_request: Request) -> Response:
        return json_response(ServerStatus("ok"))

    async def ready(_request: Request) -> Response:
        state = engine_state(context)
        return json_response(ServerStatus(state)) if state == "ok" else not_ready(ServerStatus(state))

    async def version(_request: Request) -> Response:
        return json_response(Version(__version__))

    async def load(_request: Request) -> Response:
        return json_response(ServerLoad(context.counts.generating))

    can_answer = "Whether the server is ready: 503 if the engine is dead, stalled, asleep or restarting."
    return [
        JsonRoute("/livez", livez, "Whether the process is alive.", answer=ServerStatus),
        JsonRoute("/readyz", ready, can_answer, answer=ServerStatus),
        JsonRoute("/health", ready, can_answer, answer=ServerStatus),
        JsonRoute("/ping", ready, can_answer, methods=("GET", "POST"), answer=ServerStatus),
        JsonRoute("/version", version, "The version of the server.", answer=Version),
        JsonRoute("/load", load, "How many requests are generating now.", answer=ServerLoad),
        *_model_routes(context),
        _metrics_route(context),
    ]


def engine_state(context: ServerContext) -> str:
    health = context.engine.health
    if health.asleep:
        return "engine asleep"
    if health.restarting:
        return "engine restarting"
    if not health.alive:
        return "engine dead"
    return "engine stalled" if health.stalled else "ok"


def _model_routes(context: ServerContext) -> list[JsonRoute]:
    root = context.default_model.name
    max_model_len = context.engine.info.max_model_len
    permission = [ModelPermission(id=f"modelperm-{uuid.uuid4().hex}", created=context.created)]

    def card(name: str, model: ServedModel) -> ModelCard:
        config = model.engine.config.model
        labels = () if config.pooler is None else config.pooler.labels
        return ModelCard(
            id=name,
            created=context.created,
            root=name if model.parent else root,
            parent=model.parent or None,
            max_model_len=max_model_len,
            permission=permission,
            tasks=tasks_of(config),
            labels=[*labels] or UNSET,
            input_modalities=["text", *config.modalities],
        )

    async def models(request: Request) -> Response:
        names = [name for name in context.models if allows(request.scope, name)]
        if header(request.scope, anthropic.VERSION) is not None:
            return json_response(anthropic.page_of(anthropic.model_infos(context, names), request))
        return json_response(ModelList(data=[card(name, context.models[name]) for name in names]))

    async def model(request: Request) -> Response:
        name = request.path_params["model"]
        if not name:  # a slash at the end of the list's path
            return await models(request)
        served = context.allowed_model(name, request.scope)
        if header(request.scope, anthropic.VERSION) is None:
            return json_response(card(name, served))
        return json_response(anthropic.model_infos(context, [name])[name])

    return [
        JsonRoute("/v1/models", models, "The models that requests may name.", answer=ModelList),
        JsonRoute("/v1/models/{model:path}", model, "One model.", answer=ModelCard),
    ]


# ---- metrics ---------------------------------------------------------------------------------------------------------


def _metrics_route(context: ServerContext) -> JsonRoute:
    """Prometheus text: vLLM's metric names with the prefix `tessera:`; under --vllm-metrics also with `vllm:`."""
    name = context.default_model.name

    async def metrics(_request: Request) -> Response:
        return metrics_response(
            [
                *server_lines(context.state, context.settings),
                *model_lines(context.engine, name, context.settings, _adapter_names(context)),
            ]
        )

    return JsonRoute("/metrics", metrics, "Metrics as Prometheus text.", media_type="text/plain")


def _adapter_names(context: ServerContext) -> dict[str, str]:
    """The names of adapters, by folder."""
    models = context.models.items()
    return {model.feature_args[LORA]: name for name, model in models if LORA in model.feature_args}


def metrics_response(lines: Sequence[str]) -> Response:
    return Response("\n".join([*lines, ""]), headers={"Content-Type": CONTENT_TYPE})


def server_lines(state: ServerState, settings: ServerSettings) -> Iterator[str]:
    """What is counted of the server, whichever model it was for."""
    yield from http_lines(state.counts)
    yield from loop_lines(state.loop)
    yield from engine_lines([(host_metrics(state.disks, settings), {})], PREFIX)
    if settings.key_file is not None:
        yield from engine_lines([(state.quotas.metrics(settings.key_file.keys), {})], PREFIX)


def model_lines(engine: AsyncEngine, name: str, settings: ServerSettings, adapters: Mapping[str, str]) -> Iterator[str]:
    """The metrics of one model's engines. name: of the model, as a label. adapters: names of LoRA adapters, by
    folder."""
    model = {"model_name": name}
    names = {PREFIX: model}
    if settings.vllm_metrics:
        # vLLM's metrics have a second label, which dashboards may filter by.
        names[VLLM_PREFIX] = {**model, "engine": "0"}
    engines = [(list(metrics.read()), info) for metrics, info in engine.all_metrics()]
    for prefix, labels in names.items():
        each = [{**labels, "engine": str(rank)} for rank in range(len(engines))] if len(engines) > 1 else [labels]
        states = _sleep_states(engine.health.asleep)
        shown = [[*(values if prefix == PREFIX else _of_vllm(values)), *states] for values, _ in engines]
        caches = [{**cache_labels(info), **own} for (_, info), own in zip(engines, each, strict=True)]
        yield from engine_lines(zip(shown, each, strict=True), prefix)
        yield from cache_lines(prefix, caches)
        if engine.config.lora.enable:
            loras = [adapter_labels(folders, adapters, engine.config.lora.slots) for folders in engine.all_adapters()]
            yield from adapter_lines(prefix, [{**labels, **own} for labels, own in zip(loras, each, strict=True)])


def _of_vllm(metrics: Sequence[Metric]) -> list[Metric]:
    counted = {metric.name for metric in metrics}
    own = [metric for metric in metrics if metric.name not in NOT_VLLMS]
    return [*own, *(metric for metric in ONLY_VLLMS if metric.name not in counted)]


def _sleep_states(asleep: bool) -> list[Metric]:
    """With vLLM's states."""
    states = {"awake": not asleep, "weights_offloaded": False, "discard_all": asleep}
    return [
        Metric(
            "engine_sleep_state", "gauge", "1 for the state that the engine is in.", int(value), ("sleep_state", state)
        )
        for state, value in states.items()
    ]


def engine_lines(engines: Iterable[tuple[Iterable[Metric], Mapping[str, str]]], prefix: str) -> Iterator[str]:
    """A HELP and a TYPE line for each name, then its values of each engine. engines: metrics and labels of each."""
    families: dict[str, list[tuple[Metric, Mapping[str, str]]]] = {}
    for metrics, labels in engines:
        for metric in metrics:
            families.setdefault(f"{prefix}{family(metric)}", []).append((metric, labels))
    for name, members in families.items():
        first = members[0][0]
        yield from _head(name, first.kind, first.documentation)
        for metric, labels in members:
            own = labels if metric.label is None else {**labels, metric.label[0]: metric.label[1]}
            if isinstance(metric.value, Histogram):
                yield from _histogram(name, metric.value, own)
            else:
                yield f"{name}{_labels(own)} {metric.value}"


def family(metric: Metric) -> str:
    total = metric.kind == "counter" and not metric.name.endswith("_total")
    return f"{metric.name}{'_total' if total else ''}"


def cache_labels(info: EngineInfo) -> dict[str, str]:
    """The cache's configuration by vLLM's names and in its spelling. The endpoint picker of the Gateway API Inference
    Extension reads block_size and num_gpu_blocks. vLLM's labels that say nothing of this cache are left out."""
    cache = info.cache
    values: dict[str, object] = {
        "block_size": info.block_size,
        "num_gpu_blocks": info.num_blocks,
        "num_gpu_blocks_override": None,
        "num_cpu_blocks": None,
        "cache_dtype": cache.dtype,
        "kv_cache_dtype_skip_layers": [],
        "gpu_memory_utilization": cache.memory_utilization,
        "kv_cache_memory_bytes": cache.memory_bytes,
        "kv_cache_size_tokens": info.num_cache_tokens,
        "kv_cache_max_concurrency": info.num_cache_tokens / info.max_model_len,
        "is_attention_free": info.num_blocks == 0,
        "enable_prefix_caching": cache.prefix_caching,
        "prefix_caching_hash_algo": "sha256",
        "kv_offloading_size": None,
        "kv_sharing_fast_prefill": False,
    }
    return {name: str(value) for name, value in values.items()}


def cache_lines(prefix: str, caches: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """caches: the labels of each engine's."""
    name = f"{prefix}cache_config_info"
    yield from _head(name, "gauge", "The KV cache's configuration, in its labels.")
    for labels in caches:
        yield f"{name}{_labels(labels)} 1"


def adapter_labels(folders: tuple[set[str], set[str]], names: Mapping[str, str], slots: int) -> dict[str, str]:
    """The adapters of requests by vLLM's names. folders: FrontEnd.adapters(). names: by folder; one that was unloaded
    meanwhile has none and is left out. slots: adapters that a step may have."""
    running, waiting = (",".join(sorted(names[folder] for folder in those if folder in names)) for those in folders)
    return {"max_lora": str(slots), "running_lora_adapters": running, "waiting_lora_adapters": waiting}


def adapter_lines(prefix: str, adapters: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """adapters: the labels of each engine's. The value is when they were so, as pickers take the latest."""
    name = f"{prefix}lora_requests_info"
    yield from _head(name, "gauge", "LoRA adapters of running and waiting requests, in its labels; when, in seconds.")
    for labels in adapters:
        yield f"{name}{_labels(labels)} {time.time()}"


def http_lines(counts: Counts) -> Iterator[str]:
    name = f"{PREFIX}http_requests_total"
    yield from _head(name, "counter", "HTTP requests answered; 499: the client went away first.")
    for (method, route, status), count in sorted(counts.done.items()):
        yield f"{name}{_labels({'method': method, 'handler': route, 'status': str(status)})} {count}"
    name = f"{PREFIX}unknown_request_fields_total"
    yield from _head(name, "counter", "Requests that had a field which is not known and has no effect.")
    for field, count in sorted(counts.unknown_fields.counts.items()):
        yield f"{name}{_labels({'field': field})} {count}"
    name = f"{PREFIX}http_requests_in_progress"
    yield from _head(name, "gauge", "HTTP requests in progress.")
    yield f"{name} {counts.in_progress}"


def loop_lines(watch: LoopWatch) -> Iterator[str]:
    name = f"{PREFIX}event_loop_stands_total"
    yield from _head(name, "counter", "How often the server's event loop answered nobody for over a second.")
    yield f"{name} {watch.stands}"
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
