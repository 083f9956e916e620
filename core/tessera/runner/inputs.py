"""Turns a step into the inputs of launches: host arrays by row, split and padded as the ShapePolicy says, and copied
into device buffers that keep their addresses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array
from tessera.config.engine import EngineConfig, SchedulerConfig
from tessera.errors import ConfigError
from tessera.ops import SamplingRows
from tessera.ops.tensors import torch_dtype
from tessera.platform.device import Device
from tessera.platform.feature import Column, WorkerFeature, asked_bits
from tessera.platform.launch import ALL_POSITIONS, Launch, LaunchKey
from tessera.platform.runner import CachePlan
from tessera.platform.shapes import LaunchShape, ShapePolicy, StepShape
from tessera.runner.sampler import SamplingColumns
from tessera.step import BlockDelta, RowOpened, SchedulerOutput


class InputBatch:
    """The state of all rows on the host. One extra row, the null row, is for padding.

    tokens [rows, max_model_len + 1] int32: the tokens known when the row was opened; the last column is scratch.
    tables: the block table of each group, [rows, blocks] int32. tables_changed: how often they changed. token_columns:
    names of the columns that a launch has for each token. eos, vocab: the model's end-of-text tokens and the size of
    its vocabulary.
    """

    def __init__(self, plan: CachePlan, columns: Sequence[Column], *, eos: Sequence[int], vocab: int) -> None:
        rows = plan.num_rows + 1
        self.null_row = plan.num_rows
        self.spare = plan.max_model_len
        self.tokens: Array = np.zeros((rows, plan.max_model_len + 1), np.int32)
        self.tables: list[Array] = [
            np.zeros((rows, group.blocks_of(plan.max_model_len)), np.int32) for group in plan.groups
        ]
        self.tables_changed = 0
        self.sampling = SamplingColumns(rows, eos, vocab)
        self.columns: dict[str, Array] = {c.name: np.full(rows, c.default, c.dtype) for c in columns}
        self.token_columns = frozenset(c.name for c in columns if c.each == "token")
        self._defaults = {c.name: c.default for c in columns}

    def apply(self, step: SchedulerOutput) -> None:
        """Applies the rows that a step opens and the blocks that rows get."""
        for opened in step.opened:
            self._open(opened)
        for table, delta in zip(self.tables, step.blocks, strict=True):
            if len(delta.rows):
                write_blocks(table, delta)
                self.tables_changed += 1

    def _open(self, opened: RowOpened) -> None:
        row = opened.row
        self.tokens[row, : len(opened.tokens)] = opened.tokens
        for table in self.tables:
            table[row] = 0
        self.tables_changed += 1
        self.sampling.open(opened)
        for name, column in self.columns.items():
            column[row] = opened.columns.get(name, self._defaults[name])


def write_blocks(table: Array, delta: BlockDelta) -> None:
    """Writes counts[i] blocks into row rows[i] from column starts[i] on."""
    if len(delta.blocks) == len(delta.rows):
        table[delta.rows, delta.starts] = delta.blocks
        return
    ends = np.cumsum(delta.counts)
    columns = np.arange(ends[-1]) + np.repeat(delta.starts - (ends - delta.counts), delta.counts)
    table[np.repeat(delta.rows, delta.counts), columns] = delta.blocks


class DeviceBuffers:
    """Device tensors by name that keep their addresses. sizes: number of elements for the names whose shapes vary from
    launch to launch; each of their shapes is a view of the start of one tensor. Any other name has one tensor for each
    number of elements."""

    def __init__(self, device: Device, sizes: dict[str, int] | None = None) -> None:
        self.device, self.sizes = device, sizes or {}
        self._flat: dict[tuple[str, str, int], Tensor] = {}
        self._newest: dict[str, tuple[Sequence[int], str, Tensor]] = {}

    def get(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        newest = self._newest.get(name)
        if newest is None or newest[0] != shape or newest[1] != dtype:
            newest = self._newest[name] = (shape, dtype, self._made(name, shape, dtype))
        return newest[2]

    def _made(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        number = prod(shape)
        size = self.sizes.get(name, number)
        assert number <= size, (name, shape, size)
        flat = self._flat.get((name, dtype, size))
        if flat is None:
            flat = torch.empty(size, dtype=torch_dtype(dtype), device=self.device.target)
            self._flat[name, dtype, size] = flat
        return flat[:number].view(*shape)

    def put(self, name: str, values: Any, dtype: str) -> Tensor:
        host = np.ascontiguousarray(values)
        placed: Tensor = self.device.to_device(host, self.get(name, host.shape, dtype))
        return placed


@dataclass(frozen=True)
class InputLayout:
    """The inputs that depend only on the rows of a launch and their query_lens, not on positions, so that they stay the
    same from one decode step to the next. There are R places for rows and T for tokens; num_rows and num_tokens of them
    are used.

    rows, query_start_loc, query_lens, logits_indices: as in Launch, on the host. row_of [num_tokens]: the place of each
    token's row in the launch. within [num_tokens] int32: the index of each token among those of its row. at
    [num_tokens]: the place of each token in the launch; None if the tokens fill all places in order. token_rows [T]:
    the row of the token at each place; the null row for padding.
    """

    num_rows: int
    num_tokens: int
    rows: Array
    query_start_loc: Array
    query_lens: Array
    row_of: Array
    within: Array
    at: Array | None
    token_rows: Array
    logits_indices: Array

    @classmethod
    def of(cls, shape: LaunchShape, rows: Array, lengths: Array, null_row: int) -> InputLayout:
        key, num_rows, num_tokens = shape.key, len(rows), int(lengths.sum())
        padded, query_lens = _filled(rows, key.rows, null_row), _filled(lengths, key.rows, 0)
        query_start_loc = _start_loc(shape, query_lens)
        row_of = np.repeat(np.arange(num_rows), lengths)
        within = np.arange(num_tokens) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        at = query_start_loc[row_of] + within
        in_order = num_tokens == key.tokens and bool((at == np.arange(num_tokens)).all())
        token_rows = np.full(key.tokens, null_row)
        token_rows[at] = rows[row_of]
        if key.kind == "verify":
            logits_indices = np.arange(key.tokens, dtype=np.int32)
        else:
            logits_indices = np.where(query_lens > 0, query_start_loc[:-1] + query_lens - 1, 0).astype(np.int32)
        if ALL_POSITIONS in key.bits:
            logits_indices = np.concatenate((logits_indices, np.arange(key.tokens, dtype=np.int32)))
        return cls(
            num_rows, num_tokens, padded, query_start_loc, query_lens, row_of, within.astype(np.int32),
            None if in_order else at, token_rows, logits_indices,
        )  # fmt: skip

    def by_row(self, values: Array) -> Array:
        """values [num_rows] int32, padded with zeros to [R]."""
        return values if len(self.rows) == self.num_rows else _filled(values, len(self.rows), 0)

    def positions(self, starts: Array) -> Array:
        """The position of the token at each place, [T] int32; 0 for padding. starts [num_rows] int32: the position of
        each row's first token."""
        if self.num_tokens == self.num_rows and self.at is None:
            return starts
        positions: Array = starts.take(self.row_of)
        positions += self.within
        if self.at is None:
            return positions
        placed: Array = np.zeros(len(self.token_rows), np.int32)
        placed[self.at] = positions
        return placed


