"""Turns hidden states into sampled tokens.

The host keeps the sampling parameters of each row. If no request or feature changes the logits, one composite op
samples from the hidden states. Otherwise the logits are computed, masked, edited and penalized first, in this order.
Rows with edits or penalties are drawn for from a copy of their own logits; the other rows are not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from types import MappingProxyType
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
    LogprobsSpec,
    MaskLogitsSpec,
    PenaliseSpec,
    Penalties,
    Sampled,
    SampleSpec,
    SamplingRows,
    TakeLogitsSpec,
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
    SCORES = 8  # changes none of them; log probabilities of tokens that the request names are read from them


class SamplingColumns:
    """Sampling parameters of all rows as host arrays [rows], so that a step reads those of all its rows at once.

    Besides PARAMETERS: seed [rows, 2] int32, its low and high bits; logprobs, prompt_logprobs int32: how many
    alternatives are wanted for sampled and prompt tokens, -1 for no log probabilities; num_prompt_tokens int32;
    logits_ops uint8. edits, masks, scored: of the rows that have any; scored is logprob_token_ids. opened: how often a
    row was opened. eos, vocab: the model's end-of-text tokens and the size of its vocabulary."""

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
        self.scored: dict[int, Array] = {}
        self.opened = 0
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
            self.scored.pop(row, None)
        ops = LogitsOps.PENALTIES if params.penalised else LogitsOps(0)
        edits = RowEdits.of(params, opened.num_prompt_tokens, self.eos, self.vocab)
        if edits is not None:
            self.edits[row] = edits
            ops |= LogitsOps.EDITS
        if params.allowed_token_ids is not None:
            self.masks[row] = allowed_bits(params.allowed_token_ids, self.vocab)
            ops |= LogitsOps.MASK
        if params.logprob_token_ids is not None:
            self.scored[row] = np.array(params.logprob_token_ids, np.int32)
            ops |= LogitsOps.SCORES
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
        if np.array_equal(rows, masks.rows):
            return cls(np.arange(len(rows)), masks.bits)
        places = np.flatnonzero(np.isin(rows, masks.rows))
        if not len(places):
            return None
        held = np.flatnonzero(np.isin(masks.rows, rows))
        in_order = places[np.argsort(rows[places], kind="stable")]
        return cls(in_order, masks.bits[held[np.argsort(masks.rows[held], kind="stable")]])


