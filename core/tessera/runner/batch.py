"""Rows of requests as host arrays: what a SchedulerOutput opens, grows and closes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.arrays import Array
from tessera.platform.runner import CachePlan, Column
from tessera.runner.sampling_columns import SamplingColumns
from tessera.step import BlockDelta, RowOpened, SchedulerOutput


class InputBatch:
    """Fixed rows, one more than there can be requests: the last stands for padding. tokens [rows, max_model_len + 1]:
    known when a row was opened, the last column is nobody's. tables: by group [rows, blocks]; tables_changed: counts
    how often they did. eos, vocab: the model's."""

    def __init__(self, plan: CachePlan, columns: Sequence[Column], *, eos: Sequence[int], vocab: int) -> None:
        rows = plan.num_rows + 1
        self.null_row = plan.num_rows
        self.spare = plan.max_model_len
        self.tokens: Array = np.zeros((rows, plan.max_model_len + 1), np.int32)
        self.tables: list[Array] = [
            np.zeros((rows, group.blocks_of(plan.max_model_len)), np.int32) for group in plan.groups
        ]
        self.tables_changed = 0
        self.sampling = SamplingColumns.of(rows, eos, vocab)
        self.columns: dict[str, Array] = {c.name: np.full(rows, c.default, c.dtype) for c in columns}
        self._defaults = {c.name: c.default for c in columns}

    def apply(self, step: SchedulerOutput) -> None:
        for opened in step.opened:
            self._open(opened)
        for table, delta in zip(self.tables, step.blocks, strict=True):
            if len(delta.rows):
                _write(table, delta)
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


def _write(table: Array, delta: BlockDelta) -> None:
    """counts[i] blocks into row rows[i] from column starts[i] on."""
    if len(delta.blocks) == len(delta.rows):
        table[delta.rows, delta.starts] = delta.blocks
        return
    ends = np.cumsum(delta.counts)
    columns = np.arange(ends[-1]) + np.repeat(delta.starts - (ends - delta.counts), delta.counts)
    table[np.repeat(delta.rows, delta.counts), columns] = delta.blocks
