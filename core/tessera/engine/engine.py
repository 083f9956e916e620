"""The engine: each step schedules, executes and updates."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tessera.config import EngineConfig
from tessera.engine.child import executor_path
from tessera.engine.messages import EngineInfo, EngineStats
from tessera.engine.startup import StartedEngine, start_up
from tessera.engine.summary import summary_fields
from tessera.errors import ConfigError, RequestError
from tessera.kvcache.manager import KVCacheManager, MakePrefixCache
from tessera.kvcache.prefix_cache import PrefixCache
from tessera.platform.runner import Progress
from tessera.platform.shapes import ExactShapes
from tessera.platform.transfer import CacheFormat
from tessera.plugins import Registry, load_path, load_registry
from tessera.plugins.contract import check_members
from tessera.plugins.features import engine_features
from tessera.sampling_params import SamplingParams
from tessera.scheduler.features import EngineFeatures
from tessera.scheduler.outputs import EngineCoreOutputs
from tessera.scheduler.policy import SchedulingPolicy
from tessera.scheduler.scheduler import Scheduler
from tessera.step import SchedulerOutput, StepOutput, StepStats

if TYPE_CHECKING:
    from tessera.engine.kv_events import KVEventPublisher
    from tessera.executor.base import Executor, Report
    from tessera.platform.device import Future
    from tessera.platform.platform import Capabilities
    from tessera.transfer.transfers import KVTransfers
from tessera.request import Request


def silent(progress: Progress) -> None:
    """Discards the progress."""


_DEFAULTS = SamplingParams()
_MASKED = ("structured_outputs", "thinking_token_budget")  # fields for which tokens are masked
_PREPARING = 0.001  # seconds between two looks at requests that features do not let start yet


class Engine:
    """One model on its devices. Errors from the executor are not caught; after one, the engine can only be closed."""

    def __init__(self, config: EngineConfig, report: Report = silent, *, executor: str | None = None) -> None:
        """Loads the model and warms up. executor: dotted path, to override the one that the configuration implies.
        Raises ConfigError, ModelError, PlatformError, MemoryBudgetError."""
        registry = load_registry(config.plugins)
        policy, halves = make_policy(config, registry), engine_features(config, registry)
        self._transfers = open_transfers(config, registry)
        if self._transfers is not None:
            halves.append(self._transfers)
        self._events = open_events(config)
        try:
            path = executor or executor_path(config.parallel.world_size, config.parallel.nnodes)
            started = start_up(config, path, report)
        except BaseException:
            self._close_events()
            raise
        self.config = started.config
        self._executor = started.executor
        self._features = EngineFeatures(halves, config.model.vocab_size)
        self._features.started(started.loaded)
        steps_in_flight = depth(started.config, started.executor.platform.capabilities)
        make_cache = PrefixCache if self._events is None else self._events.observed_cache
        self._scheduler = make_scheduler(started, policy, steps_in_flight, self._features, make_cache)
        self._pipeline = Pipeline(self._scheduler, started.executor, steps_in_flight)
        if self._transfers is not None:
            try:
                attach_transfers(self._transfers, started, self._scheduler.cache)
            except BaseException:
                self.close()
                raise
        self._extra_args = self._features.fields.union(started.loaded.columns)
        unsupported = set(started.loaded.unsupported)
        self._unsupported = sorted(unsupported.union(_MASKED) if "structured_outputs" in unsupported else unsupported)
        self.info = describe(started)

    def step(self) -> EngineCoreOutputs | None:
        """Schedules and launches a step, then takes the output of the oldest one. Returns None if more steps may be put
        in flight first, or if there is nothing to report."""
        self._features.poll()
        if self._scheduler.only_prepares:
            time.sleep(_PREPARING)
        return self._pipeline.step()

    def add(self, request: Request) -> None:
        """Queues a request. Raises QueueFullError if the waiting queue is full, RequestError if it can never run."""
        for name in request.columns.keys() - self._extra_args:
            raise RequestError(f"Unknown extra_args (vllm_xargs) field '{name}'.", param=f"extra_args.{name}")
        for name in _MASKED:
            if getattr(request.params, name) is not None and name not in self._features.fields:
                raise RequestError(f"{name} is off here (--features does not name it); remove it.", param=name)
        if request.params.kv_transfer_params is not None and self._transfers is None:
            raise RequestError(
                "kv_transfer_params needs --kv-transfer-config here; remove it.", param="kv_transfer_params"
            )
        for name in self._unsupported:
            if getattr(request.params, name) != getattr(_DEFAULTS, name):
                raise RequestError(f"{name} is not supported on this platform; remove it.", param=name)
        if request.feature_args:
            self.check_feature_args(request.feature_args)
        self._scheduler.add(request)

    def check_feature_args(self, args: Mapping[str, str]) -> None:
        """Raises RequestError if requests cannot have these Request.feature_args."""
        for name in args.keys() - {entry.partition("=")[0] for entry in self.config.features}:
            raise RequestError(f"{name} is off here (--features does not name it); remove it.", param=name)
        self._features.check(args)

    def abort(self, keys: Iterable[int]) -> None:
        """Ends requests. May be called between any two steps; unknown keys are ignored."""
        self._scheduler.abort(keys)

    def reset_prefix_cache(self) -> None:
        """Empties the prefix cache; running requests keep their blocks."""
        self._scheduler.reset_prefix_cache()

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return EngineStats(
            scheduler.num_running,
            scheduler.num_waiting,
            scheduler.kv_usage,
            scheduler.counters,
            dict(self._pipeline.runner_stats.fallbacks),
            self._pipeline.runner_stats.compilations,
            self._features.counters(),
            scheduler.num_deferred,
        )

    def check_integrity(self) -> None:
        """Asserts that no row or block is lost or held twice, and, when idle, that none is in use."""
        self._scheduler.check_integrity()

    def rest(self) -> None:
        """Called about once a second while there is nothing to run. Raises the error of a worker that has ended."""
        self._features.poll()
        self._executor.check_workers()

    def enter_thread(self) -> None:
        """Called in a thread other than the one that made the engine, before it runs steps or closes it."""
        self._executor.enter_thread()

    def close(self) -> None:
        if self._transfers is not None:
            self._transfers.close()
        self._close_events()
        self._executor.close()

    def _close_events(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None


class Pipeline:
    """Takes steps from a scheduler to an executor and their outputs back, with up to `depth` in flight. runner_stats:
    of the newest step that came back.

    The forward pass of a step starts from tokens that the device has, so it is launched before the host knows them.
    What a masked row may sample depends on these tokens, so sampling of a masked step is launched once all steps before
    it have retired; in the meantime the device runs the forward pass.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, depth: int) -> None:
        self._scheduler, self._executor, self._depth = scheduler, executor, depth
        self._in_flight: deque[Future[StepOutput]] = deque()
        self._unsampled: tuple[SchedulerOutput, Any] | None = None
        self.runner_stats = StepStats()

    def step(self) -> EngineCoreOutputs | None:
        """Launches a step, if one can be, and takes the oldest one's output, if as many as may be are in flight."""
        if self._unsampled is None and self._launch() and len(self._in_flight) < self._depth:
            return None
        if not self._in_flight:
            finished = self._scheduler.take_finished()
            return EngineCoreOutputs(finished=finished) if finished else None
        output = self._in_flight.popleft().result()
        self.runner_stats = output.stats
        outputs = self._scheduler.update(output)
        self._sample_masked()
        return outputs

    def _launch(self) -> bool:
        """Whether a step was launched whole; a masked one waits for those before it."""
        step = self._scheduler.schedule()
        if step is None:
            return False
        pending = self._executor.execute(step)
        if self._scheduler.is_masked(step):
            self._unsampled = step, pending
            self._sample_masked()
        else:
            self._in_flight.append(self._executor.sample(pending))
        return self._unsampled is None

    def _sample_masked(self) -> None:
        if self._unsampled is not None and not self._in_flight:
            step, pending = self._unsampled
            self._in_flight.append(self._executor.sample(pending, self._scheduler.masks(step)))
            self._unsampled = None