def layout_key(shape: LaunchShape, rows: Array, lengths: Array) -> tuple[Any, ...]:
    """A key that is equal for launches with the same InputLayout."""
    key = shape.key
    return (
        key.rows,
        key.tokens,
        shape.stride,
        key.kind == "verify",
        ALL_POSITIONS in key.bits,
        rows.tobytes(),
        lengths.tobytes(),
    )


def _start_loc(shape: LaunchShape, lengths: Array) -> Array:
    """[R + 1] int32: where each row starts in the launch, and where the last one ends."""
    if shape.stride:
        return np.arange(len(lengths) + 1, dtype=np.int32) * shape.stride
    result = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=result[1:])
    return result


def _filled(values: Array, size: int, filler: int) -> Array:
    result = np.full(size, filler, np.int32)
    result[: len(values)] = values
    return result


@dataclass(frozen=True)
class PreparedLaunch:
    """A launch and what the host knows about it. rows: the rows of its requests, without padding.

    starts: for each row, the position of its first token. first: the place of its first token in the launch.
    prompt_logprobs: places of the rows that need log probabilities of the prompt tokens they compute; if there are any,
    the launch has ALL_POSITIONS.

    sampled_rows: the row of each hidden state that becomes logits: `rows`, or, in a launch that verifies drafts, the
    row of each of the T tokens, which is the null row for padding. next_position: the position after each of them.
    sampling: places among them at which a token is sampled. row_offsets [S] int64: the offset of the row of each,
    padding included, in the flattened device_tokens. drafts: for each place of `sampling`, the draft that follows; -1
    after the last one of a row. None without drafts.
    """

    launch: Launch
    rows: Array
    sampled_rows: Array
    next_position: Array
    sampling: Array | slice
    starts: Array
    first: Array
    prompt_logprobs: Array
    row_offsets: Array
    drafts: Array | None


