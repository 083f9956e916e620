"""Core's model runner: combines input batch, launches, model and sampler, and runs them with a platform's ops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array, int32
from tessera.errors import MemoryBudgetError, PlatformError
from tessera.kvcache.groups import null_plan
from tessera.layers.build import PIPELINE_GROUP, BoundMixer, Build
from tessera.layers.weights import count_bytes, count_numbers
from tessera.loader.load import load_weights
from tessera.ops import Sampled
from tessera.platform.attention import AttentionBackend, AttentionGroup, KVLayout, LayerSpec, StateSpec
from tessera.platform.device import Device, Future
from tessera.platform.drafts import accepted
from tessera.platform.feature import WorkerFeature, possible_bits
from tessera.platform.graph import Eager, GraphRunner
from tessera.platform.launch import Launch, LaunchKey, Plan, StepRules
from tessera.platform.model import Model
from tessera.platform.platform import Platform
from tessera.platform.runner import CacheNeeds, CachePlan, LoadedModel, MemoryBudget, ModelRunner, Progress
from tessera.platform.shapes import ExactShapes, ShapePolicy
from tessera.plugins.contract import check_members
from tessera.reference.attention import ReferenceAttention
from tessera.reference.state import ReferenceLinearAttention
from tessera.runner.explain import explain, kv_in_words, left_in_words
from tessera.runner.inputs import DeviceBuffers, LaunchBuilder, PreparedLaunch, buffer_sizes, refuse_uncounted, widest
from tessera.runner.invariance import refuse_variance
from tessera.runner.kv_memory import CacheMemory, cache_bytes, refuse_dummy
from tessera.runner.prompt_logprobs import PromptScorer, Scoring
from tessera.runner.sampler import LogitsEditor, Sampler, bind_ahead
from tessera.runner.services import Services
from tessera.runner.workspace import estimated, largest_steps, remembered_or
from tessera.step import RowLogprobs, SchedulerOutput, StepOutput, StepStats, TokenMasks


class Drawn(NamedTuple):
    """What rows drew, on the host: rows [n]; counts [n]: how many of tokens each drew; logprobs: of rows that want
    them."""

    rows: Array
    counts: Array
    tokens: Array
    logprobs: list[RowLogprobs]


@dataclass(frozen=True)
class SampledRows:
    """The sampled tokens of one launch, being copied to the host. rows, sampling, drafts: sampled_rows, sampling and
    drafts of the launch. asked: how many alternatives each row wants; -1 for no log probabilities. parts: futures of
    the fields of Sampled."""

    rows: Array
    sampling: Array | slice
    drafts: Array | None
    asked: Array
    parts: tuple[Future[Any] | None, ...]

    @classmethod
    def copying(cls, device: Device, prepared: PreparedLaunch, asked: Array, sampled: Sampled) -> SampledRows:
        parts = tuple(None if part is None else device.to_host(part) for part in sampled)
        return cls(prepared.sampled_rows, prepared.sampling, prepared.drafts, asked, parts)

    def drawn(self) -> Drawn:
        """Waits for the copies. Of drafts, those that were accepted are among the tokens."""
        copies = [part.result()[: len(self.rows)][self.sampling] for part in self.parts if part is not None]
        rows, asked, tokens = self.rows[self.sampling], self.asked[self.sampling], copies[0]
        first, counts = np.arange(len(rows)), np.ones(len(rows), np.int32)
        if self.drafts is not None:
            first, counts = accepted(self.drafts, tokens)
            keep = np.repeat(first, counts) + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            tokens = tokens[keep]
        logprobs = []
        if len(copies) > 1:
            ids, values, ranks = copies[1:]
            for begin, count in zip(first.tolist(), counts.tolist(), strict=True):
                k, of = int(asked[begin]), slice(begin, begin + count)
                if k >= 0:
                    logprobs.append(RowLogprobs(int(rows[begin]), ids[of, : k + 1], values[of, : k + 1], ranks[of]))
        return Drawn(rows[first], counts, tokens, logprobs)


class PendingStep:
    """The future of a step's output; result() waits for the copies to the host."""

    def __init__(
        self, step: int, parts: Sequence[SampledRows], prompt_logprobs: Sequence[Scoring], stats: StepStats
    ) -> None:
        self.step, self.parts, self.prompt_logprobs, self.stats = step, parts, prompt_logprobs, stats

    def done(self) -> bool:
        drawn = all(copy is None or copy.done() for part in self.parts for copy in part.parts)
        return drawn and all(scoring.done() for scoring in self.prompt_logprobs)

    def result(self) -> StepOutput:
        began = perf_counter()
        drawn = [Drawn(int32(), int32(), int32(), []), *(part.drawn() for part in self.parts)]
        return StepOutput(
            step=self.step,
            rows=np.concatenate([part.rows for part in drawn]),
            counts=np.concatenate([part.counts for part in drawn]),
            tokens=np.concatenate([part.tokens for part in drawn]),
            logprobs=[row for part in drawn for row in part.logprobs],
            stats=StepStats(self.stats.forward, self.stats.sample, perf_counter() - began, self.stats.fallbacks),
            prompt_logprobs=[scoring.result() for scoring in self.prompt_logprobs],
        )


