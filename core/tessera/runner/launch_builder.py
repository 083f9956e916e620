"""Turns a step into launches: the rows of the batch, split and padded as the ShapePolicy says, and copied into device
buffers that keep their addresses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array, int32, ranges
from tessera.platform.feature import WorkerFeature, asked_bits
from tessera.platform.launch import ALL_POSITIONS, Launch, LaunchKey
from tessera.platform.runner import CachePlan
from tessera.platform.shapes import LaunchShape, ShapePolicy, StepShape
from tessera.runner.device_buffers import DeviceBuffers
from tessera.runner.input_batch import CoreInputBatch
from tessera.runner.input_layout import InputLayout, fill_up, layout_key
from tessera.step import SchedulerOutput


@dataclass(frozen=True)
class PreparedLaunch:
    """A launch and what the host knows about it. S hidden states become logits: of its rows, or, in a launch that
    verifies drafts, of its T tokens."""

    launch: Launch
    # [n]: of its requests, without padding.
    rows: Array
    # The row of each of the S, without padding of rows; in a launch that verifies drafts, the null row for padding.
    sampled_rows: Array
    # The position after each of sampled_rows.
    next_position: Array
    # Places among sampled_rows at which a token is sampled.
    sampling: Array | slice
    # [n]: the position of each row's first token.
    starts: Array
    # [n]: the place of each row's first token in the launch.
    first: Array
    # Places of the rows that need log probabilities of the prompt tokens they compute; if there are any, the launch has
    # ALL_POSITIONS.
    prompt_logprobs: Array
    # Places of the rows that pool; if one of them pools the states of several tokens, the launch has ALL_POSITIONS.
    pooled: Array
    # [S] int64: the offset of the row of each, padding included, in the flattened device_tokens.
    row_offsets: Array
    # For each place of `sampling`, the draft that follows; -1 after the last one of a row. None without drafts.
    drafts: Array | None


@dataclass(frozen=True)
class _PlacedLayout:
    """A layout in the device buffers, valid until a launch with another layout overwrites them."""

    layout_key: tuple[Any, ...]
    layout: InputLayout
    # Of the layout, on the device.
    rows: Tensor
    query_start_loc: Tensor
    query_lens: Tensor
    logits_indices: Tensor
    # [R] and [T]: the offsets of each row, and of each token's row, in the flattened device_tokens.
    row_offsets: Array
    token_offsets: Array
    # Block tables by group, on the device and on the host; valid until a block table changes.
    tables: dict[int, Tensor] = field(default_factory=dict)
    host_tables: dict[int, Array] = field(default_factory=dict)


class LaunchBuilder:
    """Builds the launches of a step."""

    def __init__(
        self,
        plan: CachePlan,
        batch: CoreInputBatch,
        device_tokens: Tensor,
        shapes: ShapePolicy,
        buffers: DeviceBuffers,
        *,
        index_dtype: str,
        features: Sequence[WorkerFeature] = (),
        host_tables: Collection[int] = (),
        all_states: bool = False,
    ) -> None:
        self.plan, self.batch, self.shapes, self.buffers = plan, batch, shapes, buffers
        # [rows * (max_model_len + 1)] int32: the tokens of all rows, on the device, including sampled ones.
        self.device_tokens = device_tokens.view(-1)
        # Capabilities.index_dtype.
        self.index_dtype = index_dtype
        # The enabled ones.
        self.features = features
        # Cache groups of which launches have block tables on the host too.
        self.host_tables = host_tables
        # Whether launches return the states of all tokens, which a layer that makes drafts goes on from.
        self.all_states = all_states
        growing = [group for group in plan.groups if group.grows]
        self.smallest_block = min((group.block_size for group in growing), default=plan.max_model_len)
        self.block_sizes = tuple(group.block_size for group in plan.groups)
        self.windows = tuple(group.window for group in plan.groups)
        self._current: _PlacedLayout | None = None
        self._in_buffers: Launch | None = None
        self._tables_changed = batch.tables_changed

    def build(
        self, step: SchedulerOutput, bits: frozenset[str] = frozenset(), *, ahead: int = 0
    ) -> Iterator[PreparedLaunch]:
        """Yields the launches of a step. They share buffers, so each must be launched before the next is built. bits:
        of their keys, beside those that the step's rows ask for. ahead: in place of each token they have the one that
        follows so many places later, as it is once the step has sampled."""
        if not len(step.rows):
            return
        seq_lens = step.starts + step.num_scheduled_tokens
        if not ahead:
            self._write_drafts(step)
        sources = {} if step.media is None else {one.row: len(one.slots) for one in step.media.sources}
        drafted = 0
        for exact in self.shapes.launches(self._shape(step, seq_lens, bits)):
            part = slice(exact.first, exact.last)
            rows, starts, lengths = step.rows[part], step.starts[part], step.num_scheduled_tokens[part]
            prompt_logprobs = self.batch.sampling.prompt_logprobs_among(rows, starts)
            pooled = self.batch.pooled_among(rows)
            every = len(prompt_logprobs) or (len(pooled) and self.batch.pools_every_token(rows[pooled]))
            every = every or (self.all_states and not exact.key.samples_all)
            shape = _with_all_positions(exact) if every else exact
            placed = self._placed(shape, rows, lengths)
            launch = self._launch(shape.key, placed, starts, seq_lens[part], sources, ahead)
            first = placed.layout.query_start_loc[: len(rows)]
            if shape.key.kind == "verify":
                last, drafted = drafted, drafted + int(lengths.sum()) - len(rows)
                yield self._verifying(placed, launch, starts, step.drafts[last:drafted], pooled)
                continue
            sampling: Array | slice = slice(None)
            if len(step.samples) != len(step.rows) or len(pooled):
                samples = np.zeros(self.plan.num_rows, dtype=bool)
                samples[step.samples] = True
                samples[rows[pooled]] = False
                sampling = samples[rows].nonzero()[0]
            yield PreparedLaunch(
                launch=launch,
                rows=rows,
                sampled_rows=rows,
                next_position=seq_lens[part],
                sampling=sampling,
                starts=starts,
                first=first,
                prompt_logprobs=prompt_logprobs,
                pooled=pooled,
                row_offsets=placed.row_offsets,
                drafts=None,
            )

    def _verifying(
        self, placed: _PlacedLayout, launch: Launch, starts: Array, drafts: Array, pooled: Array
    ) -> PreparedLaunch:
        """Each token is sampled as if it were a row of its own."""
        layout = placed.layout
        sampling = slice(None) if layout.token_places is None else layout.token_places
        if len(pooled):
            places = np.arange(layout.num_tokens)[sampling]
            sampling = places[~np.isin(layout.row_of[places], pooled)]
        next_drafts = np.full(layout.num_tokens, -1, np.int32)
        next_drafts[layout.within + 1 < layout.query_lens[layout.row_of]] = drafts
        return PreparedLaunch(
            launch=launch,
            rows=layout.rows[: layout.num_rows],
            sampled_rows=layout.token_rows.astype(np.int32),
            next_position=layout.positions(starts) + 1,
            sampling=sampling,
            starts=starts,
            first=layout.query_start_loc[: layout.num_rows],
            prompt_logprobs=np.zeros(0, np.intp),
            pooled=pooled,
            row_offsets=placed.token_offsets,
            drafts=next_drafts,
        )

    def _write_drafts(self, step: SchedulerOutput) -> None:
        """Puts drafts behind the newest tokens of their rows, where they are read as any other token."""
        if not len(step.drafts):
            return
        counts, width = step.num_scheduled_tokens - 1, self.batch.tokens.shape[1]
        at = ranges(step.rows.astype(np.int64) * width + step.starts + 1, counts)
        drafts = self.buffers.put("drafts", step.drafts, "int32")
        self.device_tokens.index_put_((self.buffers.put("draft_at", at, self.index_dtype),), drafts)

    def _shape(self, step: SchedulerOutput, seq_lens: Array, bits: frozenset[str]) -> StepShape:
        """The shape of a step, whose decode rows come first. A step with drafts has no others."""
        others = step.num_scheduled_tokens != 1
        first = int(others.argmax())
        decode = first if others[first] and not len(step.drafts) else len(step.rows)
        blocks = (seq_lens + (self.smallest_block - 1)) // self.smallest_block
        return StepShape(
            decode,
            step.num_scheduled_tokens,
            seq_lens,
            blocks,
            asked_bits(self.features, self.batch.columns, step.rows) | bits,
        )

    def restore_rows(self, prepared: PreparedLaunch) -> Launch:
        """The launch as sampling sees it: with its rows and their columns written again if another launch has
        overwritten their buffers, and, if it verifies drafts, with those of each token."""
        if prepared.drafts is not None:
            return self._by_sample(prepared.launch, prepared.sampled_rows)
        if prepared.launch is self._in_buffers:
            return prepared.launch
        self._current, self._in_buffers = None, prepared.launch
        rows = fill_up(prepared.rows, prepared.launch.key.rows, self.batch.null_row)
        columns = {**prepared.launch.columns, **self._columns(rows)}
        return replace(prepared.launch, rows=self.buffers.put("rows", rows, "int32"), columns=columns)

    def empty(self, key: LaunchKey) -> Launch:
        """A launch of this shape that is all padding."""
        none = np.zeros(0, np.int32)
        return self._launch(key, self._placed(LaunchShape(key, 0, 0), none, none), none, none)

    def empty_sampled(self, launch: Launch) -> Launch:
        """A launch of padding alone, as sampling sees it."""
        key, null_row = launch.key, self.batch.null_row
        return self._by_sample(launch, np.full(key.tokens, null_row, np.int32)) if key.kind == "verify" else launch

    def _by_sample(self, launch: Launch, rows: Array) -> Launch:
        columns = self._columns(rows, "sampled_column")
        return replace(launch, rows=self.buffers.put("sampled_rows", rows, "int32"), columns=columns)

    def _launch(
        self,
        key: LaunchKey,
        placed: _PlacedLayout,
        starts: Array,
        ends: Array,
        sources: Mapping[int, int] = MappingProxyType({}),
        ahead: int = 0,
    ) -> Launch:
        """sources: by row that begins in the step, how many positions its encoder has. ahead: as of build()."""
        put, layout = self.buffers.put, placed.layout
        seq_lens, positions = layout.by_row(ends), layout.positions(starts)
        launch = self._in_buffers = Launch(
            key=key,
            num_rows=layout.num_rows,
            num_tokens=layout.num_tokens,
            rows=placed.rows,
            tokens=self._tokens(placed, positions + ahead),
            positions=put("positions", positions, "int32"),
            query_start_loc=placed.query_start_loc,
            query_lens=placed.query_lens,
            seq_lens=put("seq_lens", seq_lens, "int32"),
            query_start_loc_host=layout.query_start_loc,
            query_lens_host=layout.query_lens,
            seq_lens_host=seq_lens,
            slot_mapping=[
                put(f"slot_mapping{number}", values, self.index_dtype)
                for number, values in enumerate(self._slots(layout, positions, sources))
            ],
            block_tables=[self._table(placed, number, key) for number in range(len(self.plan.groups))],
            logits_indices=placed.logits_indices,
            block_tables_host=[placed.host_tables.get(number) for number in range(len(self.plan.groups))],
            block_sizes=self.block_sizes,
            columns={**self._columns(layout.rows), **self._columns(layout.token_rows, each_token=True)},
            windows=self.windows,
            rows_host=layout.rows,
        )
        return launch

    def _placed(self, shape: LaunchShape, rows: Array, lengths: Array) -> _PlacedLayout:
        """Writes the layout of a launch into the buffers, unless it is already there."""
        key = layout_key(shape, rows, lengths)
        if self._current is None or self._current.layout_key != key:
            put, layout = self.buffers.put, InputLayout.build(shape, rows, lengths, self.batch.null_row)
            width = self.batch.tokens.shape[1]
            self._current = _PlacedLayout(
                key,
                layout,
                rows=put("rows", layout.rows, "int32"),
                query_start_loc=put("query_start_loc", layout.query_start_loc, "int32"),
                query_lens=put("query_lens", layout.query_lens, "int32"),
                logits_indices=put("logits_indices", layout.logits_indices, "int32"),
                row_offsets=layout.rows.astype(np.int64) * width,
                token_offsets=layout.token_rows * width,
            )
        if self._tables_changed != self.batch.tables_changed:
            self._current.tables.clear()
            self._tables_changed = self.batch.tables_changed
        return self._current

    def _tokens(self, placed: _PlacedLayout, positions: Array) -> Tensor:
        """The input tokens, gathered on the device, since only the device has the newest sampled tokens."""
        at = self.buffers.put("token_at", placed.token_offsets + positions, self.index_dtype)
        tokens: Tensor = self.buffers.get("tokens", positions.shape, "int32")
        return torch.index_select(self.device_tokens, 0, at, out=tokens)

    def feed(self, prepared: PreparedLaunch, launch: Launch, tokens: Tensor) -> None:
        """Writes the sampled tokens [S] into device_tokens, where the next step reads them; those behind a rejected
        draft are overwritten by then. Rows that do not sample write into the scratch column."""
        offsets, unpadded = prepared.row_offsets, prepared.row_offsets[: len(prepared.sampled_rows)]
        at = offsets + self.batch.spare
        at[: len(unpadded)][prepared.sampling] = (unpadded + prepared.next_position)[prepared.sampling]
        self.device_tokens.index_put_((self.buffers.put("feed", at, self.index_dtype),), tokens)

    def store(self, rows: Array, positions: Array, tokens: Tensor) -> None:
        """Writes a draft [n] of each row into device_tokens, at these positions [n]."""
        at = rows.astype(np.int64) * self.batch.tokens.shape[1] + positions
        self.device_tokens.index_put_((self.buffers.put("draft_at", at, self.index_dtype),), tokens)

    def _columns(self, rows: Array, kind: str = "column", *, each_token: bool = False) -> dict[str, Tensor]:
        """The columns that a launch has for each row, or for each token. rows: of each."""
        return {
            name: self.buffers.put(f"{kind}_{name}", column[rows], column.dtype.name)
            for name, column in self.batch.columns.items()
            if (name in self.batch.token_columns) == each_token
        }

    def _slots(self, layout: InputLayout, positions: Array, sources: Mapping[int, int]) -> Iterator[Array]:
        """The slot of each token, by group, or of each position of the encoders whose rows begin. Padding has the null
        row, so it goes to block 0."""
        for group, table in zip(self.plan.groups, self.batch.tables, strict=True):
            if not group.grows:
                begun = [row for row in layout.rows[: layout.num_rows].tolist() if row in sources]
                parts = [_all_slots(table[row], group.block_size, sources[row]) for row in begun]
                yield np.concatenate([int32(), *parts]) if group.kind == "cross" else int32()
                continue
            index = positions // group.block_size
            slots = table.reshape(-1).take(layout.token_rows * table.shape[1] + index)
            slots -= index
            slots *= group.block_size
            slots += positions
            yield slots

    def _table(self, placed: _PlacedLayout, number: int, key: LaunchKey) -> Tensor:
        group, table, current = self.plan.groups[number], self.batch.tables[number], placed.tables.get(number)
        columns = group.blocks_of(0)
        if group.grows:
            columns = min(-(-key.blocks * self.smallest_block // group.block_size), table.shape[1])
        if current is None or current.shape[1] != columns:
            values = table[placed.layout.rows, :columns]
            if number in self.host_tables:
                placed.host_tables[number] = values
            current = placed.tables[number] = self.buffers.put(f"tables{number}", values, self.index_dtype)
        return current


def _all_slots(blocks: Array, size: int, number: int) -> Array:
    """Those of the first `number` positions in a row's blocks."""
    slots: Array = (blocks[:, None] * size + np.arange(size, dtype=np.int32)).reshape(-1)[:number]
    return slots


def _with_all_positions(shape: LaunchShape) -> LaunchShape:
    return replace(shape, key=replace(shape.key, bits=shape.key.bits | {ALL_POSITIONS}))