@dataclass(frozen=True)
class _PlacedLayout:
    """A layout in the device buffers, valid until a launch with another layout overwrites them. row_offsets [R] and
    token_offsets [T]: the offsets of each row, and of each token's row, in the flattened device_tokens. tables,
    host_tables: block tables by group, valid until a block table changes."""

    layout_key: tuple[Any, ...]
    layout: InputLayout
    rows: Tensor
    query_start_loc: Tensor
    query_lens: Tensor
    logits_indices: Tensor
    row_offsets: Array
    token_offsets: Array
    tables: dict[int, Tensor] = field(default_factory=dict)
    host_tables: dict[int, Array] = field(default_factory=dict)


def refuse_uncounted(config: EngineConfig, index_dtype: str) -> None:
    """Raises ConfigError if the table of all rows' tokens has more elements than a device's indices count."""
    rows, max_model_len = config.scheduler.max_num_seqs, config.model.max_model_len
    if (rows + 1) * (max_model_len + 1) > np.iinfo(index_dtype).max:
        raise ConfigError(
            f"{rows:,} requests of up to {max_model_len:,} tokens are more than this device's {index_dtype} indices "
            "can count; lower --max-num-seqs or --max-model-len."
        )


class LaunchBuilder:
    """Builds the launches of a step. device_tokens [rows, max_model_len + 1] int32: the tokens of all rows, on the
    device, including sampled ones. index_dtype: Capabilities.index_dtype. features: the enabled ones. host_tables:
    cache groups of which launches have block tables on the host too."""

    def __init__(
        self, plan: CachePlan, batch: InputBatch, device_tokens: Tensor, shapes: ShapePolicy, buffers: DeviceBuffers,
        *, index_dtype: str, features: Sequence[WorkerFeature] = (), host_tables: Collection[int] = (),
    ) -> None:  # fmt: skip
        self.plan, self.batch, self.device_tokens = plan, batch, device_tokens.view(-1)
        self.host_tables = host_tables
        self.shapes, self.buffers, self.index_dtype, self.features = shapes, buffers, index_dtype, features
        growing = [group for group in plan.groups if group.kind != "state"]
        self.smallest_block = min((group.block_size for group in growing), default=1)
        self.block_sizes = tuple(group.block_size for group in plan.groups)
        self.windows = tuple(group.window for group in plan.groups)
        self._current: _PlacedLayout | None = None
        self._in_buffers: Launch | None = None
        self._tables_changed = batch.tables_changed

    def build(self, step: SchedulerOutput) -> Iterator[PreparedLaunch]:
        """Yields the launches of a step. They share buffers, so each must be launched before the next is built."""
        seq_lens = step.starts + step.num_scheduled_tokens
        self._write_drafts(step)
        drafted = 0
        for exact in self.shapes.launches(self._shape(step, seq_lens)):
            part = slice(exact.first, exact.last)
            rows, starts, lengths = step.rows[part], step.starts[part], step.num_scheduled_tokens[part]
            prompt_logprobs = self.batch.sampling.prompt_logprobs_among(rows, starts)
            shape = _with_all_positions(exact) if len(prompt_logprobs) else exact
            placed = self._placed(shape, rows, lengths)
            launch = self._launch(shape.key, placed, starts, seq_lens[part])
            first = placed.layout.query_start_loc[: len(rows)]
            if shape.key.kind == "verify":
                last, drafted = drafted, drafted + int(lengths.sum()) - len(rows)
                yield self._verifying(placed, launch, starts, step.drafts[last:drafted])
                continue
            sampling = slice(None) if len(step.samples) == len(step.rows) else np.isin(rows, step.samples).nonzero()[0]
            yield PreparedLaunch(
                launch, rows, rows, seq_lens[part], sampling, starts, first, prompt_logprobs, placed.row_offsets, None
            )

    def _verifying(self, placed: _PlacedLayout, launch: Launch, starts: Array, drafts: Array) -> PreparedLaunch:
        """Each token is sampled as if it were a row of its own."""
        layout = placed.layout
        rows, first = layout.rows[: layout.num_rows], layout.query_start_loc[: layout.num_rows]
        following = np.full(layout.num_tokens, -1, np.int32)
        following[layout.within + 1 < layout.query_lens[layout.row_of]] = drafts
        sampling = slice(None) if layout.at is None else layout.at
        positions = layout.positions(starts) + 1
        none = np.zeros(0, np.intp)
        return PreparedLaunch(
            launch, rows, layout.token_rows.astype(np.int32), positions, sampling, starts, first, none,
            placed.token_offsets, following,
        )  # fmt: skip

    def _write_drafts(self, step: SchedulerOutput) -> None:
        """Puts drafts behind the newest tokens of their rows, where they are read as any other token."""
        if not len(step.drafts):
            return
        counts, width = step.num_scheduled_tokens - 1, self.batch.tokens.shape[1]
        within = np.arange(len(step.drafts)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = np.repeat(step.rows.astype(np.int64) * width + step.starts + 1, counts) + within
        drafts = self.buffers.put("drafts", step.drafts, "int32")
        self.device_tokens.index_put_((self.buffers.put("draft_at", at, self.index_dtype),), drafts)

    def _shape(self, step: SchedulerOutput, seq_lens: Array) -> StepShape:
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
            asked_bits(self.features, self.batch.columns, step.rows),
        )

    def restore_rows(self, prepared: PreparedLaunch) -> Launch:
        """The launch as sampling sees it: with its rows and their columns written again if another launch has
        overwritten their buffers, and, if it verifies drafts, with those of each token."""
        if prepared.drafts is not None:
            return self._by_sample(prepared.launch, prepared.sampled_rows)
        if prepared.launch is self._in_buffers:
            return prepared.launch
        self._current, self._in_buffers = None, prepared.launch
        rows = _filled(prepared.rows, prepared.launch.key.rows, self.batch.null_row)
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

    def _launch(self, key: LaunchKey, placed: _PlacedLayout, starts: Array, ends: Array) -> Launch:
        put, layout = self.buffers.put, placed.layout
        seq_lens, positions = layout.by_row(ends), layout.positions(starts)
        launch = self._in_buffers = Launch(
            key=key,
            num_rows=layout.num_rows,
            num_tokens=layout.num_tokens,
            rows=placed.rows,
            tokens=self._tokens(placed, positions),
            positions=put("positions", positions, "int32"),
            query_start_loc=placed.query_start_loc,
            query_lens=placed.query_lens,
            seq_lens=put("seq_lens", seq_lens, "int32"),
            query_start_loc_host=layout.query_start_loc,
            query_lens_host=layout.query_lens,
            seq_lens_host=seq_lens,
            slot_mapping=[
                put(f"slot_mapping{number}", values, self.index_dtype)
                for number, values in enumerate(self._slots(layout, positions))
            ],
            block_tables=[self._table(placed, number, key) for number in range(len(self.plan.groups))],
            logits_indices=placed.logits_indices,
            block_tables_host=[placed.host_tables.get(number) for number in range(len(self.plan.groups))],
            block_sizes=self.block_sizes,
            columns={**self._columns(layout.rows), **self._columns(layout.token_rows, each_token=True)},
            windows=self.windows,
        )
        return launch

    def _placed(self, shape: LaunchShape, rows: Array, lengths: Array) -> _PlacedLayout:
        """Writes the layout of a launch into the buffers, unless it is already there."""
        asked = layout_key(shape, rows, lengths)
        if self._current is None or self._current.layout_key != asked:
            put, layout = self.buffers.put, InputLayout.of(shape, rows, lengths, self.batch.null_row)
            width = self.batch.tokens.shape[1]
            self._current = _PlacedLayout(
                asked,
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
        row_offsets, own = prepared.row_offsets, prepared.row_offsets[: len(prepared.sampled_rows)]
        at = row_offsets + self.batch.spare
        at[: len(own)][prepared.sampling] = (own + prepared.next_position)[prepared.sampling]
        self.device_tokens.index_put_((self.buffers.put("feed", at, self.index_dtype),), tokens)

    def _columns(self, rows: Array, kind: str = "column", *, each_token: bool = False) -> dict[str, Tensor]:
        """The columns that a launch has for each row, or for each token. rows: of each."""
        return {
            name: self.buffers.put(f"{kind}_{name}", column[rows], column.dtype.name)
            for name, column in self.batch.columns.items()
            if (name in self.batch.token_columns) == each_token
        }

    def _slots(self, layout: InputLayout, positions: Array) -> Iterator[Array]:
        """The slot of each token, by group. Padding has the null row, so it goes to block 0."""
        for group, table in zip(self.plan.groups, self.batch.tables, strict=True):
            if group.kind == "state":
                yield np.zeros(0, np.int32)
                continue
            index = positions // group.block_size
            slots = table.reshape(-1).take(layout.token_rows * table.shape[1] + index)
            slots -= index
            slots *= group.block_size
            slots += positions
            yield slots

    def _table(self, placed: _PlacedLayout, number: int, key: LaunchKey) -> Tensor:
        group, table, held = self.plan.groups[number], self.batch.tables[number], placed.tables.get(number)
        columns = 1
        if group.kind != "state":
            columns = min(-(-key.blocks * self.smallest_block // group.block_size), table.shape[1])
        if held is None or held.shape[1] != columns:
            values = table[placed.layout.rows, :columns]
            if number in self.host_tables:
                placed.host_tables[number] = values
            held = placed.tables[number] = self.buffers.put(f"tables{number}", values, self.index_dtype)
        return held


def _with_all_positions(shape: LaunchShape) -> LaunchShape:
    return replace(shape, key=replace(shape.key, bits=shape.key.bits | {ALL_POSITIONS}))


def buffer_sizes(
    rows: int, tokens: int, samples: int, plan: CachePlan, columns: Iterable[str], token_columns: Collection[str] = ()
) -> dict[str, int]:
    """Number of elements of each buffer for the largest launch and its sampling. columns: names of the features'
    columns. token_columns: those of them that a launch has for each token."""
    sizes = dict.fromkeys(("positions", "token_at", "tokens"), tokens)
    sizes |= dict.fromkeys(("rows", "query_lens", "seq_lens"), rows)
    sizes |= dict.fromkeys(("feed", "sampled_rows", "drafts", "draft_at"), samples)
    sizes["query_start_loc"] = rows + 1
    sizes["logits_indices"] = rows + tokens
    sizes |= dict.fromkeys((f"sampling_{name}" for name in SamplingRows._fields), samples)
    sizes["sampling_seed"] = 2 * samples
    for name in columns:
        if name in token_columns:
            sizes[f"column_{name}"] = tokens
        else:
            sizes |= {f"column_{name}": rows, f"sampled_column_{name}": samples}
    for number, group in enumerate(plan.groups):
        sizes[f"slot_mapping{number}"] = tokens
        sizes[f"tables{number}"] = rows * group.blocks_of(plan.max_model_len)
    return sizes


def widest(keys: Sequence[LaunchKey], config: SchedulerConfig) -> tuple[int, int, int]:
    """Rows, tokens and samples of the largest launch: the most that the scheduler may schedule, or that a bounded
    ShapePolicy pads to."""
    rows, tokens, samples = config.max_num_seqs, config.max_num_batched_tokens, config.max_decode_samples
    return (
        max([rows, *(key.rows for key in keys)]),
        max([tokens, *(key.tokens for key in keys)]),
        max([samples, *(key.num_samples for key in keys)]),
    )