class CoreRunner(ModelRunner):
    """Called in this order: load() builds the model, loads weights and binds ops; allocate() allocates caches and
    buffers; warm_up() captures graphs; then steps run."""

    def __init__(self, services: Services, platform: Platform, report: Callable[[Progress], None]) -> None:
        self.services, self.platform, self.report = services, platform, report
        self.device = services.device
        self.features = services.features()
        self.model: Model
        self.build: Build
        self.executables: dict[LaunchKey, Any] = {}

    # ---- start -------------------------------------------------------------------------------------------------------

    def load(self, budget: MemoryBudget) -> LoadedModel:
        services, platform = self.services, self.platform
        backends = (*platform.attention_backends(), ReferenceAttention(), ReferenceLinearAttention())
        ops = platform.ops(services.reference())
        weights = services.weights_of()
        self.graphs, uncaptured = self._graph_runner()
        self.model = services.build_model(ops, backends, weights, self.graphs.split)
        assert services.build is not None
        self.build = services.build
        self._bind_sampling()
        refuse_variance(platform, services.config, self.model.facts, self.build)
        services.accept(self.model.facts)
        refuse_uncounted(services.config, platform.capabilities.index_dtype)
        refuse_dummy(services.config, budget, count_bytes(self.build.parameters, services.dtype))
        with self.device.arena("weights") as arena:
            load_weights(self.build.parameters, services.source, services.dtype, self.device, arena, self.report)
        self.shapes: ShapePolicy = platform.shapes(self.model.facts, services.config) or ExactShapes()
        if platform.capabilities.static_shapes and not self.shapes.keys():
            raise PlatformError(
                f"platform '{platform.name}' says that launches need static shapes, but its shapes() lists no keys."
            )
        kernels, mixers = (ops[name].kernel for name in ops.names()), (bound.mixer for bound in self.build.mixers)
        check_members([*backends, *kernels, *mixers, self.graphs, self.shapes], services.config.platform_levels)
        self._check_drafts()
        captured = self.graphs.keys(self.shapes, services.config.scheduler.max_decode_samples)
        self.keys = [replace(key, bits=key.bits | bits) for bits in possible_bits(self.features) for key in captured]
        weight_bytes, figures = arena.nbytes + services.feature_bytes, self.device.memory()
        workspace = self._workspace()
        left = cache_bytes(services.config, budget, figures, weight_bytes, workspace)
        fallbacks = sorted({*self.build.ops.referenced, *self.build.fallbacks})
        return LoadedModel(
            replace(
                self.model.facts,
                notes=(*self.model.facts.notes, *left_in_words(weights), *kv_in_words(self.build), *uncaptured),
            ),
            tuple(self._needs()),
            weight_bytes,
            left,
            self.device.name,
            tuple(fallbacks),
            granted_bytes=budget.total,
            workspace_bytes=workspace,
            columns=tuple(
                column.name for feature in self.features for column in feature.columns() if not column.internal
            ),
            choices=explain(self.build),
            num_weights=count_numbers(self.build.parameters),
            linear_layers=services.linear_layers() if self.features else {},
        )

    def _workspace(self) -> int:
        """Bytes that steps and captured launches take beside weights and KV cache. Measured if the size of the KV cache
        depends on it."""
        config, facts = self.services.config, self.model.facts
        if config.cache.memory_bytes is None:
            known = remembered_or(self._measure, config, self.device, self.services.groups)
            if known is not None:
                return known
        return estimated(config, facts) + self.graphs.estimate(self.keys, facts, config)

    def _measure(self) -> int | None:
        scheduler = self.services.config.scheduler
        try:
            steps = self.device.peak(self._run_largest_steps)
        except torch.OutOfMemoryError as error:
            raise MemoryBudgetError(
                f"a step of {scheduler.max_num_batched_tokens} tokens, or one of {scheduler.max_num_seqs} rows, does "
                "not fit into the device's memory beside the weights; lower --max-num-batched-tokens or --max-num-seqs."
            ) from error
        if steps is None or not self.keys:
            return steps
        first, other = (self.device.peak(partial(self._capture, key)) or 0 for key in (self.keys[0], self.keys[-1]))
        self.executables.clear()
        self.graphs.invalidate()
        return steps + first + other * (len(self.keys) - 1)

    @torch.inference_mode()
    def _run_largest_steps(self) -> None:
        config, facts = self.services.config, self.model.facts
        self.executables = {}
        plan = null_plan(self._needs(), config)
        self.allocate(plan)
        for stacks in self.memory.stacks:
            for stack in stacks:
                stack.zero_()
        for step in largest_steps(config, plan, self.platform.step_rules(facts) or StepRules()):
            self.sample(self.execute(step))

    def _check_drafts(self) -> None:
        """Raises PlatformError where drafts are asked for and cannot be verified."""
        asked, most = self.services.config.scheduler.max_decode_tokens, self.shapes.max_decode_tokens
        if asked == 1:
            return
        if most is not None and most < asked:
            raise PlatformError(
                f"speculative_config asks for {asked - 1} draft tokens, but launches on platform "
                f"'{self.platform.name}' have room for {most - 1}; lower num_speculative_tokens or leave "
                "speculative_config out."
            )
        if any(isinstance(bound.spec.cache, StateSpec) for bound in self.build.mixers):
            raise PlatformError(
                "speculative_config cannot be used with this model: its linear attention keeps a state that cannot be "
                "taken back when draft tokens are rejected; leave speculative_config out."
            )

    def _graph_runner(self) -> tuple[GraphRunner, Sequence[str]]:
        """The platform's graph runner, or Eager; and, if the platform's cannot be used, a note that says why."""
        if self.services.config.enforce_eager:
            return Eager(), ()
        own = self.platform.graph_runner(self.device)
        inside = {name: group for name, group in self.services.groups.items() if name != PIPELINE_GROUP}
        apart = [name for name, group in inside.items() if not group.capturable]
        if own is None:
            return Eager(), ()
        if apart and not isinstance(own, str):
            own = f"the collectives of the group {', '.join(apart)} cannot be"
        return (Eager(), (f"launches are not captured: {own}",)) if isinstance(own, str) else (own, ())

    def _needs(self) -> list[CacheNeeds]:
        needs = []
        for bound in self.build.mixers:
            asked, backend, spec = bound.backend.constraints(bound.spec), bound.backend, bound.spec.cache

            def layout(block_size: int, backend: AttentionBackend = backend, spec: Any = spec) -> KVLayout:
                return backend.kv_cache_layout(spec, block_size)

            needs.append(
                CacheNeeds(
                    bound.spec.layer,
                    spec,
                    asked.block_sizes,
                    asked.block_multiple,
                    self.platform.capabilities.index_dtype,
                    asked.host_lengths,
                    asked.align_bytes,
                    layout,
                    asked.dense_planes,
                    self.graphs.separate_planes,
                )
            )
        return needs

    def allocate(self, plan: CachePlan) -> None:
        self.plan = plan
        needs = {need.layer: need for need in self._needs()}
        self.memory = CacheMemory(plan, needs, self.device)
        self.caches = list(self.memory.planes)
        self.batch = self.services.input_batch(plan)
        self.device_tokens = torch.from_numpy(self.batch.tokens).to(self.device.target)
        largest = widest(self.keys, self.services.config.scheduler)
        sizes = buffer_sizes(*largest, plan, self.batch.columns, self.batch.token_columns)
        self.buffers = DeviceBuffers(self.device, sizes)
        self.builder = LaunchBuilder(
            plan,
            self.batch,
            self.device_tokens,
            self.shapes,
            self.buffers,
            index_dtype=self.platform.capabilities.index_dtype,
            features=self.features,
            host_tables=self._host_tables(plan),
        )
        self.attention_groups = attention_groups(self.build.mixers, plan, self.device)
        self._allocate_sampling()

    def _bind_sampling(self) -> None:
        """As part of load()."""
        bind_ahead(self.model, self.build.ops)

    def _allocate_sampling(self) -> None:
        editor = LogitsEditor(self.batch.sampling, self.device_tokens, self.build.ops.bind, self.device.to_device)
        sampling = [feature for feature in self.features if _sees_sampling(feature)]
        self.sampler = Sampler(self.model, self.build.ops, self.batch.sampling, self.buffers, sampling, editor)
        self.scorer = PromptScorer(self.model, self.batch, self.device, self.sampler.bind_logprobs)

    def warm_up(self, report: Callable[[Progress], None]) -> None:
        self.executables = {}
        with torch.inference_mode():
            for number, key in enumerate(self.keys):
                launch = self._capture(key)
                one = LaunchKey("decode", 1, 1, key.blocks, 1, key.bits)
                if self.graphs.key_of(one) == key:  # same graph, but sampling one row is faster
                    launch = self._planned(self.builder.empty(one), captured=True)
                self._try_out(launch)
                report(Progress("warm-up", number + 1, len(self.keys)))
        self.device.synchronize()

    @torch.inference_mode()
    def _capture(self, key: LaunchKey) -> Launch:
        launch = self._planned(self.builder.empty(key), captured=True)
        self.executables[key] = self.graphs.capture(key, self._forward, launch, self.buffers)
        return launch

    def _try_out(self, launch: Launch) -> None:
        hidden, none = self._replay(launch), np.zeros(0, np.int32)
        self.sampler(hidden, self.builder.empty_sampled(launch), none, none)

    # ---- steps -------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def execute(self, step: SchedulerOutput) -> ExecutedStep:
        began = perf_counter()
        self.batch.apply(step)
        if step.opened:
            for feature in self.features:
                feature.open(step.opened)
        for opened in step.opened:
            known = slice(len(opened.tokens))
            self.device.to_device(self.batch.tokens[opened.row, known], self.device_tokens[opened.row, known])
        self.memory.copy(step.copies)
        results = []
        for prepared in self.builder.build(step):
            launch = self._planned(prepared.launch, captured=self._is_captured(prepared.launch.key))
            for feature in self.features:
                feature.before(launch)
            hidden = self._run(launch, whole=len(prepared.rows) == len(step.rows))
            self.build.ops.fallbacks.update(self.build.fallbacks)
            results.append((prepared, hidden))
        return ExecutedStep(step, results, perf_counter() - began)

    @torch.inference_mode()
    def sample(self, pending: ExecutedStep, masks: TokenMasks | None = None) -> PendingStep:
        began = perf_counter()
        drawn: list[SampledRows] = []
        prompt_logprobs: list[Scoring] = []
        for prepared, hidden in pending.results:
            samples, rows = prepared.launch.key.num_samples, prepared.sampled_rows
            if len(prepared.prompt_logprobs):
                prompt_logprobs += self.scorer(hidden[samples:], prepared)
            if not len(rows[prepared.sampling]):
                continue
            launch = self.builder.restore_rows(prepared)
            sampled = self.sampler(hidden[:samples], launch, rows, prepared.next_position, masks)
            self._feed(prepared, launch, sampled.tokens)
            asked = self.batch.sampling.logprobs[rows]
            drawn.append(SampledRows.copying(self.device, prepared, asked, sampled))
        stats = StepStats(pending.seconds, perf_counter() - began, fallbacks=dict(self.build.ops.fallbacks))
        return PendingStep(pending.step.step, drawn, prompt_logprobs, stats)

    def _run(self, launch: Launch, *, whole: bool) -> Any:
        """The result of _forward(). whole: this is the only launch of the step."""
        hidden = self._replay(launch)
        return hidden if whole else hidden.clone()  # the next replay may overwrite this result

    def _feed(self, prepared: PreparedLaunch, launch: Launch, tokens: Tensor) -> None:
        """Stores sampled tokens [S] where the next step reads them."""
        self.builder.feed(prepared, launch, tokens)

    def _forward(self, launch: Launch) -> Any:
        """The hidden states after the final norm: [S, hidden size] for those that become logits, or, if the launch has
        ALL_POSITIONS, [S + T, hidden size] for these and then all tokens."""
        return self.model.finish(self.model.forward(self.model.embed(launch.tokens), launch, self.caches))

    def _replay(self, launch: Launch) -> Any:
        executable = self.executables.get(self.graphs.key_of(launch.key))
        if executable is None:
            return self._forward(launch)
        result = self.graphs.replay(executable, launch)
        self.graphs.after_launch(executable, launch)
        return result

    def _planned(self, launch: Launch, *, captured: bool) -> Launch:
        """Adds the plans to a launch, listed by layer. captured: or replayed from a graph."""
        buffers = self.buffers if captured and self.graphs.captures_mixers else None
        plans: list[Plan] = [None] * len(self.build.mixers)
        for backend, group in self.attention_groups:
            plan = backend.plan(launch, group, buffers)
            for layer in group.layers:
                plans[layer] = plan
        launch.plans = plans
        return launch

    def _is_captured(self, key: LaunchKey) -> bool:
        return self.graphs.key_of(key) in self.executables

    def _host_tables(self, plan: CachePlan) -> Collection[int]:
        """The cache groups of which a backend reads block tables on the host."""
        asking = {bound.spec.layer for bound in self.build.mixers if bound.backend.constraints(bound.spec).host_tables}
        return [number for number, group in enumerate(plan.groups) if asking.intersection(group.layers)]


