"""Turns hidden states into sampled tokens.

The host keeps the sampling parameters of each row. If no request or feature changes the logits, one composite op
samples from the hidden states. Otherwise the logits are computed, masked, edited and penalized first, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array
from tessera.ops import (
    EditLogitsSpec,
    Edits,
    History,
    Logprobs,
    LogprobsSpec,
    MaskLogitsSpec,
    PenaliseSpec,
    Penalties,
    Sampled,
    SampleSpec,
    SamplingRows,
)
from tessera.platform.feature import WorkerFeature
from tessera.platform.launch import Buffers, Launch
from tessera.platform.model import Model
from tessera.platform.ops import BoundOps, HotCall
from tessera.sampling_params import SamplingParams
from tessera.step import RowOpened, TokenMasks

Bind = Callable[[str, Any], HotCall]

PARAMETERS: Mapping[str, tuple[type[np.number[Any]], float]] = MappingProxyType(
    {
        "temperature": (np.float32, 0.0),
        "top_k": (np.int32, 0),
        "top_p": (np.float32, 1.0),
        "min_p": (np.float32, 0.0),
        "presence_penalty": (np.float32, 0.0),
        "frequency_penalty": (np.float32, 0.0),
        "repetition_penalty": (np.float32, 1.0),
    }
)
"""Fields of SamplingParams with a column of their own: its dtype, and the value that has no effect."""


class LogitsOps(IntFlag):
    """What a request wants done to the logits of its row before a token is sampled."""

    MASK = 1
    EDITS = 2
    PENALTIES = 4


class SamplingColumns:
    """Sampling parameters of all rows as host arrays [rows], so that a step reads those of all its rows at once.

    Besides PARAMETERS: seed [rows, 2] int32, its low and high bits; logprobs, prompt_logprobs int32: how many
    alternatives are wanted for sampled and prompt tokens, -1 for no log probabilities; num_prompt_tokens int32;
    logits_ops uint8. edits, masks: of the rows that have any. changed: how often edits, masks or penalties changed.
    opened: how often a row was opened. eos, vocab: the model's end-of-text tokens and the size of its vocabulary."""

    temperature: Array
    top_k: Array
    top_p: Array
    min_p: Array
    presence_penalty: Array
    frequency_penalty: Array
    repetition_penalty: Array

    def __init__(self, rows: int, eos: Sequence[int], vocab: int) -> None:
        for name, (dtype, off) in PARAMETERS.items():
            setattr(self, name, np.full(rows, off, dtype))
        self.seed: Array = np.zeros((rows, 2), np.int32)
        self.logprobs: Array = np.full(rows, -1, np.int32)
        self.prompt_logprobs: Array = np.full(rows, -1, np.int32)
        self.num_prompt_tokens: Array = np.zeros(rows, np.int32)
        self.logits_ops: Array = np.zeros(rows, np.uint8)
        self.edits: dict[int, RowEdits] = {}
        self.masks: dict[int, Array] = {}
        self.changed = self.opened = 0
        self.eos, self.vocab = eos, vocab
        self._want_prompt_logprobs: set[int] = set()

    def open(self, opened: RowOpened) -> None:
        """Writes a request's values into its row. A preempted request that already has generated tokens does not get
        its prompt's log probabilities again."""
        row, params = opened.row, opened.params
        self.opened += 1
        for name in PARAMETERS:
            getattr(self, name)[row] = getattr(params, name)
        self.seed[row] = np.array([opened.seed & (2**64 - 1)], np.uint64).view(np.int32)
        self.num_prompt_tokens[row] = opened.num_prompt_tokens
        self.logprobs[row] = -1 if params.logprobs is None else params.logprobs
        answered = len(opened.tokens) > opened.num_prompt_tokens
        self.prompt_logprobs[row] = -1 if params.prompt_logprobs is None or answered else params.prompt_logprobs
        self._want_prompt_logprobs.discard(row)
        if self.prompt_logprobs[row] >= 0:
            self._want_prompt_logprobs.add(row)
        self._open_logits_ops(opened)

    def _open_logits_ops(self, opened: RowOpened) -> None:
        row, params = opened.row, opened.params
        if self.logits_ops[row]:
            self.edits.pop(row, None)
            self.masks.pop(row, None)
            self.changed += 1
        ops = LogitsOps.PENALTIES if params.penalised else LogitsOps(0)
        edits = RowEdits.of(params, opened.num_prompt_tokens, self.eos, self.vocab)
        if edits is not None:
            self.edits[row] = edits
            ops |= LogitsOps.EDITS
        if params.allowed_token_ids is not None:
            self.masks[row] = allowed_bits(params.allowed_token_ids, self.vocab)
            ops |= LogitsOps.MASK
        self.changed += bool(ops)
        self.logits_ops[row] = ops

    def prompt_logprobs_among(self, rows: Array, starts: Array) -> Array:
        """The indices into `rows` of those that need log probabilities of the prompt tokens they compute. starts: the
        position of the first token that each row computes."""
        if not self._want_prompt_logprobs:
            return np.zeros(0, np.intp)
        return np.flatnonzero((self.prompt_logprobs[rows] >= 0) & (starts < self.num_prompt_tokens[rows] - 1))


