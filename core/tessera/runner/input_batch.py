"""The rows of requests on the host, by which launches are built."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.arrays import Array
from tessera.config.engine import EngineConfig
from tessera.errors import ConfigError
from tessera.platform.feature import Column
from tessera.platform.runner import CachePlan
from tessera.runner.sampling_columns import SamplingColumns
from tessera.step import BlockDelta, RowOpened, SchedulerOutput


class CoreInputBatch:
    """The state of all rows on the host. One extra row, the null row, is for padding. eos, vocab: the model's
    end-of-text tokens and the size of its vocabulary."""

    def __init__(self, plan: CachePlan, columns: Sequence[Column], *, eos: Sequence[int], vocab: int) -> None:
        rows = plan.num_rows + 1
        self.null_row = plan.num_rows
        # The last column of `tokens`, where rows that do not sample write theirs.
        self.spare = plan.max_model_len
        # [rows, max_model_len + 1] int32: the tokens known when the row was opened.
        self.tokens: Array = np.zeros((rows, plan.max_model_len + 1), np.int32)
        # The block table of each group, [rows, blocks] int32.
        self.tables: list[Array] = [
            np.zeros((rows, group.blocks_of(plan.max_model_len)), np.int32) for group in plan.groups
        ]
        # How often they changed.
        self.tables_changed = 0
        self.sampling = SamplingColumns(rows, eos, vocab)
        # Features' columns by name, [rows].
        self.columns: dict[str, Array] = {c.name: np.full(rows, c.default, c.dtype) for c in columns}
        # Names of the columns that a launch has for each token.
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


def refuse_uncounted(config: EngineConfig, index_dtype: str) -> None:
    """Raises ConfigError if the table of all rows' tokens has more elements than a device's indices count."""
    rows, max_model_len = config.scheduler.max_num_seqs, config.model.max_model_len
    if (rows + 1) * (max_model_len + 1) > np.iinfo(index_dtype).max:
        raise ConfigError(
            f"{rows:,} requests of up to {max_model_len:,} tokens are more than this device's {index_dtype} indices "
            "can count; lower --max-num-seqs or --max-model-len."
        )
