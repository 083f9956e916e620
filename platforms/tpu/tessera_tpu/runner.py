"""The model runner: steps of the scheduler in, tokens out, by programs that XLA compiled for a few shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.platform import (
    Array,
    CacheNeeds,
    CachePlan,
    HostSampled,
    LaunchKey,
    LayerCache,
    LoadedModel,
    MemoryBudget,
    ModelFacts,
    ModelRunner,
    Progress,
    Ready,
    RefusedError,
    RowLogprobs,
    RunnerServices,
    SchedulerOutput,
    StepOutput,
    TokenMasks,
    WorkerFeature,
    possible_bits,
    prompt_bits,
    sampled_at,
    step_output,
    write_drafts,
)
from tessera_tpu.arrays import as_torch, host_array, nbytes
from tessera_tpu.attention import PagedAttention, block_of
from tessera_tpu.inputs import Launches, Prepared, launch_fields, with_prompts
from tessera_tpu.mesh import DeviceMesh
from tessera_tpu.model import TracedModel, copied, fed, opened
from tessera_tpu.ops import compiled
from tessera_tpu.paged import Kernels
from tessera_tpu.programs import Program, Programs
from tessera_tpu.requests import SamplingInputBuilder
from tessera_tpu.sampling import sample_fields, words
from tessera_tpu.shapes import bucketed

COPIES = 16
"""Blocks that one program copies; fewer are padded with copies of block 0 onto itself."""


@dataclass(frozen=True)
class Executed:
    """A step whose forward passes were launched: each launch with its hidden states."""

    step: SchedulerOutput
    launches: Sequence[tuple[Prepared, Any]]


class Drawn:
    """The output of a step whose tokens are on their way to the host. parts: what each launch drew, as DeviceSampler
    returns it, which of it was asked for, and how many alternatives each of these rows wants."""

    def __init__(self, step: SchedulerOutput, parts: Sequence[tuple[tuple[Any, ...], Array, Array]]) -> None:
        self.step = step
        self.parts = [
            (drawn if logprobs.max() >= 0 else drawn[:1], places, logprobs) for drawn, places, logprobs in parts
        ]
        for drawn, _, _ in self.parts:
            for array in drawn:
                array.copy_to_host_async()

    def done(self) -> bool:
        return all(array.is_ready() for drawn, _, _ in self.parts for array in drawn)

    def result(self) -> StepOutput:
        rows, _ = sampled_at(self.step)
        tokens, logprobs, first = [], [], 0
        for drawn, places, wanted in self.parts:
            ids, *scores = (np.asarray(array)[places] for array in drawn)
            tokens.append(ids)
            for one, k in enumerate(wanted.tolist()):
                if k >= 0:
                    of, row = slice(one, one + 1), int(rows[first + one])
                    logprobs.append(RowLogprobs(row, scores[0][of, : k + 1], scores[1][of, : k + 1], scores[2][of]))
            first += len(places)
        return step_output(self.step, HostSampled(np.concatenate(tokens), logprobs))


class JaxRunner(ModelRunner):
    """A runner whose steps are programs that JAX compiles ahead."""

    # by layer, its planes
    caches: list[Any]
    # [rows + 1, max_model_len + 1] int32: of all rows, on the device; the last row is for padding
    tokens: Any

    takes = frozenset({"drafts", "kv_cache_dtype", "lora", "media", "quantization"})

    def __init__(self, services: RunnerServices, mesh: DeviceMesh, kernels: Kernels) -> None:
        """mesh: of all devices. kernels: of attention."""
        self.services, self.mesh, self.kernels = services, mesh, kernels
        self.programs = Programs(services.artifacts.folder("xla"))

    # ---- start

    def load(self, budget: MemoryBudget) -> LoadedModel:
        services, self.attention = self.services, PagedAttention(self.kernels)
        attention = self.attention
        for feature in services.features():
            refuse_beyond_the_model(feature)
        ops = compiled(services.reference())
        model = services.build_model(ops, [attention])
        if not model.facts.functional:
            raise RefusedError(
                f"This platform cannot trace {model.facts.architecture}, which runs through transformers' code; serve "
                "a model that Tessera has itself (docs/models.md)."
            )
        services.accept(model.facts)
        self.facts, config = model.facts, services.config
        self.sampler = services.sampler()
        weights = services.load_weights(self._placed)
        features = services.features()
        changing = {id(tensor) for feature in features for mapping in feature.tensors() for tensor in mapping.values()}
        for name, table in attention.tables.items():
            if id(table) not in changing:
                attention.tables[name] = self._placed("norm", name, table)
        self.model = TracedModel(
            model, services.reference(), [*weights, attention.tables], features, self._copied_whole
        )
        self.shapes = bucketed(config)
        keys = self.shapes.keys()
        self.keys = [replace(key, bits=bits) for bits in possible_bits(features) for key in keys]
        if beside := prompt_bits(features):
            self.keys += [replace(key, bits=key.bits | beside) for key in self.keys if with_prompts(key)]
        self.samples = sorted({key.num_samples for key in self.keys})
        weight_bytes, workspace = nbytes(self.model.values), self._workspace()
        self.layouts = {cache.layer: cache.spec for cache in model.facts.caches}
        needs = tuple(self._needs(cache) for cache in model.facts.caches)
        return LoadedModel(
            facts=model.facts,
            needs=needs,
            weight_bytes=weight_bytes,
            cache_bytes=budget.kv or budget.remaining(weight_bytes, workspace),
            device=services.device.name,
            granted_bytes=budget.total,
            workspace_bytes=workspace,
            columns=tuple(column.name for column in self.model.columns if not column.internal),
            unsupported=("prompt_logprobs",),
            linear_layers=services.linear_layers() if features else {},
        )

    def _needs(self, cache: LayerCache) -> CacheNeeds:
        layout = partial(self.attention.kv_cache_layout, cache.spec)
        return CacheNeeds(
            layer=cache.layer,
            spec=cache.spec,
            block_sizes=(block_of(cache.spec),),
            block_multiple=True,
            index_dtype="int32",
            align_bytes=1,
            layout=layout,
            dense_planes=True,
        )

    def _placed(self, layer: str, part: str, tensor: Any) -> Any:
        """A weight on the device, which holds it alone from then on."""
        array = host_array(tensor)
        return as_torch(jax.device_put(array, self.mesh.weight(layer, array.shape)))

    def _copied_whole(self, tensor: Any) -> Any:
        return jax.device_put(host_array(tensor).copy(), self.mesh.whole)

    def _workspace(self) -> int:
        """Bytes that a step takes beside weights and cache: logits in float32 three times, as filters sort them, and
        the widest activations."""
        tokens = max(self.shapes.prompt_tokens)
        return 3 * 4 * self.samples[-1] * self.facts.vocab_size + 64 * tokens * self.facts.hidden_size

    def allocate(self, plan: CachePlan) -> None:
        self.plan, self.batch = plan, self.services.input_batch(plan)
        self.launches = Launches(plan, self.batch, self.shapes, self.model.features)
        blocks = {layer: group for group in plan.groups for layer in group.layers}
        self.caches = []
        for layer, group in sorted(blocks.items()):
            layout = self.attention.kv_cache_layout(self.layouts[layer], group.block_size)
            shapes = [((group.num_blocks, *plane.shape), plane.dtype) for plane in layout.planes]
            self.caches.append(tuple(jnp.zeros(*one, device=self.mesh.planes) for one in shapes))
        self.sampling_inputs = SamplingInputBuilder(
            self.batch, self.facts.vocab_size, self.launches.width, self.launches.spare
        )
        self.any_token = {  # where no row has a mask, so that none is copied
            samples: jnp.full((samples, words(self.facts.vocab_size)), -1, jnp.int32, device=self.mesh.whole)
            for samples in self.samples
        }
        self.tokens = jnp.zeros(self.batch.tokens.shape, jnp.int32, device=self.mesh.whole)

    def warm_up(self, report: Callable[[Progress], None]) -> None:
        if self.services.config.enforce_eager:
            return
        makes = list(self._programs())
        for number, make in enumerate(makes):
            make()
            report(Progress("warm-up", number + 1, len(makes)))

    def _programs(self) -> Iterator[Callable[[], Any]]:
        """What compiles each program that a step may need."""
        yield from (partial(self._forward, key) for key in self.keys)
        for samples in self.samples:
            yield from (partial(make, samples) for make in (self._sample, self._logits, self._feed))
        yield self._open
        yield from (partial(self._copy, number) for number in range(len(self.plan.groups)))

    # ---- programs

    def _forward(self, key: LaunchKey) -> Any:
        def describe() -> Program:
            call = partial(self.model.forward, key, self.plan)
            fields = launch_fields(key, self.plan, self.model.columns, self.model.turning)
            flat = self._int32(fields.size)
            given = self.model.values, self.caches, self.tokens, flat
            return Program(call, given, (self._planes, self.mesh.whole, self.mesh.whole), donated=(1, 2))

        return self.programs.get(("forward", key), describe)

    def _sample(self, samples: int) -> Any:
        def describe() -> Program:
            inputs = self._int32(sample_fields(samples).size), self._int32(samples, words(self.facts.vocab_size))
            given = self.model.values, self.tokens, self._hidden(samples), *inputs
            return Program(self.model.sample, given, self.mesh.whole, donated=(1,))

        return self.programs.get(("sample", samples), describe)

    def _logits(self, samples: int) -> Any:
        def describe() -> Program:
            return Program(self.model.logits, (self.model.values, self._hidden(samples)), self.mesh.whole)

        return self.programs.get(("logits", samples), describe)

    def _feed(self, samples: int) -> Any:
        def describe() -> Program:
            one = self._int32(samples)
            return Program(fed, (self.tokens, one, one), self.mesh.whole, donated=(0,))

        return self.programs.get(("feed", samples), describe)

    def _open(self) -> Any:
        def describe() -> Program:
            given = self.tokens, self._int32(), self._int32(self.tokens.shape[1])
            return Program(opened, given, self.mesh.whole, donated=(0,))

        return self.programs.get("open", describe)

    def _copy(self, group: int) -> Any:
        def describe() -> Program:
            call = partial(copied, self.plan.groups[group].layers)
            given = self.caches, self._int32(COPIES), self._int32(COPIES)
            return Program(call, given, self._planes, donated=(0,))

        return self.programs.get(("copy", group), describe)

    @property
    def _planes(self) -> Any:
        """Where the caches are."""
        return [tuple(plane.sharding for plane in planes) for planes in self.caches]

    def _int32(self, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, np.int32, sharding=self.mesh.whole)

    def _hidden(self, samples: int) -> Any:
        facts: ModelFacts = self.facts
        return jax.ShapeDtypeStruct((samples, facts.hidden_size), facts.dtype, sharding=self.mesh.whole)

    # ---- steps

    def execute(self, step: SchedulerOutput) -> Executed:
        batch = self.batch
        batch.apply(step)
        self.model.begin(step)
        for one in step.opened:
            self.tokens = self._open()(self.tokens, np.int32(one.row), batch.tokens[one.row].copy())
        for copy in step.copies:
            for first in range(0, len(copy.sources), COPIES):
                some = slice(first, first + COPIES)
                padded = (_padded(ids[some], COPIES) for ids in (copy.sources, copy.targets))
                self.caches = self._copy(copy.group)(self.caches, *padded)
        write_drafts(step, batch.tokens)
        return Executed(step, [(prepared, self._run(prepared)) for prepared in self.launches.prepare(step)])

    def _run(self, prepared: Prepared) -> Any:
        forward = self._forward(prepared.key)
        self.caches, self.tokens, hidden = forward(self.model.values, self.caches, self.tokens, prepared.inputs)
        return hidden

    def sample(self, pending: Executed, masks: TokenMasks | None = None) -> Any:
        step = pending.step
        launches = [(prepared, hidden) for prepared, hidden in pending.launches if len(prepared.places)]
        if not launches:
            rows, _ = sampled_at(step)
            return Ready(StepOutput(step.step, rows, rows, rows))
        if any(self.sampling_inputs.exceed_program(prepared.rows) for prepared, _ in launches):
            return self._sampled_on_host(step, launches, masks)
        parts = []
        for prepared, hidden in launches:
            sampling, samples = self.sampling_inputs.build(prepared, masks), prepared.key.num_samples
            bits = self.any_token[samples] if sampling.bits is None else sampling.bits
            arguments = self.model.values, self.tokens, hidden, sampling.inputs, bits
            self.tokens, drawn = self._sample(samples)(*arguments)
            parts.append((drawn, prepared.places, sampling.logprobs))
        return Drawn(step, parts)

    def _sampled_on_host(
        self, step: SchedulerOutput, launches: Sequence[tuple[Prepared, Any]], masks: TokenMasks | None
    ) -> Ready:
        """By core's sampler, which waits for the logits and needs the tokens of all rows on the host."""
        rows, positions = sampled_at(step)
        self.batch.tokens[:] = np.asarray(self.tokens)
        logits = []
        for prepared, hidden in launches:
            made = self._logits(prepared.key.num_samples)(self.model.values, hidden)
            logits.append(np.asarray(made)[prepared.places].astype(np.float32))
        sampled = self.sampler(np.concatenate(logits), self.batch, rows, positions, masks)
        self.batch.tokens[rows, positions] = sampled.tokens
        done = 0
        for prepared, _ in launches:
            number = len(prepared.places)
            at = np.full(prepared.key.num_samples, self.launches.spare, np.int32)
            ids = np.zeros(prepared.key.num_samples, np.int32)
            at[prepared.places] = prepared.rows * self.launches.width + prepared.positions
            ids[prepared.places] = sampled.tokens[done : done + number]
            done += number
            self.tokens = self._feed(prepared.key.num_samples)(self.tokens, at, ids)
        return Ready(step_output(step, sampled))


def refuse_beyond_the_model(feature: WorkerFeature) -> None:
    """Raises RefusedError for a feature whose methods the runner does not call, or whose columns no launch has."""
    own = type(feature)
    called = ("before", "logits", "after")
    if any(getattr(own, name) is not getattr(WorkerFeature, name) for name in called):
        raise RefusedError(
            "This platform runs no features that change launches, logits or sampled tokens, "
            f"as {own.__name__} does; remove it from --features."
        )
    for column in feature.columns():
        if column.dtype not in ("int32", "float32"):
            raise RefusedError(
                f"This platform takes columns of int32 and float32, and '{column.name}' of {own.__name__} is "
                f"{column.dtype}; remove it from --features."
            )


def _padded(ids: Array, size: int) -> Array:
    result = np.zeros(size, np.int32)
    result[: len(ids)] = ids
    return result