def depth(config: EngineConfig, capabilities: Capabilities) -> int:
    """Steps in flight: as configured, else one for each pipeline stage, and one more if dispatch is asynchronous."""
    if config.scheduler.depth is not None:
        return config.scheduler.depth
    return config.parallel.pipeline_parallel_size + capabilities.async_dispatch


def open_events(config: EngineConfig) -> KVEventPublisher | None:
    """What publishes KV events, if they are to be. Raises ConfigError."""
    if config.cache.events is None:
        return None
    # Not at the top: it brings ZMQ, which an engine in the caller's process does not need otherwise.
    from tessera.engine.kv_events import KVEventPublisher

    names = {folder: name for name, folder in config.lora.modules}
    return KVEventPublisher(config.cache.events, adapter_names=names, rank=config.parallel.data_parallel_rank)


def open_transfers(config: EngineConfig, registry: Registry) -> KVTransfers | None:
    """What exchanges caches with other engines, if it is to. Raises ConfigError."""
    if config.cache.transfer is None:
        return None
    # Not at the top, as with events.
    from tessera.transfer.transfers import KVTransfers

    parallel = config.parallel
    return KVTransfers(
        config.cache.transfer, registry, key_file=parallel.cluster_key_file, rank=parallel.data_parallel_rank
    )


