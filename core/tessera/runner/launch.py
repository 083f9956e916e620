"""Arrays to launches: a step's rows cut and padded as the ShapePolicy says, put into device buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from tessera.arrays import Array
from tessera.platform.launch import ALL_POSITIONS, Launch, LaunchKey, LaunchShape, ShapePolicy, StepShape
from tessera.platform.ops import SamplingRows
from tessera.platform.runner import CachePlan
from tessera.runner.batch import InputBatch, ragged_arange
from tessera.runner.buffers import DeviceBuffers
from tessera.step import SchedulerOutput


@dataclass(frozen=True)
class Prepared:
    """A launch and what the host knows of it: its requests' rows, the position after each row's last token, and which
    of them draw a token. starts: the position of each row's first token, first: its place in the launch. scored: rows
    that want the hidden state of each of their tokens; where there is one, the launch gives them out."""

    launch: Launch
    rows: Array
    next_position: Array
    samples: Array
    starts: Array
    first: Array
    scored: Array


class LaunchBuilder:
    """index_dtype: of slots and tables; host_lengths: "exact" where a backend asks for it. bits: of the features that
    are on."""

    def __init__(
        self, plan: CachePlan, batch: InputBatch, device_tokens: Tensor, shapes: ShapePolicy, buffers: DeviceBuffers,
        *, index_dtype: str, bits: frozenset[str],
    ) -> None:  # fmt: skip
        self.plan, self.batch, self.device_tokens = plan, batch, device_tokens
        self.shapes, self.buffers, self.index_dtype, self.bits = shapes, buffers, index_dtype, bits
        growing = [group for group in plan.groups if group.kind != "state"]
        self.smallest_block = min((group.block_size for group in growing), default=1)
        self.block_sizes = tuple(group.block_size for group in plan.groups)
        self.windows = tuple(group.window for group in plan.groups)

    def build(self, step: SchedulerOutput) -> Iterator[Prepared]:
        """The step's launches, each made when it is asked for: they share the buffers, so one must be launched before
        the next is made."""
        kv_len = step.starts + step.num_tokens
        decode = int(np.argmin(step.num_tokens == 1)) if (step.num_tokens != 1).any() else len(step.rows)
        blocks = -(-kv_len // self.smallest_block)
        shape = StepShape(decode, 0, step.num_tokens, kv_len, blocks.astype(np.int32), self.bits)
        samples = np.isin(step.rows, step.samples)
        sampling = self.batch.sampling
        scored = (sampling.scored[step.rows] >= 0) & (step.starts < sampling.num_prompt[step.rows] - 1)
        for fitting in self.shapes.launches(shape):
            part = slice(fitting.first, fitting.last)
            cut = _giving_out_all(fitting) if scored[part].any() else fitting
            rows, starts, lengths = step.rows[part], step.starts[part], step.num_tokens[part]
            launch = self._launch(cut, rows, starts, lengths)
            first = _first_tokens(cut, lengths)
            yield Prepared(launch, rows, kv_len[part], samples[part], starts, first, scored[part])

    def rows_again(self, prepared: Prepared) -> Launch:
        """The launch with its rows and columns as they were: another may have taken the buffers since."""
        rows = _padded(prepared.rows, prepared.launch.key.rows, self.batch.null_row)
        return replace(prepared.launch, rows=self.buffers.put("rows", rows, "int32"), columns=self._columns(rows))

    def empty(self, key: LaunchKey) -> Launch:
        """A launch of this shape in which all is padding."""
        none = np.zeros(0, np.int32)
        return self._launch(LaunchShape(key, 0, 0), none, none, none)

    def _launch(self, cut: LaunchShape, rows: Array, starts: Array, lengths: Array) -> Launch:
        key, put = cut.key, self.buffers.put
        padded_rows = _padded(rows, key.rows, self.batch.null_row)
        q_len = _padded(lengths, key.rows, 0)
        kv_len = _padded(starts + lengths, key.rows, 0)
        q_start = _first_tokens(cut, q_len)
        at = ragged_arange(q_start[: len(rows)], lengths)
        token_rows = _scattered(at, np.repeat(rows, lengths), key.tokens, self.batch.null_row)
        positions = _scattered(at, ragged_arange(starts, lengths), key.tokens, 0)
        given_out = np.where(q_len > 0, q_start + q_len - 1, 0).astype(np.int32)
        if ALL_POSITIONS in key.bits:
            given_out = np.concatenate((given_out, np.arange(key.tokens, dtype=np.int32)))
        device_positions = put("positions", positions, "int32")
        device_rows = put("token_rows", token_rows, "int32")
        tokens = self.buffers.get("tokens", (key.tokens,), "int32")
        tokens.copy_(self.device_tokens[device_rows, device_positions])
        return Launch(
            key=key,
            num_rows=len(rows),
            num_tokens=int(lengths.sum()),
            rows=put("rows", padded_rows, "int32"),
            tokens=tokens,
            positions=device_positions,
            q_start=put("q_start", q_start, "int32"),
            q_len=put("q_len", q_len, "int32"),
            kv_len=put("kv_len", kv_len, "int32"),
            kv_len_host=kv_len,
            q_len_host=q_len,
            host_lengths="exact",
            slots=[
                put(f"slots{g}", values, self.index_dtype)
                for g, values in enumerate(self._slots(token_rows, positions, at))
            ],
            block_tables=[
                put(f"tables{g}", values, self.index_dtype) for g, values in enumerate(self._tables(padded_rows, key))
            ],
            sample_at=put("sample_at", given_out, "int32"),
            block_sizes=self.block_sizes,
            columns=self._columns(padded_rows),
            windows=self.windows,
        )

    def _columns(self, rows: Array) -> dict[str, Tensor]:
        return {
            name: self.buffers.put(f"column_{name}", column[rows], column.dtype.name)
            for name, column in self.batch.columns.items()
        }

    def _slots(self, token_rows: Array, positions: Array, at: Array) -> list[Array]:
        """By group: where each token's keys and values go; padding goes to block 0."""
        slots = []
        real = np.zeros(len(token_rows), bool)
        real[at] = True
        for group, table in zip(self.plan.groups, self.batch.tables, strict=True):
            if group.kind == "state":
                slots.append(np.zeros(0, np.int32))
                continue
            index, offset = np.divmod(positions, group.block_size)
            slots.append(np.where(real, table[token_rows, index] * group.block_size + offset, 0))
        return slots

    def _tables(self, rows: Array, key: LaunchKey) -> list[Array]:
        tables = []
        for group, table in zip(self.plan.groups, self.batch.tables, strict=True):
            columns = (
                1
                if group.kind == "state"
                else min(-(-key.blocks * self.smallest_block // group.block_size), table.shape[1])
            )
            tables.append(table[rows, :columns])
        return tables


def _giving_out_all(cut: LaunchShape) -> LaunchShape:
    return replace(cut, key=replace(cut.key, bits=cut.key.bits | {ALL_POSITIONS}))


def _first_tokens(cut: LaunchShape, lengths: Array) -> Array:
    """Where in the launch each row begins."""
    if cut.stride:
        return np.arange(len(lengths), dtype=np.int32) * cut.stride
    return np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int32)


def _padded(values: Array, size: int, filler: int) -> Array:
    result = np.full(size, filler, np.int32)
    result[: len(values)] = values
    return result


def _scattered(at: Array, values: Array, size: int, filler: int) -> Array:
    result = np.full(size, filler, np.int32)
    result[at] = values
    return result


def buffer_sizes(rows: int, tokens: int, plan: CachePlan, columns: Iterable[str]) -> dict[str, int]:
    """Elements of the buffers of the largest launch and of its sampling. columns: of the features."""
    sizes = dict.fromkeys(("positions", "token_rows", "tokens"), tokens)
    sizes |= dict.fromkeys(("rows", "q_start", "q_len", "kv_len", "feed"), rows)
    sizes["sample_at"] = rows + tokens
    sizes |= dict.fromkeys((f"sampling_{name}" for name in SamplingRows._fields), rows)
    sizes |= dict.fromkeys((f"column_{name}" for name in columns), rows)
    for number, group in enumerate(plan.groups):
        sizes[f"slots{number}"] = tokens
        sizes[f"tables{number}"] = rows * group.blocks_of(plan.max_model_len)
    return sizes


def widest(keys: Sequence[LaunchKey], rows: int, tokens: int) -> tuple[int, int]:
    """Rows and tokens of the largest launch: what the scheduler may ask for, or what a bounded policy pads to."""
    return max([rows, *(key.rows for key in keys)]), max([tokens, *(key.tokens for key in keys)])
