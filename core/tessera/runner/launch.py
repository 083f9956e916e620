"""Arrays to launches: a step's rows cut and padded as the ShapePolicy says, put into device buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array
from tessera.ops import SamplingRows
from tessera.platform.launch import ALL_POSITIONS, Launch, LaunchKey, LaunchShape, ShapePolicy, StepShape
from tessera.platform.runner import CachePlan
from tessera.runner.batch import InputBatch
from tessera.runner.buffers import DeviceBuffers
from tessera.runner.frame import Frame, filled, outline
from tessera.step import SchedulerOutput


@dataclass(frozen=True)
class Prepared:
    """A launch and what the host knows of it: its requests' rows and the position after each row's last token.

    drawing: places of the rows that draw a token. starts: the position of each row's first token, first: its place in
    the launch. scored: places of the rows that want the hidden state of each of their tokens; where there is one, the
    launch gives them out. begins [R]: where each row, padding too, begins among the tokens of all rows.
    """

    launch: Launch
    rows: Array
    next_position: Array
    drawing: Array | slice
    starts: Array
    first: Array
    scored: Array
    begins: Array


@dataclass(frozen=True)
class _Standing:
    """A frame on the device, until a launch with another takes the buffers. begins [R], token_begins [T]: where each
    row, and the row of each token, begins among the tokens of all rows."""

    outline: tuple[Any, ...]
    frame: Frame
    rows: Tensor
    query_start_loc: Tensor
    query_lens: Tensor
    logits_indices: Tensor
    begins: Array
    token_begins: Array
    tables: dict[int, Tensor] = field(default_factory=dict)
    """By group, as long as no table changes."""


class LaunchBuilder:
    """index_dtype: of slots and tables; host_lengths: "exact" where a backend asks for it. bits: of the features that
    are on."""

    def __init__(
        self, plan: CachePlan, batch: InputBatch, device_tokens: Tensor, shapes: ShapePolicy, buffers: DeviceBuffers,
        *, index_dtype: str, bits: frozenset[str],
    ) -> None:  # fmt: skip
        self.plan, self.batch, self.device_tokens = plan, batch, device_tokens.view(-1)
        self.shapes, self.buffers, self.index_dtype, self.bits = shapes, buffers, index_dtype, bits
        growing = [group for group in plan.groups if group.kind != "state"]
        self.smallest_block = min((group.block_size for group in growing), default=1)
        self.block_sizes = tuple(group.block_size for group in plan.groups)
        self.windows = tuple(group.window for group in plan.groups)
        self._standing: _Standing | None = None
        self._in_buffers: Launch | None = None
        self._tables_changed = batch.tables_changed

    def build(self, step: SchedulerOutput) -> Iterator[Prepared]:
        """The step's launches, each made when it is asked for: they share the buffers, so one must be launched before
        the next is made."""
        seq_lens = step.starts + step.num_scheduled_tokens
        for fitting in self.shapes.launches(self._shape(step, seq_lens)):
            part = slice(fitting.first, fitting.last)
            rows, starts, lengths = step.rows[part], step.starts[part], step.num_scheduled_tokens[part]
            scored = self.batch.sampling.scored_among(rows, starts)
            cut = _giving_out_all(fitting) if len(scored) else fitting
            standing = self._stand(cut, rows, lengths)
            launch = self._launch(cut.key, standing, starts, seq_lens[part])
            first = standing.frame.query_start_loc[: len(rows)]
            drawing = slice(None) if len(step.samples) == len(step.rows) else np.isin(rows, step.samples).nonzero()[0]
            yield Prepared(launch, rows, seq_lens[part], drawing, starts, first, scored, standing.begins)

    def _shape(self, step: SchedulerOutput, seq_lens: Array) -> StepShape:
        """Rows that decode come first."""
        others = step.num_scheduled_tokens != 1
        first = int(others.argmax())
        decode = first if others[first] else len(step.rows)
        blocks = (seq_lens + (self.smallest_block - 1)) // self.smallest_block
        return StepShape(decode, step.num_scheduled_tokens, seq_lens, blocks, self.bits)

    def rows_again(self, prepared: Prepared) -> Launch:
        """The launch with its rows and columns as they were, where another has taken the buffers since."""
        if prepared.launch is self._in_buffers:
            return prepared.launch
        self._standing, self._in_buffers = None, prepared.launch
        rows = filled(prepared.rows, prepared.launch.key.rows, self.batch.null_row)
        return replace(prepared.launch, rows=self.buffers.put("rows", rows, "int32"), columns=self._columns(rows))

    def empty(self, key: LaunchKey) -> Launch:
        """A launch of this shape in which all is padding."""
        none = np.zeros(0, np.int32)
        return self._launch(key, self._stand(LaunchShape(key, 0, 0), none, none), none, none)

    def _launch(self, key: LaunchKey, standing: _Standing, starts: Array, ends: Array) -> Launch:
        put, frame = self.buffers.put, standing.frame
        seq_lens, positions = frame.by_row(ends), frame.positions(starts)
        launch = self._in_buffers = Launch(
            key=key,
            num_rows=frame.num_rows,
            num_tokens=frame.num_tokens,
            rows=standing.rows,
            tokens=self._tokens(standing, positions),
            positions=put("positions", positions, "int32"),
            query_start_loc=standing.query_start_loc,
            query_lens=standing.query_lens,
            seq_lens=put("seq_lens", seq_lens, "int32"),
            seq_lens_host=seq_lens,
            query_lens_host=frame.query_lens,
            host_lengths="exact",
            slot_mapping=[
                put(f"slot_mapping{number}", values, self.index_dtype)
                for number, values in enumerate(self._slots(frame, positions))
            ],
            block_tables=[self._table(standing, number, key) for number in range(len(self.plan.groups))],
            logits_indices=standing.logits_indices,
            block_sizes=self.block_sizes,
            columns=self._columns(frame.rows),
            windows=self.windows,
        )
        return launch

    def _stand(self, cut: LaunchShape, rows: Array, lengths: Array) -> _Standing:
        """The frame on the device: the one before where this launch's is the same."""
        asked = outline(cut, rows, lengths)
        if self._standing is None or self._standing.outline != asked:
            put, frame = self.buffers.put, Frame.of(cut, rows, lengths, self.batch.null_row)
            width = self.batch.tokens.shape[1]
            self._standing = _Standing(
                asked,
                frame,
                rows=put("rows", frame.rows, "int32"),
                query_start_loc=put("query_start_loc", frame.query_start_loc, "int32"),
                query_lens=put("query_lens", frame.query_lens, "int32"),
                logits_indices=put("logits_indices", frame.logits_indices, "int32"),
                begins=frame.rows.astype(np.int64) * width,
                token_begins=frame.token_rows * width,
            )
        if self._tables_changed != self.batch.tables_changed:
            self._standing.tables.clear()
            self._tables_changed = self.batch.tables_changed
        return self._standing

    def _tokens(self, standing: _Standing, positions: Array) -> Tensor:
        """Out of the device's rows, where drawn tokens are."""
        at = self.buffers.put("token_at", standing.token_begins + positions, "int64")
        tokens: Tensor = self.buffers.get("tokens", positions.shape, "int32")
        return torch.index_select(self.device_tokens, 0, at, out=tokens)

    def feed(self, prepared: Prepared, launch: Launch, tokens: Tensor) -> None:
        """Drawn tokens into the device's rows, where the next step reads them; rows that draw nothing write into the
        last column, which is nobody's."""
        begins, own = prepared.begins, prepared.begins[: len(prepared.rows)]
        at = begins + self.batch.spare
        at[: len(own)][prepared.drawing] = (own + prepared.next_position)[prepared.drawing]
        self.device_tokens.index_copy_(0, self.buffers.put("feed", at, "int64"), tokens)

    def _columns(self, rows: Array) -> dict[str, Tensor]:
        return {
            name: self.buffers.put(f"column_{name}", column[rows], column.dtype.name)
            for name, column in self.batch.columns.items()
        }

    def _slots(self, frame: Frame, positions: Array) -> Iterator[Array]:
        """By group: where each token's keys and values go; the null row's, and so padding, to block 0."""
        for group, table in zip(self.plan.groups, self.batch.tables, strict=True):
            if group.kind == "state":
                yield np.zeros(0, np.int32)
                continue
            index = positions // group.block_size
            slots = table.reshape(-1).take(frame.token_rows * table.shape[1] + index)
            slots -= index
            slots *= group.block_size
            slots += positions
            yield slots

    def _table(self, standing: _Standing, number: int, key: LaunchKey) -> Tensor:
        group, table, held = self.plan.groups[number], self.batch.tables[number], standing.tables.get(number)
        columns = 1
        if group.kind != "state":
            columns = min(-(-key.blocks * self.smallest_block // group.block_size), table.shape[1])
        if held is None or held.shape[1] != columns:
            values = table[standing.frame.rows, :columns]
            held = standing.tables[number] = self.buffers.put(f"tables{number}", values, self.index_dtype)
        return held


def _giving_out_all(cut: LaunchShape) -> LaunchShape:
    return replace(cut, key=replace(cut.key, bits=cut.key.bits | {ALL_POSITIONS}))


def buffer_sizes(rows: int, tokens: int, plan: CachePlan, columns: Iterable[str]) -> dict[str, int]:
    """Elements of the buffers of the largest launch and of its sampling. columns: of the features."""
    sizes = dict.fromkeys(("positions", "token_at", "tokens"), tokens)
    sizes |= dict.fromkeys(("rows", "query_lens", "seq_lens", "feed"), rows)
    sizes["query_start_loc"] = rows + 1
    sizes["logits_indices"] = rows + tokens
    sizes |= dict.fromkeys((f"sampling_{name}" for name in SamplingRows._fields), rows)
    sizes |= dict.fromkeys((f"column_{name}" for name in columns), rows)
    for number, group in enumerate(plan.groups):
        sizes[f"slot_mapping{number}"] = tokens
        sizes[f"tables{number}"] = rows * group.blocks_of(plan.max_model_len)
    return sizes


def widest(keys: Sequence[LaunchKey], rows: int, tokens: int) -> tuple[int, int]:
    """Rows and tokens of the largest launch: what the scheduler may ask for, or what a bounded policy pads to."""
    return max([rows, *(key.rows for key in keys)]), max([tokens, *(key.tokens for key in keys)])
