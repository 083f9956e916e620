"""Core's model as functions of its weights, which JAX traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from tessera.platform import (
    CachePlan,
    Column,
    Launch,
    LaunchKey,
    Model,
    OpSet,
    SchedulerOutput,
    Tensor,
    WorkerFeature,
)
from tessera_tpu.arrays import as_jax, as_torch, traced
from tessera_tpu.inputs import TURNED, as_float, column_part, launch_fields, turns
from tessera_tpu.plan import AttentionPlan, Rows, Tiles
from tessera_tpu.sampling import DeviceSampler

TILE = 32
"""Queries of a row that are computed together: those of a prompt share the keys that they read."""

_NONE = np.zeros(0, np.int32)


class TracedModel:
    """The model as a function of its weights. Tensors that several of these hold are one argument."""

    # what is part of the model
    features: Sequence[WorkerFeature]
    # numbers that the features keep for each row
    columns: list[Column]
    # arguments, as the model holds them: weights, then the features', which are in the host's memory
    tensors: list[Tensor]
    # whether tokens have positions of their own, by which rotary embeddings turn them
    turning: bool

    def __init__(
        self,
        model: Model,
        ops: OpSet,
        weights: Sequence[MutableMapping[str, Tensor]],
        features: Sequence[WorkerFeature] = (),
        place: Callable[[Tensor], Any] = as_jax,
    ) -> None:
        """weights: where the model looks them up, and features' tensors if it has them too. place: copies a feature's
        tensor to the devices."""
        self.model, self.ops, self.features, self._place = model, ops, features, place
        self.columns = [column for feature in features for column in feature.columns()]
        self.turning = turns(features)
        self._places: dict[int, list[tuple[MutableMapping[str, Tensor], str]]] = {}
        others = self._collect(mapping for feature in features for mapping in feature.tensors())
        held = [tensor for number, tensor in self._collect(weights).items() if number not in others]
        self._number = len(held)
        self.tensors = [*held, *others.values()]

    def _collect(self, mappings: Iterable[MutableMapping[str, Tensor]]) -> dict[int, Tensor]:
        held: dict[int, Tensor] = {}
        for mapping in mappings:
            for part, tensor in mapping.items():
                held[id(tensor)] = tensor
                self._places.setdefault(id(tensor), []).append((mapping, part))
        return held

    @cached_property
    def values(self) -> list[Any]:
        """The arguments as JAX holds them."""
        weights, others = self.tensors[: self._number], self.tensors[self._number :]
        return [*map(as_jax, weights), *map(self._place, others)]

    def begin(self, step: SchedulerOutput) -> None:
        """Tells the features what a step opens and holds, and copies again what they change for it."""
        changed = [feature.open(step.opened) for feature in self.features] if step.opened else []
        changed += [feature.begin(step) for feature in self.features]
        if any(changed):
            self.values = [*self.values[: self._number], *map(self._place, self.tensors[self._number :])]

    @contextmanager
    def _with(self, values: Sequence[Any]) -> Iterator[None]:
        """Within it, the model computes with these weights."""
        self._exchange([as_torch(value) for value in values])
        try:
            with traced():
                yield
        finally:
            self._exchange(self.tensors)

    def _exchange(self, tensors: Sequence[Tensor]) -> None:
        for own, tensor in zip(self.tensors, tensors, strict=True):
            for mapping, part in self._places[id(own)]:
                mapping[part] = tensor

    # ---- what is compiled

    def forward(
        self, key: LaunchKey, plan: CachePlan, values: Sequence[Any], caches: Sequence[Any], tokens: Any, flat: Any
    ) -> tuple[list[Any], Any, Any]:
        """caches: by layer, its planes. tokens [rows, width] int32: of all rows. flat: as launch_fields() says. Returns
        the caches, the tokens with the drafts, and the hidden states [S, hidden] after the final norm."""
        parts = launch_fields(key, plan, self.columns, self.turning).split(flat)
        known = tokens.reshape(-1)[parts["token_at"]]
        ids = jnp.where(parts["draft"] < 0, known, parts["draft"])
        tokens = fed(tokens, parts["token_at"], ids)
        rows = Rows(*(parts[name] for name in ("row", "positions", "start", "count", "first")))
        width = 1 if key.kind == "decode" else key.width
        tiles = Tiles.from_rows(rows, width, width if key.kind == "verify" else TILE)
        by_layer: dict[int, AttentionPlan] = {}
        for number, group in enumerate(plan.groups):
            tables = jnp.pad(parts[f"tables{number}"], ((0, 1), (0, 0)))
            by_layer |= dict.fromkeys(group.layers, AttentionPlan(rows, tiles, tables, width))
        kept = list(caches)
        with self._with(values):
            launch = _launch(key, ids, parts, [by_layer[layer] for layer in sorted(by_layer)], self.columns)
            model = self.model
            hidden = model.finish(model.forward(model.embed(as_torch(ids)), launch, kept))
            return kept, tokens, as_jax(hidden)

    def logits(self, values: Sequence[Any], hidden: Any) -> Any:
        """hidden [S, hidden] -> [S, vocab]."""
        with self._with(values):
            return as_jax(self.model.logits(as_torch(hidden)))

    def sample(
        self, values: Sequence[Any], tokens: Any, hidden: Any, flat: Any, bits: Any
    ) -> tuple[Any, tuple[Any, ...]]:
        """hidden [S, hidden]. The rest, and what is returned: as in DeviceSampler."""
        sampler = DeviceSampler(self.ops, self.model.facts.vocab_size)
        with self._with(values):
            return sampler(as_jax(self.model.logits(as_torch(hidden))), tokens, flat, bits)


def fed(tokens: Any, at: Any, ids: Any) -> Any:
    """tokens [rows, width] with ids [S] at the flattened places at [S]."""
    return tokens.reshape(-1).at[at].set(ids).reshape(tokens.shape)


def opened(tokens: Any, row: Any, ids: Any) -> Any:
    """tokens [rows, width] with ids [width] in a row."""
    return tokens.at[row].set(ids)


def copied(layers: Sequence[int], caches: Sequence[Any], sources: Any, targets: Any) -> list[Any]:
    """caches with whole blocks copied in some layers."""
    return [
        tuple(plane.at[targets].set(plane[sources]) for plane in planes) if layer in layers else planes
        for layer, planes in enumerate(caches)
    ]


def _launch(
    key: LaunchKey, ids: Any, parts: Mapping[str, Any], plans: list[AttentionPlan], columns: Sequence[Column]
) -> Launch:
    return Launch(
        key=key,
        num_rows=key.rows,
        num_tokens=key.tokens,
        rows=None,
        tokens=as_torch(ids),
        positions=as_torch(parts.get(TURNED, parts["positions"])),
        query_start_loc=None,
        query_lens=as_torch(parts["count"]),
        seq_lens=as_torch(parts["first"] + parts["count"]),
        query_start_loc_host=_NONE,
        query_lens_host=_NONE,
        seq_lens_host=_NONE,
        slot_mapping=(),
        block_tables=(),
        logits_indices=as_torch(parts["at"]),
        plans=plans,
        columns={column.name: as_torch(_column(column, parts[column_part(column)])) for column in columns},
    )


def _column(column: Column, values: Any) -> Any:
    return as_float(values) if column.dtype == "float32" else values
