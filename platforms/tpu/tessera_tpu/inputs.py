"""What a launch reads from the host: one array of int32, so that it costs one copy to the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.platform import (
    Array,
    CachePlan,
    Column,
    InputBatch,
    LaunchKey,
    LaunchRows,
    LaunchShape,
    SchedulerOutput,
    ShapePolicy,
    StepShape,
    WorkerFeature,
    asked_bits,
    prompt_bits,
)


class Fields:
    """The parts of such an array. shapes: of each by name, in their order. size: elements of the array."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._places: list[tuple[str, slice, tuple[int, ...]]] = []
        self.size = 0
        for name, shape in shapes.items():
            start, self.size = self.size, self.size + prod(shape)
            self._places.append((name, slice(start, self.size), shape))

    def split(self, flat: Any) -> dict[str, Any]:
        """The parts of an array, as views where it is a NumPy array."""
        return {name: flat[place].reshape(shape) for name, place, shape in self._places}

    def empty(self) -> tuple[Array, dict[str, Array]]:
        """A new array of zeros, and its parts."""
        flat = np.zeros(self.size, np.int32)
        return flat, self.split(flat)


def as_float(bits: Any) -> Any:
    """float32 that the host stored in an array of int32."""
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


TURNED = "turned"


def with_prompts(key: LaunchKey) -> bool:
    return key.kind not in ("decode", "verify")


def turns(features: Sequence[WorkerFeature]) -> bool:
    """Whether a feature says by which positions rotary embeddings turn tokens."""
    return any(type(feature).positions is not WorkerFeature.positions for feature in features)


def launch_fields(key: LaunchKey, plan: CachePlan, columns: Sequence[Column] = (), turning: bool = False) -> Fields:
    """token_at [T]: where each token is in the flattened table of all rows' tokens. draft [T]: the token, if it is a
    draft, which the host has, else -1. row, positions [T], start, count, first [R]: as in Rows. at [S]: the tokens
    whose hidden states become logits. tables0, ... [R, blocks]: block tables by cache group. By column_part(), the
    columns of features, [R] or [T]. turned [T]: the positions that rotary embeddings turn tokens by, if these are not
    `positions` everywhere."""
    tokens, rows = (key.tokens,), (key.rows,)
    fields: dict[str, tuple[int, ...]] = {"token_at": tokens, "draft": tokens, "row": tokens, "positions": tokens}
    fields |= {"start": rows, "count": rows, "first": rows, "at": (key.num_samples,)}
    fields |= {TURNED: tokens} if turning else {}
    widths = (group.blocks_of(plan.max_model_len) for group in plan.groups)
    fields |= {f"tables{number}": (key.rows, width) for number, width in enumerate(widths)}
    return Fields(fields | {column_part(column): rows if column.each == "row" else tokens for column in columns})


def column_part(column: Column) -> str:
    return f"column {column.name}"


@dataclass(frozen=True)
class Prepared:
    """A launch. inputs: its array. places [n]: those of its S hidden states at which a token is sampled. rows,
    positions [n] int32: of these tokens, in the order of sampled_at()."""

    key: LaunchKey
    inputs: Array
    places: Array
    rows: Array
    positions: Array


class Launches:
    """Divides steps into launches. features: whose columns and bits launches have. width: tokens of a row in the table
    of all rows' tokens, whose last row is for padding."""

    def __init__(
        self, plan: CachePlan, batch: InputBatch, shapes: ShapePolicy, features: Sequence[WorkerFeature] = ()
    ) -> None:
        self.plan, self.batch, self.shapes, self.features = plan, batch, shapes, features
        self.columns = [column for feature in features for column in feature.columns()]
        self.turning, self.prompt_bits = turns(features), prompt_bits(features)
        self.width = batch.tokens.shape[1]
        self.spare = plan.num_rows * self.width
        self._fields: dict[LaunchKey, Fields] = {}

    def prepare(self, step: SchedulerOutput) -> Iterator[Prepared]:
        counts, drafted = step.num_scheduled_tokens, 0
        others = counts != 1
        first = int(others.argmax())
        decode = first if others[first] and not len(step.drafts) else len(counts)
        ends = step.starts + counts
        bits = asked_bits(self.features, self.batch.columns, step.rows)
        for shape in self.shapes.launches(StepShape(decode, counts, ends, np.ones_like(counts), bits)):
            part = slice(shape.first, shape.last)
            rows, starts, lengths = step.rows[part], step.starts[part], counts[part]
            drafts = int(lengths.sum()) - len(rows) if shape.key.kind == "verify" else 0
            yield self._launch(shape, rows, starts, lengths, step.drafts[drafted : drafted + drafts], step.samples)
            drafted += drafts

    def _fields_of(self, key: LaunchKey) -> Fields:
        if key not in self._fields:
            self._fields[key] = launch_fields(key, self.plan, self.columns, self.turning)
        return self._fields[key]

    def _fill(self, parts: Mapping[str, Array], launch: LaunchRows) -> None:
        """What features say of a launch's tokens."""
        if self.turning:
            parts[TURNED][:] = parts["positions"]
        for feature in self.features:
            for name, values in feature.token_columns(launch).items():
                parts[f"column {name}"][:] = values.view(np.int32)
            positions = feature.positions(launch)
            if positions is not None:
                parts[TURNED][:] = positions

    def _launch(
        self, shape: LaunchShape, rows: Array, starts: Array, lengths: Array, drafts: Array, samples: Array
    ) -> Prepared:
        key, number = shape.key, len(rows)
        if not with_prompts(key):
            key = replace(key, bits=key.bits - self.prompt_bits)
        flat, parts = self._fields_of(key).empty()
        begin = np.arange(number) * shape.stride if shape.stride else np.cumsum(lengths) - lengths
        row_of = np.repeat(np.arange(number), lengths)
        within = np.arange(len(row_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        place, positions = begin[row_of] + within, starts[row_of] + within
        parts["token_at"][:] = self.spare
        parts["token_at"][place] = rows[row_of] * self.width + positions
        parts["draft"][:] = -1
        parts["row"][:] = key.rows
        parts["row"][place], parts["positions"][place] = row_of, positions
        parts["start"][number:] = key.tokens
        parts["start"][:number], parts["count"][:number], parts["first"][:number] = begin, lengths, starts
        for group, table in enumerate(self.batch.tables):
            own = parts[f"tables{group}"]
            own[:number] = table[rows, : own.shape[1]]
        for column in self.columns:
            own, values = parts[column_part(column)], self.batch.columns[column.name].view(np.int32)
            own[:] = np.array(column.default, column.dtype).view(np.int32)
            if column.each == "token":
                own[place] = values[rows[row_of]]
            else:
                own[:number] = values[rows]
        self._fill(parts, LaunchRows(key.bits, key.tokens, rows, starts, lengths, begin))
        if key.kind == "verify":
            parts["draft"][place[within > 0]] = drafts
            parts["at"][:] = np.arange(key.tokens)
            return Prepared(key, flat, place, rows[row_of], (positions + 1).astype(np.int32))
        parts["at"][:number] = begin + lengths - 1
        places = np.isin(rows, samples).nonzero()[0]
        return Prepared(key, flat, places, rows[places], (starts + lengths)[places])
