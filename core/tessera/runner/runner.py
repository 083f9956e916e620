"""Core's model runner: combines input batch, launches, model and sampler, and runs them with a platform's ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array, int32
from tessera.layers.build import PIPELINE_GROUP, Build
from tessera.layers.weights import count_numbers
from tessera.loader.load import load_weights
from tessera.ops import Sampled
from tessera.platform.attention import AttentionBackend, KVLayout
from tessera.platform.device import Device, Future
from tessera.platform.feature import WorkerFeature
from tessera.platform.graph import Eager, GraphRunner
from tessera.platform.launch import ExactShapes, Launch, LaunchKey, Plan, ShapePolicy
from tessera.platform.model import Model
from tessera.platform.platform import Platform
from tessera.platform.runner import CacheNeeds, CachePlan, LoadedModel, MemoryBudget, ModelRunner, Progress
from tessera.plugins.contract import check_members
from tessera.reference.attention import ReferenceAttention
from tessera.reference.state import ReferenceLinearAttention
from tessera.runner.explain import explain, left_in_words
from tessera.runner.inputs import DeviceBuffers, LaunchBuilder, PreparedLaunch, buffer_sizes, widest
from tessera.runner.kv_memory import CacheMemory, activation_bytes, cache_bytes
from tessera.runner.prompt_logprobs import PromptScorer, Scoring
from tessera.runner.sampler import LogitsEditor, Sampler, bind_ahead
from tessera.runner.services import Services
from tessera.step import RowLogprobs, SchedulerOutput, StepOutput, StepStats, TokenMasks


@dataclass(frozen=True)
class SampledRows:
    """The sampled tokens of one launch, being copied to the host. rows: the rows of its requests. sampling: places of
    the rows that sample. asked: how many alternatives each row wants; -1 for no log probabilities. parts: futures of
    the fields of Sampled."""

    rows: Array
    sampling: Array | slice
    asked: Array
    parts: tuple[Future[Any] | None, ...]

    @classmethod
    def copying(
        cls, device: Device, rows: Array, sampling: Array | slice, asked: Array, sampled: Sampled
    ) -> SampledRows:
        return cls(rows, sampling, asked, tuple(None if part is None else device.to_host(part) for part in sampled))

    def tokens(self) -> tuple[Array, Array]:
        """The rows that sample, and the token of each, both int32. Waits for the copy."""
        copy = self.parts[0]
        assert copy is not None
        return self.rows[self.sampling], copy.result()[: len(self.rows)][self.sampling]

    def logprobs(self) -> list[RowLogprobs]:
        copies = [part.result() for part in self.parts[1:] if part is not None]
        if not copies:
            return []
        ids, values, ranks = copies
        places = np.arange(len(self.rows))[self.sampling].tolist()
        wanted = [(i, int(self.asked[i])) for i in places if self.asked[i] >= 0]
        return [
            RowLogprobs(int(self.rows[i]), ids[i : i + 1, : k + 1], values[i : i + 1, : k + 1], ranks[i : i + 1])
            for i, k in wanted
        ]


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
        drawn = [part.tokens() for part in self.parts]
        rows, tokens = (np.concatenate(parts) for parts in zip(*drawn, strict=True)) if drawn else (int32(), int32())
        return StepOutput(
            step=self.step,
            rows=rows,
            counts=np.ones(len(rows), np.int32),
            tokens=tokens,
            logprobs=[row for part in self.parts for row in part.logprobs()],
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

    # ---- start -------------------------------------------------------------------------------------------------------

    def load(self, budget: MemoryBudget) -> LoadedModel:
        services, platform = self.services, self.platform
        backends = (*platform.attention_backends(), ReferenceAttention(), ReferenceLinearAttention())
        ops = platform.ops(services.reference())
        weights = services.weights_of(platform)
        self.model = services.build_model(ops, backends, weights)
        assert services.build is not None
        self.build = services.build
        services.fill_defaults(platform, self.model.facts)
        with self.device.arena("weights") as arena:
            load_weights(self.build.parameters, services.source, services.dtype, self.device, arena, self.report)
        self.graphs, uncaptured = self._graph_runner()
        self.shapes: ShapePolicy = platform.shapes(self.model.facts, services.config) or ExactShapes()
        kernels, mixers = (ops[name].kernel for name in ops.names()), (bound.mixer for bound in self.build.mixers)
        check_members([*backends, *kernels, *mixers, self.graphs, self.shapes], services.config.platform_levels)
        captured = self.graphs.keys(self.shapes, services.config.scheduler.max_num_seqs)
        self.keys = [replace(key, bits=key.bits | bits) for bits in _variants(self.features) for key in captured]
        workspace = activation_bytes(services.config, self.model.facts) + self.graphs.estimate(self.keys)
        weight_bytes = arena.nbytes + services.feature_bytes
        left = cache_bytes(services.config, budget, self.device.memory(), weight_bytes, workspace)
        self._bind_sampling()
        fallbacks = sorted({*self.build.ops.referenced, *self.build.fallbacks})
        return LoadedModel(
            replace(self.model.facts, notes=(*self.model.facts.notes, *left_in_words(weights), *uncaptured)),
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
            linear_layers=_linear_layers(self.build) if self.features else {},
        )

    def _graph_runner(self) -> tuple[GraphRunner, Sequence[str]]:
        """The platform's graph runner, or Eager; and, if the platform's cannot be used, a note that says why."""
        if self.services.config.enforce_eager:
            return Eager(), ()
        own = self.platform.graph_runner(self.device)
        inside = {name: group for name, group in self.services.groups.items() if name != PIPELINE_GROUP}
        apart = [name for name, group in inside.items() if not group.capturable]
        if own is None or not apart:
            return own or Eager(), ()
        return Eager(), (f"launches are not captured: the collectives of the group {', '.join(apart)} cannot be",)

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
                    asked.index_dtype,
                    asked.host_lengths,
                    asked.align_bytes,
                    layout,
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
        scheduler = self.services.config.scheduler
        rows, tokens = widest(self.keys, scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
        sizes = buffer_sizes(rows, tokens, plan, self.batch.columns, self.batch.token_columns)
        self.buffers = DeviceBuffers(self.device, sizes)
        self.builder = LaunchBuilder(
            plan,
            self.batch,
            self.device_tokens,
            self.shapes,
            self.buffers,
            index_dtype=self.platform.capabilities.index_dtype,
            features=self.features,
        )
        self.group_of = {layer: number for number, group in enumerate(plan.groups) for layer in group.layers}
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
        self.executables: dict[LaunchKey, Any] = {}
        with torch.inference_mode():
            for number, key in enumerate(self.keys):
                launch = self._planned(self.builder.empty(key))
                self.executables[key] = self.graphs.capture(key, self._forward, launch, self.buffers)
                one = LaunchKey("decode", 1, 1, key.blocks, 1, key.bits)
                if self.graphs.key_of(one) == key:  # same graph, but sampling one row is faster
                    launch = self._planned(self.builder.empty(one))
                self._try_out(launch)
                report(Progress("warm-up", number + 1, len(self.keys)))
        self.device.synchronize()

    def _try_out(self, launch: Launch) -> None:
        self.sampler(self._replay(launch), launch, np.zeros(0, np.int32), np.zeros(0, np.int32))

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
            launch = self._planned(prepared.launch)
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
            rows = prepared.launch.key.rows
            if len(prepared.prompt_logprobs):
                prompt_logprobs += self.scorer(hidden[rows:], prepared)
            if not len(prepared.rows[prepared.sampling]):
                continue
            launch = self.builder.restore_rows(prepared)
            sampled = self.sampler(hidden[:rows], launch, prepared.rows, prepared.next_position, masks)
            self._feed(prepared, launch, sampled.tokens)
            asked = self.batch.sampling.logprobs[prepared.rows]
            drawn.append(SampledRows.copying(self.device, prepared.rows, prepared.sampling, asked, sampled))
        stats = StepStats(pending.seconds, perf_counter() - began, fallbacks=dict(self.build.ops.fallbacks))
        return PendingStep(pending.step.step, drawn, prompt_logprobs, stats)

    def _run(self, launch: Launch, *, whole: bool) -> Any:
        """The result of _forward(). whole: this is the only launch of the step."""
        hidden = self._replay(launch)
        return hidden if whole else hidden.clone()  # the next replay may overwrite this result

    def _feed(self, prepared: PreparedLaunch, launch: Launch, tokens: Tensor) -> None:
        """Stores sampled tokens [R] where the next step reads them."""
        self.builder.feed(prepared, launch, tokens)

    def _forward(self, launch: Launch) -> Any:
        """The hidden states after the final norm: [R, hidden size] for the rows, or, if the launch has ALL_POSITIONS,
        [R + T, hidden size] for the rows and then all tokens."""
        return self.model.finish(self.model.forward(self.model.embed(launch.tokens), launch, self.caches))

    def _replay(self, launch: Launch) -> Any:
        executable = self.executables.get(self.graphs.key_of(launch.key))
        if executable is None:
            return self._forward(launch)
        result = self.graphs.replay(executable, launch)
        self.graphs.after_launch(executable, launch)
        return result

    def _planned(self, launch: Launch) -> Launch:
        """Adds the plans to a launch, listed by layer; layers of one group and backend share a plan."""
        made: dict[tuple[int, str], Plan] = {}
        plans = []
        for bound in self.build.mixers:
            key = (self.group_of[bound.spec.layer], bound.backend.name)
            if key not in made:
                made[key] = bound.backend.plan(launch, key[0], self.buffers if self.keys else None)
            plans.append(made[key])
        launch.plans = plans
        return launch


def _variants(features: Sequence[WorkerFeature]) -> list[frozenset[str]]:
    """The bits that launches may have: those of rows that ask for nothing, then those with more."""
    variants = [frozenset[str]()]
    for feature in features:
        idle = feature.bits({column.name: np.array([column.default], column.dtype) for column in feature.columns()})
        variants = [known | bits for bits in dict.fromkeys((idle, feature.keys())) for known in variants]
    return variants


def _sees_sampling(feature: WorkerFeature) -> bool:
    """Whether a feature uses logits or sampled tokens. Without any, head and sampling run as one composite."""
    own = type(feature)
    return own.logits is not WorkerFeature.logits or own.after is not WorkerFeature.after


def _linear_layers(build: Build) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the model's linear layers, by name."""
    return {layer.name: (layer.k, layer.n) for product in build.products for layer in product.layers}


class ExecutedStep:
    """A step whose forward pass was launched: each launch with its hidden states. seconds: spent launching."""

    def __init__(self, step: SchedulerOutput, results: Sequence[tuple[PreparedLaunch, Tensor]], seconds: float) -> None:
        self.step, self.results, self.seconds = step, results, seconds