FOREVER = 2**31 - 1


@dataclass(frozen=True)
class RowEdits:
    """The edits of one row, with the fields of Edits: token, until [E] int32, value [E] float32, prefix [E, P]
    int32."""

    token: Array
    value: Array
    until: Array
    prefix: Array

    @classmethod
    def of(cls, params: SamplingParams, num_prompt_tokens: int, eos: Sequence[int], vocab: int) -> RowEdits | None:
        """The edits of a request; None if it has none. eos: the model's end-of-text tokens, which min_tokens suppresses
        together with the request's stop tokens."""
        entries: list[tuple[int, float, int, tuple[int, ...]]] = [
            (token, bias, FOREVER, ()) for token, bias in (params.logit_bias or {}).items()
        ]
        entries += [(word[-1], -np.inf, FOREVER, tuple(word[:-1])) for word in params.bad_words_ids or ()]
        if params.min_tokens:
            ends = dict.fromkeys((*eos, *(params.stop_token_ids or ())))
            entries += [(token, -np.inf, num_prompt_tokens + params.min_tokens, ()) for token in ends]
        entries = [entry for entry in entries if entry[0] < vocab]
        if not entries:
            return None
        tokens, values, until, prefixes = zip(*entries, strict=True)
        return cls(
            np.array(tokens, np.int32),
            np.array(values, np.float32),
            np.array(until, np.int32),
            _right_aligned(prefixes),
        )