@dataclass(frozen=True)
class CopiedRows:
    """Rows that are drawn for from a copy of their logits, E of them, on the device. They are padded to a few sizes by
    repeating the last one, which then is drawn for as well and not used. Reused as long as the same rows are copied.

    index: where they are among the S rows that are sampled, without padding, ascending, on the host. take [E] int32:
    the same. merged [S] int32: the place of each row's token, counted over the tokens drawn from the logits as they
    are, then those drawn from the copy; None if all rows are copied. sampling: the fields of SamplingRows except
    position. rows, num_prompt_tokens [E] int32: as in History. edits: None if no row has any. allowed: the places
    among the E and the bits of allowed_token_ids; None if no row has any."""

    index: Array
    take: Tensor
    merged: Tensor | None
    sampling: dict[str, Tensor]
    rows: Tensor
    num_prompt_tokens: Tensor
    penalties: Penalties | None
    edits: Edits | None
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
            allowed = _kept(self._allowed, rows.tobytes(), lambda: self._allowed_of(rows))
            self._mask(logits, masks, allowed)
        index = self._to_copy(rows, masks if keep else None, all_masked=keep)
        if not len(index):
            tokens: Tensor = sample(logits, sampling).tokens
            return tokens
        key = rows.tobytes(), index.tobytes(), len(logits).to_bytes(4, "little")
        copied = _kept(self._copied, key, lambda: self._made(rows, index, len(logits)))
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

    def scored(self, found: Logprobs, logits: Tensor, rows: Array) -> Logprobs:
        """found with the tokens of logprob_token_ids in place of the most likely ones, in the rows that have any.
        logits [S, vocab], without edits. rows: as in draw()."""
        asked = self.columns.scored
        held = [(place, asked[row]) for place, row in enumerate(rows.tolist()) if row in asked]
        if not held:
            return found
        width = found.ids.shape[-1] - 1
        places = self._put(np.array([place for place, _ in held]), np.int32)
        tokens = self._put(np.stack([_repeated(ids, width) for _, ids in held]), np.int32)
        own = self._call("take_logits", TakeLogitsSpec(logits.shape[-1]))(logits, places)
        values = own.log_softmax(-1).gather(-1, tokens.long())
        found.ids[:, 1:].index_copy_(0, places.long(), tokens.to(found.ids.dtype))
        found.logprobs[:, 1:].index_copy_(0, places.long(), values)
        return found

    def _to_copy(self, rows: Array, masks: PlacedMasks | None, *, all_masked: bool) -> Array:
        """The places of the rows to copy: all if padding would make them as many anyway."""
        apart = LogitsOps.EDITS | LogitsOps.PENALTIES | (LogitsOps.MASK if all_masked else 0)
        chosen = (self.columns.logits_ops[rows] & apart) != 0
        if masks is not None:
            chosen[masks.places] = True
        index = np.flatnonzero(chosen)
        return index if _power_of_two(len(index)) < len(rows) else np.arange(len(rows))

    def _change(self, copy: Tensor, copied: CopiedRows, num_tokens: Tensor, most: int) -> None:
        """Edits and penalties. num_tokens [E] int32: how many tokens each row has; most: the largest of them."""
        if copied.edits is None and copied.penalties is None:
            return
        vocab = copy.shape[-1]
        width = max(_FEWEST_TOKENS, 1 << (most - 1).bit_length())  # a power of two, so that there are few shapes
        known = self.tokens[:, : min(width, self.tokens.shape[-1])]
        history = History(known, copied.rows, copied.num_prompt_tokens, num_tokens)
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

    def _made(self, rows: Array, index: Array, size: int) -> CopiedRows:
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
            sampling={name: self._put(getattr(columns, name)[filled], _DTYPES[name]) for name in names},
            rows=self._put(filled, np.int32),
            num_prompt_tokens=self._put(columns.num_prompt_tokens[filled], np.int32),
            penalties=Penalties(*penalties) if ops & LogitsOps.PENALTIES else None,
            edits=self._edits(chosen) if ops & LogitsOps.EDITS else None,
            allowed=self._allowed_of(chosen),
        )

    def _allowed_of(self, rows: Array) -> tuple[Tensor, Tensor] | None:
        """The masks of allowed_token_ids, and their places among `rows`."""
        masks = self.columns.masks
        held = [(place, masks[row]) for place, row in enumerate(rows.tolist()) if row in masks]
        if not held:
            return None
        places, bits = zip(*held, strict=True)
        return self._put_mask(np.array(places), np.stack(bits))

    def _put_mask(self, places: Array, bits: Array) -> tuple[Tensor, Tensor]:
        """In a few sizes; the filler repeats the last row."""
        size = _power_of_two(len(places))
        return self._put(_repeated(places, size), np.int32), self._put(_repeated(bits, size), np.int32)

    def _edits(self, rows: Array) -> Edits:
        """The edits of rows of which some have any, concatenated and padded to a power of two, so that there are few
        shapes. The padding adds 0 to a logit of the first row."""
        columns = self.columns
        held = [(place, columns.edits[row]) for place, row in enumerate(rows.tolist()) if row in columns.edits]
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


Key = TypeVar("Key")
Value = TypeVar("Value")


def _kept(known: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    if key not in known:
        if len(known) >= _MOST_ROW_SETS:
            known.clear()
        known[key] = make()
    return known[key]


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length() if number else 0


def _repeated(values: Array, size: int) -> Array:
    """Padded to `size` by repeating the last."""
    if len(values) == size:
        return values
    return values[np.minimum(np.arange(size), len(values) - 1)]


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
    ops.bind("take_logits", TakeLogitsSpec(vocab))
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
            tokens = self.editor.draw(metadata.sample, logits, sampling, rows, positions, placed, keep=keep)
            sampled = Sampled(tokens)
            if keep:
                found = self._logprobs(metadata.spec, logits, tokens)
                sampled = Sampled(tokens, *self.editor.scored(found, logits, rows))
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
