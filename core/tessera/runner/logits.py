"""The logits of rows that ask for something before they are drawn from: masked, edited, penalised, in this order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array
from tessera.ops import EditLogitsSpec, Edits, History, MaskLogitsSpec, PenaliseSpec, Penalties
from tessera.platform.kernel import HotCall
from tessera.runner.row_edits import RowEdits
from tessera.runner.sampling_columns import Asks, SamplingColumns

Bind = Callable[[str, Any], HotCall]

_FEWEST_TOKENS = 64
_ROW_SETS = 16
NO_EDITS = RowEdits(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros((0, 0), np.int32))


@dataclass(frozen=True)
class RowSet:
    """What one choice of rows asks for, on the device; kept while these rows go on. bits, edits: None where none of
    them asks for it."""

    num_prompt_tokens: Tensor
    penalties: Penalties
    bits: Tensor | None
    edits: Edits | None


class LogitsEditor:
    """bind: of ops. tokens [rows, M] int32: the table in which each row's tokens stand, on the device."""

    def __init__(self, columns: SamplingColumns, tokens: Tensor, bind: Bind) -> None:
        self.columns, self.tokens, self.bind = columns, tokens, bind
        self._calls: dict[tuple[str, Any], HotCall] = {}
        self._sets: dict[bytes, RowSet] = {}
        self._changed = 0

    def asks(self, rows: Array) -> Asks:
        return Asks(int(np.bitwise_or.reduce(self.columns.asks[rows])))

    def __call__(self, asks: Asks, logits: Tensor, rows: Array, places: Tensor, positions: Array) -> Tensor:
        """A float32 copy of logits [S, vocab] with all that is asked for. rows: of requests, the first of the S; places
        [S] int32: all of them, padding too, in the table; positions: of the tokens to draw."""
        vocab = logits.shape[-1]
        logits = logits.to(torch.float32, copy=True)
        wanted = self._row_set(rows, len(logits), vocab)
        history = self._history(wanted, places, positions)
        if wanted.bits is not None:
            self._call("mask_logits", MaskLogitsSpec(vocab))(logits, wanted.bits)
        if wanted.edits is not None:
            spec = EditLogitsSpec(vocab, wanted.edits.prefix.shape[-1])
            self._call("edit_logits", spec)(logits, history, wanted.edits)
        if asks & Asks.PENALTIES:
            self._call("penalise", PenaliseSpec(vocab))(logits, history, wanted.penalties)
        return logits

    def _call(self, name: str, spec: Any) -> HotCall:
        if (name, spec) not in self._calls:
            self._calls[name, spec] = self.bind(name, spec)
        return self._calls[name, spec]

    def _history(self, wanted: RowSet, places: Tensor, positions: Array) -> History:
        """Of as many columns of the table as the longest row needs, in a few sizes."""
        most = max(_FEWEST_TOKENS, 1 << int(positions.max() - 1).bit_length())
        num_tokens = self._put(_padded(positions, len(places), 0), np.int32)
        return History(self.tokens[:, : min(most, self.tokens.shape[-1])], places, wanted.num_prompt_tokens, num_tokens)

    # ---- what a choice of rows asks for ------------------------------------------------------------------------------

    def _row_set(self, rows: Array, size: int, vocab: int) -> RowSet:
        if self._changed != self.columns.changed or len(self._sets) >= _ROW_SETS:
            self._sets.clear()
            self._changed = self.columns.changed
        key = rows.astype(np.int32).tobytes() + size.to_bytes(4, "little")
        if key not in self._sets:
            self._sets[key] = self._made(rows, size, vocab)
        return self._sets[key]

    def _made(self, rows: Array, size: int, vocab: int) -> RowSet:
        columns = self.columns
        penalties = (
            _padded(columns.presence[rows], size, 0.0),
            _padded(columns.frequency[rows], size, 0.0),
            _padded(columns.repetition[rows], size, 1.0),
        )
        return RowSet(
            self._put(_padded(columns.num_prompt_tokens[rows], size, 0), np.int32),
            Penalties(*(self._put(values, np.float32) for values in penalties)),
            self._bits(rows, size, vocab),
            self._edits(rows),
        )

    def _bits(self, rows: Array, size: int, vocab: int) -> Tensor | None:
        held = [
            (place, self.columns.masks[row]) for place, row in enumerate(rows.tolist()) if row in self.columns.masks
        ]
        if not held:
            return None
        bits = np.full((size, -(-vocab // 32)), -1, np.int32)
        for place, mask in held:
            bits[place] = mask
        return self._put(bits, np.int32)

    def _edits(self, rows: Array) -> Edits | None:
        """Of all rows one after the other, in a few sizes: what fills up adds nothing to the first row."""
        columns = self.columns
        held = [(place, columns.edits[row]) for place, row in enumerate(rows.tolist()) if row in columns.edits]
        if not held:
            return None
        number = _power_of_two(sum(len(edits.token) for _, edits in held))
        width = _power_of_two(max(edits.prefix.shape[-1] for _, edits in held))
        row, token, until = np.zeros((3, number), np.int32)
        value, prefix = np.zeros(number, np.float32), np.full((number, width), -1, np.int32)
        at = 0
        for place, edits in held:
            here = slice(at, at + len(edits.token))
            row[here], token[here], value[here], until[here] = place, edits.token, edits.value, edits.until
            prefix[here, width - edits.prefix.shape[-1] :] = edits.prefix
            at = here.stop
        integers = (self._put(values, np.int32) for values in (row, token, until, prefix))
        rows_of, tokens, untils, prefixes = integers
        return Edits(rows_of, tokens, self._put(value, np.float32), untils, prefixes)

    def _put(self, values: Array, dtype: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype)).to(self.tokens.device)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length() if number else 0


def _padded(values: Array, size: int, filler: float) -> Array:
    result = np.full(size, filler, values.dtype)
    result[: len(values)] = values
    return result
