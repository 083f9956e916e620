"""Draws tokens from logits that requests want masked, edited or penalized. Rows with edits or penalties are drawn for
from a copy of their own logits; the other rows are not touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array
from tessera.ops import (
    EditLogitsSpec,
    Edits,
    History,
    Logprobs,
    MaskLogitsSpec,
    PenaliseSpec,
    Penalties,
    SamplingRows,
    TakeLogitsSpec,
)
from tessera.platform.ops import HotCall
from tessera.runner.input_batch import SAMPLING_DTYPES, LogitsOps, SamplingColumns
from tessera.step import TokenMasks

Bind = Callable[[str, Any], HotCall]

_MIN_TOKENS = 64
_MAX_ROW_SETS = 16


class PlacedMasks(NamedTuple):
    """Masks of some of the rows that are sampled, as mask_logits takes them. A row that is sampled several times has as
    many masks, in the same order. places [M] int32 among these rows; bits [M, ceil(vocab / 32)] int32."""

    places: Array
    bits: Array

    @classmethod
    def place(cls, masks: TokenMasks | None, rows: Array) -> PlacedMasks | None:
        """None if none of the rows has a mask."""
        if masks is None:
            return None
        if np.array_equal(rows, masks.rows):
            return cls(np.arange(len(rows)), masks.bits)
        places = np.flatnonzero(np.isin(rows, masks.rows))
        if not len(places):
            return None
        used = np.flatnonzero(np.isin(masks.rows, rows))
        in_order = places[np.argsort(rows[places], kind="stable")]
        return cls(in_order, masks.bits[used[np.argsort(masks.rows[used], kind="stable")]])


@dataclass(frozen=True)
class CopiedRows:
    """Rows that are drawn for from a copy of their logits, E of them, on the device. They are padded to a few sizes by
    repeating the last one, which then is drawn for as well and not used. Reused as long as the same rows are copied."""

    # Where they are among the S rows that are sampled, without padding, ascending, on the host.
    index: Array
    # [E] int32: the same.
    take: Tensor
    # [S] int32: the place of each row's token, counted over the tokens drawn from the logits as they are, then those
    # drawn from the copy; None if all rows are copied.
    merged: Tensor | None
    # The fields of SamplingRows except position.
    sampling: dict[str, Tensor]
    # [E] int32, as in History.
    rows: Tensor
    num_prompt_tokens: Tensor
    # None if no row has any.
    penalties: Penalties | None
    edits: Edits | None
    # The places among the E and the bits of allowed_token_ids; None if no row has any.
    allowed: tuple[Tensor, Tensor] | None


class LogitsEditor:
    """Draws tokens from logits that some rows want masked, edited or penalized. tokens [rows, M] int32: the tokens of
    all rows, on the device. bind: returns an op bound to a spec. to_device: copies an array to the device
    (Device.to_device)."""

    def __init__(
        self, columns: SamplingColumns, tokens: Tensor, bind: Bind, to_device: Callable[[Array], Tensor]
    ) -> None:
        self.columns, self.tokens, self.bind, self.to_device = columns, tokens, bind, to_device
        self._calls: dict[tuple[str, Any], HotCall] = {}
        self._copied: dict[tuple[bytes, ...], CopiedRows] = {}
        self._allowed: dict[bytes, tuple[Tensor, Tensor] | None] = {}
        self._opened = 0

    def ops_of(self, rows: Array) -> LogitsOps:
        return LogitsOps(int(np.bitwise_or.reduce(self.columns.logits_ops[rows])))

    def draw(
        self,
        sample: HotCall,
        logits: Tensor,
        sampling: SamplingRows,
        rows: Array,
        positions: Array,
        masks: PlacedMasks | None,
        *,
        keep: bool,
    ) -> Tensor:
        """Tokens [S] int32, drawn by `sample`, a bound op, from logits [S, vocab] with the masks, edits and penalties
        of the rows, and with the masks that came with the step. rows: the requests' rows, which are the first of the S.
        positions: the position of the token to sample, for each of `rows`. keep: do not change `logits`.

        Edits and penalties are sums and products in float32, so their rows are copied. Masks are written into `logits`,
        -inf being exact in every dtype; with keep, masked rows are copied too."""
        if self._opened != self.columns.opened:
            self._copied.clear()
            self._allowed.clear()
            self._opened = self.columns.opened
        if not keep:
            allowed = _remembered(self._allowed, rows.tobytes(), lambda: self._allowed_of(rows))
            self._mask(logits, masks, allowed)
        index = self._to_copy(rows, masks if keep else None, all_masked=keep)
        if not len(index):
            tokens: Tensor = sample(logits, sampling).tokens
            return tokens
        key = rows.tobytes(), index.tobytes(), len(logits).to_bytes(4, "little")
        copied = _remembered(self._copied, key, lambda: self._copy_rows(rows, index, len(logits)))
        copy = self._call("take_logits", TakeLogitsSpec(logits.shape[-1]))(logits, copied.take)
        if keep:
            placed = None if masks is None else PlacedMasks(np.searchsorted(index, masks.places), masks.bits)
            self._mask(copy, placed, copied.allowed)
        position = self._put(_repeated(positions[index], len(copy)), np.int32)
        self._change(copy, copied, position, int(positions[index].max()))
        drawn: Tensor = sample(copy, SamplingRows(**copied.sampling, position=position)).tokens
        if copied.merged is None:
            return drawn
        return torch.cat((sample(logits, sampling).tokens, drawn)).index_select(0, copied.merged)

    def score(self, likely: Logprobs, logits: Tensor, rows: Array) -> Logprobs:
        """likely with the tokens of logprob_token_ids in place of the most likely ones, in the rows that have any.
        logits [S, vocab], without edits. rows: as in draw()."""
        named = self.columns.scored
        scored = [(place, named[row]) for place, row in enumerate(rows.tolist()) if row in named]
        if not scored:
            return likely
        width = likely.ids.shape[-1] - 1
        places = self._put(np.array([place for place, _ in scored]), np.int32)
        tokens = self._put(np.stack([_repeated(ids, width) for _, ids in scored]), np.int32)
        row_logits = self._call("take_logits", TakeLogitsSpec(logits.shape[-1]))(logits, places)
        values = row_logits.log_softmax(-1).gather(-1, tokens.long())
        likely.ids[:, 1:].index_copy_(0, places.long(), tokens.to(likely.ids.dtype))
        likely.logprobs[:, 1:].index_copy_(0, places.long(), values)
        return likely

    def _to_copy(self, rows: Array, masks: PlacedMasks | None, *, all_masked: bool) -> Array:
        """The places of the rows to copy: all if padding would make them as many anyway."""
        apart = LogitsOps.EDITS | LogitsOps.PENALTIES | (LogitsOps.MASK if all_masked else 0)
        chosen = (self.columns.logits_ops[rows] & apart) != 0
        if masks is not None:
            chosen[masks.places] = True
        index = np.flatnonzero(chosen)
        return index if _power_of_two(len(index)) < len(rows) else np.arange(len(rows))

    def _change(self, copy: Tensor, copied: CopiedRows, num_tokens: Tensor, max_tokens: int) -> None:
        """Edits and penalties. num_tokens [E] int32: how many tokens each row has; max_tokens: the largest of them."""
        if copied.edits is None and copied.penalties is None:
            return
        vocab = copy.shape[-1]
        width = max(_MIN_TOKENS, 1 << (max_tokens - 1).bit_length())  # a power of two, so that there are few shapes
        tokens = self.tokens[:, : min(width, self.tokens.shape[-1])]
        history = History(tokens, copied.rows, copied.num_prompt_tokens, num_tokens)
        if copied.edits is not None:
            spec = EditLogitsSpec(vocab, copied.edits.prefix.shape[-1])
            self._call("edit_logits", spec)(copy, history, copied.edits)
        if copied.penalties is not None:
            self._call("penalise", PenaliseSpec(vocab))(copy, history, copied.penalties)

    def _mask(self, logits: Tensor, placed: PlacedMasks | None, allowed: tuple[Tensor, Tensor] | None) -> None:
        call = self._call("mask_logits", MaskLogitsSpec(logits.shape[-1]))
        if placed is not None:
            call(logits, *self._put_mask(*placed))
        if allowed is not None:
            call(logits, *allowed)

    def _call(self, name: str, spec: Any) -> HotCall:
        if (name, spec) not in self._calls:
            self._calls[name, spec] = self.bind(name, spec)
        return self._calls[name, spec]

    def _copy_rows(self, rows: Array, index: Array, size: int) -> CopiedRows:
        """size: S."""
        columns, chosen = self.columns, rows[index]
        padded = size if len(index) == len(rows) else _power_of_two(len(index))
        ops = self.ops_of(chosen)
        merged = None
        if len(index) < len(rows):
            merged = np.arange(size)
            merged[index] = size + np.arange(len(index))
        names = (name for name in SamplingRows._fields if name != "position")
        filled = _repeated(chosen, padded)
        penalties = (self._put(getattr(columns, f"{name}_penalty")[filled], np.float32) for name in Penalties._fields)
        return CopiedRows(
            index=index,
            take=self._put(_repeated(index, padded), np.int32),
            merged=None if merged is None else self._put(merged, np.int32),
            sampling={name: self._put(getattr(columns, name)[filled], SAMPLING_DTYPES[name]) for name in names},
            rows=self._put(filled, np.int32),
            num_prompt_tokens=self._put(columns.num_prompt_tokens[filled], np.int32),
            penalties=Penalties(*penalties) if ops & LogitsOps.PENALTIES else None,
            edits=self._edits(chosen) if ops & LogitsOps.EDITS else None,
            allowed=self._allowed_of(chosen),
        )

    def _allowed_of(self, rows: Array) -> tuple[Tensor, Tensor] | None:
        """The masks of allowed_token_ids, and their places among `rows`."""
        masks = self.columns.masks
        masked = [(place, masks[row]) for place, row in enumerate(rows.tolist()) if row in masks]
        if not masked:
            return None
        places, bits = zip(*masked, strict=True)
        return self._put_mask(np.array(places), np.stack(bits))

    def _put_mask(self, places: Array, bits: Array) -> tuple[Tensor, Tensor]:
        """In a few sizes; the filler repeats the last row."""
        size = _power_of_two(len(places))
        return self._put(_repeated(places, size), np.int32), self._put(_repeated(bits, size), np.int32)

    def _edits(self, rows: Array) -> Edits:
        """The edits of rows of which some have any, concatenated and padded to a power of two, so that there are few
        shapes. The padding adds 0 to a logit of the first row."""
        columns = self.columns
        edited = [(place, columns.edits[row]) for place, row in enumerate(rows.tolist()) if row in columns.edits]
        number = _power_of_two(sum(len(edits.token) for _, edits in edited))
        width = _power_of_two(max(edits.prefix.shape[-1] for _, edits in edited))
        row, token, until = np.zeros((3, number), np.int32)
        value, prefix = np.zeros(number, np.float32), np.full((number, width), -1, np.int32)
        at = 0
        for place, edits in edited:
            here = slice(at, at + len(edits.token))
            row[here], token[here], value[here], until[here] = place, edits.token, edits.value, edits.until
            prefix[here, width - edits.prefix.shape[-1] :] = edits.prefix
            at = here.stop
        integers = (self._put(values, np.int32) for values in (row, token, until, prefix))
        rows_of, tokens, untils, prefixes = integers
        return Edits(rows_of, tokens, self._put(value, np.float32), untils, prefixes)

    def _put(self, values: Array, dtype: Any) -> Tensor:
        return self.to_device(np.ascontiguousarray(values, dtype))


Key = TypeVar("Key")
Value = TypeVar("Value")


def _remembered(values: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    if key not in values:
        if len(values) >= _MAX_ROW_SETS:
            values.clear()
        values[key] = make()
    return values[key]


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length() if number else 0


def _repeated(values: Array, size: int) -> Array:
    """Padded to `size` by repeating the last."""
    if len(values) == size:
        return values
    return values[np.minimum(np.arange(size), len(values) - 1)]