def allowed_bits(allowed: Sequence[int], vocab: int) -> Array:
    """The mask for the op mask_logits, [ceil(vocab / 32)] int32: the bits of the allowed tokens are set."""
    held = np.zeros(-(-vocab // 32) * 32, np.uint8)
    held[np.array(allowed, np.int64)] = 1
    bits: Array = np.packbits(held, bitorder="little").view("<i4").astype(np.int32)
    return bits


def _right_aligned(prefixes: Sequence[tuple[int, ...]]) -> Array:
    width = max(map(len, prefixes))
    result = np.full((len(prefixes), width), -1, np.int32)
    for row, prefix in zip(result, prefixes, strict=True):
        row[width - len(prefix) :] = prefix
    return result


_FEWEST_TOKENS = 64
_MOST_ROW_SETS = 16


class PlacedMasks(NamedTuple):
    """Masks of some of the rows that are sampled, as mask_logits takes them. A row that is sampled several times has as
    many masks, in the same order. places [M] int32 among these rows; bits [M, ceil(vocab / 32)] int32."""

    places: Array
    bits: Array

    @classmethod
    def of(cls, masks: TokenMasks | None, rows: Array) -> PlacedMasks | None:
        """None if none of the rows has a mask."""
        if masks is None:
            return None
        places = np.flatnonzero(np.isin(rows, masks.rows))
        if not len(places):
            return None
        held = np.flatnonzero(np.isin(masks.rows, rows))
        in_order = places[np.argsort(rows[places], kind="stable")]
        return cls(in_order, masks.bits[held[np.argsort(masks.rows[held], kind="stable")]])


@dataclass(frozen=True)
class RowSet:
    """What to do to the logits of some rows, on the device. Reused as long as the same rows are sampled. mask, edits:
    None if no row has any."""

    num_prompt_tokens: Tensor
    penalties: Penalties
    mask: tuple[Tensor, Tensor] | None
    edits: Edits | None


class LogitsEditor:
    """Applies masks, edits and penalties. tokens [rows, M] int32: the tokens of all rows, on the device. bind: returns
    an op bound to a spec. to_device: copies an array to the device (Device.to_device)."""

    def __init__(
        self, columns: SamplingColumns, tokens: Tensor, bind: Bind, to_device: Callable[[Array], Tensor]
    ) -> None:
        self.columns, self.tokens, self.bind, self.to_device = columns, tokens, bind, to_device
        self._calls: dict[tuple[str, Any], HotCall] = {}
        self._sets: dict[bytes, RowSet] = {}
        self._changed = 0

    def ops_of(self, rows: Array) -> LogitsOps:
        return LogitsOps(int(np.bitwise_or.reduce(self.columns.logits_ops[rows])))

    def __call__(
        self,
        ops: LogitsOps,
        logits: Tensor,
        rows: Array,
        places: Tensor,
        positions: Array,
        masks: PlacedMasks | None,
        *,
        keep: bool,
    ) -> Tensor:
        """Returns logits [S, vocab] with the masks, edits and penalties of the rows, and with the masks that came with
        the step. rows: the requests' rows, which are the first of the S. places [S] int32: all rows, padding included,
        on the device. positions: the position of the token to sample, for each of `rows`. keep: do not change `logits`.

        Edits and penalties are applied to a float32 copy. Masks alone are written into `logits`, unless keep is set:
        -inf is exact in every dtype, and copying a batch costs more than masking it."""
        vocab = logits.shape[-1]
        if keep or ops & ~LogitsOps.MASK:
            logits = logits.to(torch.float32, copy=True)
        if masks is not None:
            self._call("mask_logits", MaskLogitsSpec(vocab))(logits, *self._put_mask(*masks))
        if not ops:
            return logits
        wanted = self._row_set(rows, len(logits))
        history = self._history(wanted, places, positions)
        if wanted.mask is not None:
            self._call("mask_logits", MaskLogitsSpec(vocab))(logits, *wanted.mask)
        if wanted.edits is not None:
            spec = EditLogitsSpec(vocab, wanted.edits.prefix.shape[-1])
            self._call("edit_logits", spec)(logits, history, wanted.edits)
        if ops & LogitsOps.PENALTIES:
            self._call("penalise", PenaliseSpec(vocab))(logits, history, wanted.penalties)
        return logits

    def _call(self, name: str, spec: Any) -> HotCall:
        if (name, spec) not in self._calls:
            self._calls[name, spec] = self.bind(name, spec)
        return self._calls[name, spec]

    def _history(self, wanted: RowSet, places: Tensor, positions: Array) -> History:
        """The tokens of the rows so far. Its width is rounded up to a power of two, so that there are few shapes."""
        most = max(_FEWEST_TOKENS, 1 << int(positions.max() - 1).bit_length())
        num_tokens = self._put(_padded(positions, len(places), 0), np.int32)
        return History(self.tokens[:, : min(most, self.tokens.shape[-1])], places, wanted.num_prompt_tokens, num_tokens)

    def _row_set(self, rows: Array, size: int) -> RowSet:
        if self._changed != self.columns.changed or len(self._sets) >= _MOST_ROW_SETS:
            self._sets.clear()
            self._changed = self.columns.changed
        key = rows.astype(np.int32).tobytes() + size.to_bytes(4, "little")
        if key not in self._sets:
            self._sets[key] = self._made(rows, size)
        return self._sets[key]

    def _made(self, rows: Array, size: int) -> RowSet:
        columns = self.columns
        penalties = (
            _padded(columns.presence_penalty[rows], size, 0.0),
            _padded(columns.frequency_penalty[rows], size, 0.0),
            _padded(columns.repetition_penalty[rows], size, 1.0),
        )
        return RowSet(
            self._put(_padded(columns.num_prompt_tokens[rows], size, 0), np.int32),
            Penalties(*(self._put(values, np.float32) for values in penalties)),
            self._mask(rows),
            self._edits(rows),
        )

    def _mask(self, rows: Array) -> tuple[Tensor, Tensor] | None:
        masks = self.columns.masks
        held = [(place, masks[row]) for place, row in enumerate(rows.tolist()) if row in masks]
        if not held:
            return None
        places, bits = zip(*held, strict=True)
        return self._put_mask(np.array(places), np.stack(bits))

    def _put_mask(self, places: Array, bits: Array) -> tuple[Tensor, Tensor]:
        """In a few sizes; the filler repeats the last row."""
        index = np.minimum(np.arange(_power_of_two(len(places))), len(places) - 1)
        return self._put(places[index], np.int32), self._put(bits[index], np.int32)

    def _edits(self, rows: Array) -> Edits | None:
        """The edits of all rows, concatenated and padded to a power of two, so that there are few shapes. The padding
        adds 0 to a logit of the first row."""
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
        return self.to_device(np.ascontiguousarray(values, dtype))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length() if number else 0


def _padded(values: Array, size: int, filler: float) -> Array:
    result = np.full(size, filler, values.dtype)
    result[: len(values)] = values
    return result


def bind_ahead(model: Model, ops: BoundOps) -> None:
    """Binds the sampling ops when the model is loaded, so that with --no-fallback a missing kernel is refused at start
    and not in a step."""
    vocab = model.facts.vocab_size
    for greedy, filters in ((True, False), (False, False), (False, True)):
        for logprobs in (-1, 1):
            spec = SampleSpec(vocab, greedy, filters, logprobs)
            if ops.batch_invariant:
                ops.bind("sample", spec)
            else:
                ops.bind("logits_sample", model.head.sampling_spec(spec))
    ops.bind("logprobs", LogprobsSpec(vocab, 1))
    ops.bind("mask_logits", MaskLogitsSpec(vocab))
    ops.bind("edit_logits", EditLogitsSpec(vocab))
    ops.bind("penalise", PenaliseSpec(vocab))


@dataclass(frozen=True)
class SamplingMetadata:
    """The sampling parameters of the rows of a launch. key: equal if the rows and their requests are the same. sample:
    the bound op that samples. rows: the fields of SamplingRows except position, on the device."""

    key: tuple[int, int, bool, bytes]
    spec: SampleSpec
    logits_ops: LogitsOps
    sample: HotCall
    rows: dict[str, Tensor]


class Sampler:
    """Samples tokens from hidden states. Binds the op once for each combination of options, so that options that no row
    uses cost nothing. apart: the head never runs fused with sampling, because features see the logits, or because a
    row's bits must not depend on whether another row's logits are edited."""

    def __init__(
        self, model: Model, ops: BoundOps, columns: SamplingColumns, buffers: Buffers,
        features: Sequence[WorkerFeature], editor: LogitsEditor,
    ) -> None:  # fmt: skip
        self.model, self.ops, self.columns, self.buffers = model, ops, columns, buffers
        self.features, self.editor = features, editor
        self.apart = bool(features) or ops.batch_invariant
        self._calls: dict[tuple[str, Any], HotCall] = {}
        self._newest: SamplingMetadata | None = None

    def __call__(
        self, hidden: Tensor, launch: Launch, rows: Array, positions: Array, masks: TokenMasks | None = None
    ) -> Sampled:
        """Samples a token for each hidden state of a launch. hidden [S, hidden size]. rows: the row of each, without
        padding at the end. positions: the position of the token to sample, for each of `rows`. launch: as
        LaunchBuilder.restore_rows() gives it. masks: of the whole step, which may have other launches."""
        placed = PlacedMasks.of(masks, rows)
        metadata = self._metadata(rows, len(hidden), masked=placed is not None)
        sampling = SamplingRows(**metadata.rows, position=self._put("position", positions, len(hidden)))
        edits = placed is not None or bool(metadata.logits_ops)
        if not self.apart and not edits:
            sampled: Sampled = metadata.sample(hidden, self.model.head.weight, sampling)
            return sampled
        logits = self.model.logits(hidden)
        for feature in self.features:
            logits = feature.logits(launch, logits)
        if edits:
            keep = metadata.spec.logprobs >= 0  # log probabilities are those of the logits before they were edited
            edited = self.editor(metadata.logits_ops, logits, rows, launch.rows, positions, placed, keep=keep)
            sampled = metadata.sample(edited, sampling)
            if keep:
                sampled = Sampled(sampled.tokens, *self._logprobs(metadata.spec, logits, sampled.tokens))
        else:
            sampled = metadata.sample(logits, sampling)
        for feature in self.features:
            feature.after(launch, sampled.tokens)
        return sampled

    def _logprobs(self, spec: SampleSpec, logits: Tensor, tokens: Tensor) -> Logprobs:
        found: Logprobs = self.bind_logprobs(LogprobsSpec(spec.vocab, spec.logprobs))(logits, tokens)
        return found

    def bind_logprobs(self, spec: LogprobsSpec) -> HotCall:
        """The op `logprobs`, bound for at least this many alternatives."""
        return self._call("logprobs", replace(spec, logprobs=_size(spec.logprobs, spec.vocab)))

    def _metadata(self, rows: Array, size: int, *, masked: bool) -> SamplingMetadata:
        """The metadata for these rows; reused if the same rows are sampled again and none was opened since."""
        key = (self.columns.opened, size, masked, rows.tobytes())
        if self._newest is None or self._newest.key != key:
            spec, logits_ops = self._spec(rows), self.editor.ops_of(rows)
            if logits_ops or masked:
                sample = self._call("sample", replace(spec, logprobs=-1))
            else:
                sample = self._call("sample" if self.apart else "logits_sample", spec)
            names = (name for name in SamplingRows._fields if name != "position")
            values = {name: self._put(name, getattr(self.columns, name)[rows], size) for name in names}
            self._newest = SamplingMetadata(key, spec, logits_ops, sample, values)
        return self._newest

    def _spec(self, rows: Array) -> SampleSpec:
        columns, vocab = self.columns, self.model.facts.vocab_size
        return SampleSpec(
            vocab=vocab,
            greedy=not columns.temperature[rows].any(),
            filters=bool(
                (columns.top_k[rows] > 0).any() or (columns.top_p[rows] < 1).any() or (columns.min_p[rows] > 0).any()
            ),
            logprobs=_size(int(columns.logprobs[rows].max(initial=-1)), vocab),
        )

    def _call(self, name: str, spec: Any) -> HotCall:
        if (name, spec) not in self._calls:
            bound = self.model.head.sampling_spec(spec) if name == "logits_sample" else spec
            self._calls[name, spec] = self.ops.bind(name, bound)
        return self._calls[name, spec]

    def _put(self, name: str, values: Array, size: int) -> Tensor:
        """A field of SamplingRows on the device, padded with 0 to `size`."""
        if len(values) < size:
            values = np.concatenate((values, np.zeros((size - len(values), *values.shape[1:]), values.dtype)))
        return self.buffers.put(f"sampling_{name}", values, _DTYPES[name])


_DTYPES = {name: np.dtype(dtype).name for name, (dtype, _) in PARAMETERS.items()} | {
    "seed": "int32",
    "position": "int32",
}


def _size(logprobs: int, vocab: int) -> int:
    """How many alternatives to bind an op for: rounded up to a power of two, since clients may ask for any number and
    bound ops are kept."""
    return logprobs if logprobs <= 1 else min(1 << (logprobs - 1).bit_length(), vocab)