def attach_transfers(transfers: KVTransfers, started: StartedEngine, cache: KVCacheManager) -> None:
    """Raises ConfigError for a model or a platform whose cache cannot travel, and PlatformError for one that lies in
    other processes."""
    from tessera.config.kv_transfer import FLAG
    from tessera.transfer.fingerprint import model_digest

    store = started.executor.token_store()
    if not started.loaded.facts.chunkable:
        raise ConfigError(
            f"{FLAG}: tokens of this model's prompts see those behind them, so a part of a cache is of no use; "
            "remove this.",
            param=FLAG,
        )
    form = None if store is None else CacheFormat(model_digest(started.config), store.layers)
    transfers.attach(cache, started.plan.groups, store, form)


def make_policy(config: EngineConfig, registry: Registry) -> SchedulingPolicy:
    """The configured scheduling policy. Raises ConfigError if its name is not registered."""
    make = load_path(registry.policies.resolve(config.scheduler.policy))
    policy: SchedulingPolicy = make()
    return policy


def make_scheduler(
    started: StartedEngine,
    policy: SchedulingPolicy,
    steps_in_flight: int,
    features: EngineFeatures,
    make_prefix_cache: MakePrefixCache = PrefixCache,
) -> Scheduler:
    config, facts, platform = started.config, started.loaded.facts, started.executor.platform
    resources = [*platform.resources(facts), *features.resources()]
    check_members(resources, config.platform_levels)
    shapes = platform.shapes(facts, config) or ExactShapes()
    return Scheduler(
        config.scheduler,
        started.plan,
        policy=policy,
        rules=shapes.rules(),
        resources=resources,
        eos_token_ids=config.model.eos_token_ids,
        prefix_caching=config.cache.prefix_caching and facts.prefix_cacheable,
        max_model_len=config.model.max_model_len,
        depth=steps_in_flight,
        turns=min(steps_in_flight, config.parallel.pipeline_parallel_size),
        chunkable=facts.chunkable,
        pools_beside=config.model.generates and config.model.pooler is not None,
        features=features,
        make_prefix_cache=make_prefix_cache,
    )


def describe(started: StartedEngine) -> EngineInfo:
    config, loaded = started.config, started.loaded
    paged = next((group for group in started.plan.groups if group.kind == "paged"), None)
    return EngineInfo(
        **summary_fields(config, loaded, started.executor.platform, started.notes),
        cache_bytes=started.plan.nbytes,
        num_cache_tokens=started.plan.num_tokens,
        phases=started.phases,
        pid=os.getpid(),
        block_size=paged.block_size if paged else 0,
        num_blocks=paged.num_blocks - 1 if paged else 0,
        cache=replace(config.cache, prefix_caching=config.cache.prefix_caching and loaded.facts.prefix_cacheable),
        max_num_seqs=config.scheduler.max_num_seqs,
    )
