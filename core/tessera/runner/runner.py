"""Core's model runner: combines input batch, launches, model and sampler, and runs them with a platform's ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.errors import MemoryBudgetError, PlatformError
from tessera.kvcache.groups import null_plan
from tessera.layers.build import PIPELINE_GROUP, Build
from tessera.layers.weights import count_bytes, count_numbers
from tessera.loader.load import load_weights
from tessera.platform.attention import AttentionBackend, MixerBackend
from tessera.platform.collectives import Alone
from tessera.platform.feature import WorkerFeature, possible_bits
from tessera.platform.graph import Eager, GraphRunner
from tessera.platform.launch import Launch, LaunchKey, LaunchRows, Plan
from tessera.platform.loaded_model import CacheNeeds, LoadedModel, MemoryBudget
from tessera.platform.model import Model
from tessera.platform.platform import Platform
from tessera.platform.runner import CachePlan, ModelRunner, Progress
from tessera.platform.shapes import ExactShapes, ShapePolicy
from tessera.platform.transfer import TokenStore
from tessera.plugins.contract import check_members
from tessera.pooling_params import RequestPooling
from tessera.reference import reference_backends
from tessera.runner.attention import attention_groups, cache_needs, groups_with_host_tables
from tessera.runner.device_buffers import DeviceBuffers, buffer_sizes, largest_launch
from tessera.runner.drafted_states import DraftedStates
from tessera.runner.drafter import Drafter
from tessera.runner.explain import describe_kv, describe_skipped_weights, explain
from tessera.runner.input_batch import refuse_uncounted
from tessera.runner.invariance import refuse_variance
from tessera.runner.kernel_variants import steps_of_all_kinds
from tessera.runner.kv_canary import CanaryObserver
from tessera.runner.kv_memory import CacheMemory, cache_bytes, refuse_dummy
from tessera.runner.launch_builder import LaunchBuilder, PreparedLaunch
from tessera.runner.logits_editor import LogitsEditor
from tessera.runner.observers import LaunchObserver
from tessera.runner.pending_step import ExecutedStep, PendingStep, SampledRows
from tessera.runner.pooler import PooledRow, Pooler, refuse_tasks
from tessera.runner.prompt_logprobs import PromptScorer, Scoring
from tessera.runner.sampler import Sampler, bind_ahead
from tessera.runner.services import Services
from tessera.runner.stages import StageLinks
from tessera.runner.token_store import CacheTokens, layer_formats
from tessera.runner.workspace import estimated, largest_steps, remembered_or
from tessera.step import SchedulerOutput, StepStats, TokenMasks


class CoreRunner(ModelRunner):
    """Called in this order: load() builds the model, loads weights and binds ops; allocate() allocates caches and
    buffers; warm_up() captures graphs; then steps run."""

    # What load() makes.
    model: Model
    build: Build
    graphs: GraphRunner
    shapes: ShapePolicy
    # Of the launches that warm_up() captures.
    keys: Sequence[LaunchKey]
    # Where a layer of the model makes drafts, what allocate() makes.
    drafter: Drafter | None = None

    def __init__(
        self,
        services: Services,
        platform: Platform,
        report: Callable[[Progress], None],
        *,
        observers: Sequence[LaunchObserver] = (),
    ) -> None:
        self.services, self.platform, self.report, self.observers = services, platform, report, observers
        self.links = StageLinks(services.groups.get(PIPELINE_GROUP, Alone()))
        self.device = services.device
        self.features = services.features()
        # What was captured, by key.
        self.executables: dict[LaunchKey, Any] = {}
        # Of Platform.compilations(), when warm_up() ended.
        self.compilations = 0

    # ---- start -------------------------------------------------------------------------------------------------------

    def load(self, budget: MemoryBudget) -> LoadedModel:
        notes = self._build_model()
        weight_bytes = self._load_weights(budget)
        self._choose_shapes()
        self._use_groups()
        memory = self.device.memory()  # before measuring, which may leave memory allocated
        workspace_bytes = self._measure_workspace()
        described, config = self._describe(notes), self.services.config
        return replace(
            described,
            weight_bytes=weight_bytes,
            workspace_bytes=workspace_bytes,
            cache_bytes=cache_bytes(config, budget, memory, weight_bytes, workspace_bytes) if described.needs else 0,
            granted_bytes=budget.total,
        )

    def _build_model(self) -> Sequence[str]:
        """Returns notes about what was chosen."""
        services, platform = self.services, self.platform
        backends = self._backends()
        ops = platform.ops(services.reference())
        weights = services.negotiate_weights()
        self.graphs, notes = self._graph_runner()
        self.model = services.build_model(ops, backends, weights, self.graphs.split)
        assert services.build is not None
        self.build = services.build
        if self.links.is_last and self.model.facts.generates:
            bind_ahead(self.model, self.build.ops)
        if self.links.is_last:
            refuse_tasks(self.model, services.config.model.pooler)
        refuse_variance(platform, services.config, self.model.facts, self.build)
        services.accept(self.model.facts)
        return notes

    def _load_weights(self, budget: MemoryBudget) -> int:
        """Returns the bytes that the model takes on the device."""
        services, parameters = self.services, self.build.parameters
        refuse_uncounted(services.config, self.platform.capabilities.index_dtype)
        refuse_dummy(services.config, budget, count_bytes(parameters, services.dtype))
        with self.device.arena("weights") as arena:
            load_weights(parameters, services.source, services.dtype, self.device, arena, self.report)
        return arena.nbytes + services.feature_bytes

    def _choose_shapes(self) -> None:
        config, platform, build = self.services.config, self.platform, self.build
        self.shapes = platform.shapes(self.model.facts, config) or ExactShapes()
        if platform.capabilities.static_shapes and not self.shapes.keys():
            raise PlatformError(
                f"platform '{platform.name}' says that launches need static shapes, but its shapes() lists no keys."
            )
        ops = build.ops.ops
        kernels, mixers = (ops[name].kernel for name in ops.names()), (bound.mixer for bound in build.mixers)
        check_members([*build.backends, *kernels, *mixers, self.graphs, self.shapes], config.platform_levels)
        self._check_drafts()
        if self.model.facts.generates:
            captured = self.graphs.keys(self.shapes, config.scheduler.max_decode_samples)
        elif self.model.facts.caches:
            captured = ()
        else:
            captured = self.graphs.encoder_keys(self.shapes, config.scheduler.max_num_batched_tokens)
        self.keys = [replace(key, bits=key.bits | bits) for bits in possible_bits(self.features) for key in captured]

    def _use_groups(self) -> None:
        """Sums over each group once, so that the memory which its library takes at the first sum is among what the
        device says is taken."""
        for group in self.services.groups.values():
            if group.size > 1:
                group.all_reduce(torch.zeros(1, device=self.device.target))
        self.device.synchronize()

    def _describe(self, notes: Sequence[str]) -> LoadedModel:
        """The loaded model, without its figures in bytes."""
        services, build, facts = self.services, self.build, self.model.facts
        notes = (*facts.notes, *describe_skipped_weights(build.weights), *describe_kv(build), *notes)
        columns = [column for feature in self.features for column in feature.columns()] + self.build.columns
        return LoadedModel(
            facts=replace(facts, notes=notes),
            needs=tuple(self._needs()),
            weight_bytes=0,
            cache_bytes=0,
            device=self.device.name,
            fallbacks=tuple(sorted({*build.ops.referenced, *build.fallbacks})),
            columns=tuple(column.name for column in columns if not column.internal),
            choices=explain(build),
            num_weights=count_numbers(build.parameters),
            linear_layers=services.linear_layers() if self.features else {},
            num_towers=build.group.size,
        )

    def _measure_workspace(self) -> int:
        """Bytes that steps and captured launches take beside weights and KV cache. Measured if the size of the KV cache
        depends on it."""
        config, facts = self.services.config, self.model.facts
        if config.cache.memory_bytes is None:
            measured = remembered_or(self._measure, config, self.device, self.services.groups)
            if measured is not None:
                return measured
        return estimated(config, facts)

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
        whole = [key for key in self.keys if self.graphs.captures_mixers(key)]
        pieces = [key for key in self.keys if not self.graphs.captures_mixers(key)]
        # What lies between mixers is held, so each launch that is captured in pieces takes memory of its own.
        taken = [self.device.peak(partial(self._capture, key)) or 0 for key in (*pieces, *whole[:1], *whole[1:][-1:])]
        self.executables.clear()
        self.graphs.invalidate()
        return steps + sum(taken) + taken[-1] * max(len(whole) - 2, 0)

    @torch.inference_mode()
    def _run_largest_steps(self) -> None:
        config = self.services.config
        self.executables = {}
        plan = null_plan(self._needs(), config)
        self.allocate(plan)
        for stacks in self.memory.stacks:
            for stack in stacks:
                stack.zero_()
        most = max(self._pooling(), key=attrgetter("every_token"), default=None)
        for step in largest_steps(config, plan, self.shapes.rules(), most):
            self.sample(self.execute(step))
        self.links.discard_tokens()

    def _pooling(self) -> list[RequestPooling]:
        """What requests may ask of each task that the model has."""
        pooler = self.services.config.model.pooler
        return [] if pooler is None else [RequestPooling.from_config(pooler, task) for task in pooler.tasks]

    def _backends(self) -> Sequence[MixerBackend[Any]]:
        """In order of preference."""
        backends = (*self.platform.attention_backends(), *reference_backends())
        if self.services.config.scheduler.max_decode_tokens == 1:
            return backends
        return (*(DraftedStates(one) for one in backends if isinstance(one, AttentionBackend)), *backends)

    def _check_drafts(self) -> None:
        """Raises PlatformError where drafts are asked for and cannot be verified."""
        tokens, limit = self.services.config.scheduler.max_decode_tokens, self.shapes.max_decode_tokens
        if tokens == 1:
            return
        if limit is not None and limit < tokens:
            raise PlatformError(
                f"speculative_config asks for {tokens - 1} draft tokens, but launches on platform "
                f"'{self.platform.name}' have room for {limit - 1}; lower num_speculative_tokens or leave "
                "speculative_config out."
            )

    def _graph_runner(self) -> tuple[GraphRunner, Sequence[str]]:
        """The platform's graph runner, or Eager; and, if the platform's cannot be used, a note that says why."""
        if self.services.config.enforce_eager:
            return Eager(), ()
        graphs = self.platform.graph_runner(self.device)
        groups = {name: group for name, group in self.services.groups.items() if name != PIPELINE_GROUP}
        uncapturable = [name for name, group in groups.items() if not group.capturable]
        if graphs is None:
            return Eager(), ()
        if uncapturable and not isinstance(graphs, str):
            graphs = f"the collectives of the group {', '.join(uncapturable)} cannot be"
        return (Eager(), (f"launches are not captured: {graphs}",)) if isinstance(graphs, str) else (graphs, ())

    def _needs(self) -> list[CacheNeeds]:
        index_dtype = self.platform.capabilities.index_dtype
        return cache_needs(self.build.mixers, index_dtype, separate_planes=self.graphs.separate_planes)

    def allocate(self, plan: CachePlan) -> None:
        self.plan = plan
        self.memory = CacheMemory(plan, {need.layer: need for need in self._needs()}, self.device)
        self.caches = list(self.memory.planes)
        self.batch = self.services.input_batch(plan)
        self.device_tokens = torch.from_numpy(self.batch.tokens).to(self.device.target)
        largest = largest_launch(self.keys, self.services.config.scheduler)
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
            host_tables=groups_with_host_tables(self.build.mixers, plan),
            all_states=self.build.predictor is not None,
        )
        self.attention_groups = attention_groups(self.build.mixers, plan, self.device)
        self.links.allocate(self.model.facts, self.buffers, self.device)
        for observer in self.observers:
            observer.allocate(plan, self.device)
        if self.links.is_last and self.services.config.model.pooler is not None:
            invariant = self.services.config.batch_invariant
            self.pooler = Pooler(self.model.pooling, self.batch, self.device, batch_invariant=invariant)
        if self.links.is_last and self.model.facts.generates:
            self._allocate_sampling()

    def _allocate_sampling(self) -> None:
        editor = LogitsEditor(self.batch.sampling, self.device_tokens, self.build.ops.bind, self.device.to_device)
        features = [feature for feature in self.features if _sees_sampling(feature)]
        self.sampler = Sampler(self.model, self.build.ops, self.batch.sampling, self.buffers, features, editor)
        self.scorer = PromptScorer(self.model, self.batch, self.device, self.sampler.bind_logprobs)
        if self.build.predictor is not None:
            rows, _, _ = largest_launch(self.keys, self.services.config.scheduler)
            self.drafter = Drafter(
                self.model,
                self.build.predictor,
                self.build.ops,
                self.builder,
                self.caches,
                self.attention_groups,
                self.device,
                rows,
            )

    def token_store(self) -> TokenStore | None:
        if not layer_formats(self.plan.groups, self.memory.layouts):
            return None
        return CacheTokens(self.memory, self.plan)

    def warm_up(self, report: Callable[[Progress], None]) -> None:
        self.executables = {}
        with torch.inference_mode():
            for number, key in enumerate(self.keys):
                launch = self._capture(key)
                one_row = LaunchKey("decode", 1, 1, key.blocks, 1, key.bits), replace(key, rows=1, width=key.tokens)
                single = next((one for one in one_row if self.graphs.key_of(one) == key), None)
                if single is not None:  # same graph, but sampling one row is faster
                    launch = self._planned(self.builder.empty(single), captured=True)
                self._run_empty(launch)
                report(Progress("warm-up", number + 1, len(self.keys)))
        if self.platform.compilations() is not None:
            self._launch_all_kinds(report)
        self.device.synchronize()
        self.compilations = self.platform.compilations() or 0

    @torch.inference_mode()
    def _capture(self, key: LaunchKey) -> Launch:
        launch = self._planned(self.builder.empty(key), captured=True)
        self.executables[key] = self.graphs.capture(key, self._forward, launch, self.buffers)
        return launch

    def _run_empty(self, launch: Launch) -> None:
        """Replays and samples a launch of padding alone."""
        hidden, none = self._replay(launch), np.zeros(0, np.int32)
        if self.links.is_last and self.model.facts.generates:
            self.sampler(hidden, self.builder.empty_sampled(launch), none, none)

    def _launch_all_kinds(self, report: Callable[[Progress], None]) -> None:
        """Runs steps that launch each kernel as requests can, so that none is compiled while requests are served."""
        config, vocab = self.services.config, self.model.facts.vocab_size
        steps = steps_of_all_kinds(config, self.plan, self.shapes.rules(), vocab, self._pooling())
        for number, step in enumerate(steps):
            for bits in possible_bits(self.features):
                self.sample(self._execute(step, (), bits))
            report(Progress("kernels", number + 1, len(steps)))
        self.links.discard_tokens()

    # ---- steps -------------------------------------------------------------------------------------------------------

    def execute(self, step: SchedulerOutput) -> ExecutedStep:
        return self._execute(step, self.observers)

    @torch.inference_mode()
    def _execute(
        self, step: SchedulerOutput, observing: Sequence[LaunchObserver], bits: frozenset[str] = frozenset()
    ) -> ExecutedStep:
        """bits: of launch keys, beside those that the step's rows ask for."""
        began = perf_counter()
        self.links.take_tokens(step, self.builder)
        self._apply(step)
        observers = [observer.begin(step) for observer in observing]
        results = []
        for prepared in self.builder.build(step, bits):
            launch = prepared.launch
            for observer in observers:
                observer.observe(launch)
            self._fill(launch)
            self._planned(launch, captured=self._is_captured(launch.key))
            results.append((prepared, self._run(launch, whole=len(prepared.rows) == len(step.rows))))
            self.build.ops.fallbacks.update(self.build.fallbacks)
        return ExecutedStep(step, results, perf_counter() - began, observers)

    def _fill(self, launch: Launch) -> None:
        """What features say of a launch's tokens."""
        if not self.features:
            return
        rows = LaunchRows.from_launch(launch)
        for feature in self.features:
            for name, values in feature.token_columns(rows).items():
                self.device.to_device(values, launch.columns[name])
            positions = feature.positions(rows)
            if positions is not None:
                self.device.to_device(positions, launch.positions)
            feature.before(launch)

    def _apply(self, step: SchedulerOutput) -> None:
        """What a step changes before its launches: the rows that it opens, block tables, copies of blocks."""
        self.batch.apply(step)
        if step.opened:
            for feature in self.features:
                feature.open(step.opened)
        for feature in self.features:
            feature.begin(step)
        for opened in step.opened:
            known = slice(len(opened.tokens))
            self.device.to_device(self.batch.tokens[opened.row, known], self.device_tokens[opened.row, known])
        self.memory.copy(step.copies)

    @torch.inference_mode()
    def sample(self, pending: ExecutedStep, masks: TokenMasks | None = None) -> PendingStep:
        began = perf_counter()
        sampled: list[SampledRows | None] = []
        prompt_logprobs: list[Scoring] = []
        pooled: list[PooledRow] = []
        if self.links.is_last:
            for prepared, hidden in pending.results:
                samples = prepared.launch.key.num_samples
                if len(prepared.prompt_logprobs):
                    prompt_logprobs += self.scorer(hidden[samples:], prepared)
                if len(prepared.pooled):
                    pooled += self.pooler(hidden, prepared)
                samples_any = len(prepared.sampled_rows[prepared.sampling])
                sampled.append(self._sample(prepared, hidden[:samples], masks) if samples_any else None)
        else:
            self.links.expect_tokens(pending.step.step, [prepared for prepared, _ in pending.results])
        drafts = () if self.drafter is None else self.drafter(pending.step, pending.results, sampled)
        compilations = (self.platform.compilations() or 0) - self.compilations
        fallbacks = dict(self.build.ops.fallbacks)
        stats = StepStats(pending.seconds, perf_counter() - began, fallbacks=fallbacks, compilations=compilations)
        some = [rows for rows in sampled if rows is not None]
        made = drafts if pending.step.num_drafts else ()
        return PendingStep(pending.step.step, some, prompt_logprobs, pooled, stats, pending.observers, made)

    def _sample(self, prepared: PreparedLaunch, hidden: Tensor, masks: TokenMasks | None) -> SampledRows:
        """Samples the rows of a launch, and stores the tokens where the next step reads them."""
        rows = prepared.sampled_rows
        launch = self.builder.restore_rows(prepared)
        sampled = self.sampler(hidden, launch, rows, prepared.next_position, masks)
        self.builder.feed(prepared, launch, sampled.tokens)
        self.links.send_tokens(sampled.tokens)
        return SampledRows.copying(self.device, prepared, self.batch.sampling.logprobs[rows], sampled)

    def _run(self, launch: Launch, *, whole: bool) -> Any:
        """Runs a launch. Returns the hidden states that it samples from; None on a stage that sends them on. whole:
        this is the only launch of the step."""
        self.links.receive(launch)
        result = self._replay(launch)
        if not self.links.is_last:
            self.links.send(result)
            return None
        return result if whole else result.clone()  # the next replay may overwrite this result

    def _forward(self, launch: Launch) -> Any:
        """The hidden states after the final norm: [S, hidden size] for those that become logits, or, if the launch has
        ALL_POSITIONS, [S + T, hidden size] for these and then all tokens. On a stage that does not sample, the tensors
        that the next one receives."""
        states = [self.model.embed(launch.tokens)] if self.links.is_first else self.links.states(launch)
        hidden = self.model.forward(states[0], launch, self.caches, *states[1:])
        if self.links.is_last:
            return self.model.finish(hidden)
        return (hidden.last,) if hidden.residual is None else (hidden.last, hidden.residual)

    def _replay(self, launch: Launch) -> Any:
        if not self._is_captured(launch.key):
            return self._forward(launch)
        return self.graphs.replay(self.executables[self.graphs.key_of(launch.key)], launch)

    def _planned(self, launch: Launch, *, captured: bool) -> Launch:
        """Adds the plans to a launch, listed by layer. captured: or replayed from a graph."""
        buffers = self.buffers if captured and self.graphs.captures_mixers(launch.key) else None
        plans: list[Plan] = [None] * len(self.build.mixers)
        for backend, group in self.attention_groups:
            plan = backend.plan(launch, group, buffers)
            for layer in group.layers:
                plans[layer] = plan
        launch.plans = plans
        return launch

    def _is_captured(self, key: LaunchKey) -> bool:
        """Whether an executable runs launches of this key. None that was captured of decode steps verifies drafts where
        layers keep states, since each token then leaves a state of its own."""
        captured = self.graphs.key_of(key)
        return captured in self.executables and (captured.kind == key.kind or not self._drafts_states(key))

    def _drafts_states(self, key: LaunchKey) -> bool:
        return key.kind == "verify" and any(group.kind == "state" for group in self.plan.groups)


def _sees_sampling(feature: WorkerFeature) -> bool:
    """Whether a feature uses logits or sampled tokens. Without any, head and sampling run as one composite."""
    feature_class = type(feature)
    return feature_class.logits is not WorkerFeature.logits or feature_class.after is not WorkerFeature.after


def core_runner(services: Services, platform: Platform, report: Callable[[Progress], None]) -> CoreRunner:
    """Core's runner of a worker, as the configuration says. Stages between the first and the last know none of the
    tokens by which --check-kv-cache tells slots apart."""
    pipeline = services.groups[PIPELINE_GROUP]
    checked = services.config.cache.check and pipeline.rank in (0, pipeline.size - 1)
    return CoreRunner(services, platform, report, observers=[CanaryObserver()] if checked else [])