def attention_groups(
    mixers: Sequence[BoundMixer], plan: CachePlan, device: Device
) -> list[tuple[AttentionBackend, AttentionGroup]]:
    """The layers that share a plan, with their backend."""
    number_of = {layer: number for number, group in enumerate(plan.groups) for layer in group.layers}
    found: dict[tuple[int, str, LayerSpec], list[BoundMixer]] = {}
    for bound in mixers:
        same = number_of[bound.spec.layer], bound.backend.name, replace(bound.spec, layer=0)
        found.setdefault(same, []).append(bound)
    groups = []
    for (number, name, _), members in found.items():
        layers = tuple(bound.spec.layer for bound in members)
        group = AttentionGroup(members[0].spec, layers, number, f"{name}{layers[0]}", device)
        groups.append((members[0].backend, group))
    return groups


def _sees_sampling(feature: WorkerFeature) -> bool:
    """Whether a feature uses logits or sampled tokens. Without any, head and sampling run as one composite."""
    own = type(feature)
    return own.logits is not WorkerFeature.logits or own.after is not WorkerFeature.after


class ExecutedStep:
    """A step whose forward pass was launched: each launch with its hidden states. seconds: spent launching."""

    def __init__(self, step: SchedulerOutput, results: Sequence[tuple[PreparedLaunch, Tensor]], seconds: float) -> None:
        self.step, self.results, self.seconds = step, results, seconds
