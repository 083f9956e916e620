"""Turns hidden states into sampled tokens.

If no request or feature changes the logits, one composite op samples from the hidden states. Otherwise the logits are
computed, masked, edited and penalized first, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from tessera.arrays import Array
from tessera.ops import (
    EditLogitsSpec,
    Logprobs,
    LogprobsSpec,
    MaskLogitsSpec,
    PenaliseSpec,
    Sampled,
    SampleSpec,
    SamplingRows,
    TakeLogitsSpec,
)
from tessera.platform.feature import WorkerFeature
from tessera.platform.launch import Buffers, Launch
from tessera.platform.model import Model
from tessera.platform.ops import BoundOps, HotCall
from tessera.runner.input_batch import SAMPLING_DTYPES, LogitsOps, SamplingColumns
from tessera.runner.logits_editor import LogitsEditor, PlacedMasks
from tessera.step import TokenMasks


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
    """The sampling parameters of the rows of a launch."""

    # Equal if the rows and their requests are the same.
    key: tuple[int, int, bool, bytes]
    spec: SampleSpec
    # Of all rows together.
    logits_ops: LogitsOps
    # The bound op that samples.
    sample: HotCall
    # The fields of SamplingRows except position, on the device.
    rows: dict[str, Tensor]


class Sampler:
    """Samples tokens from hidden states. Binds the op once for each combination of options, so that options that no row
    uses cost nothing. apart: the head never runs fused with sampling, because features see the logits, or because a
    row's bits must not depend on whether another row's logits are edited."""

    def __init__(
        self,
        model: Model,
        ops: BoundOps,
        columns: SamplingColumns,
        buffers: Buffers,
        features: Sequence[WorkerFeature],
        editor: LogitsEditor,
    ) -> None:
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
        placed = PlacedMasks.place(masks, rows)
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
                likely = self._logprobs(metadata.spec, logits, tokens)
                sampled = Sampled(tokens, *self.editor.score(likely, logits, rows))
        else:
            sampled = metadata.sample(logits, sampling)
        for feature in self.features:
            feature.after(launch, sampled.tokens)
        return sampled

    def _logprobs(self, spec: SampleSpec, logits: Tensor, tokens: Tensor) -> Logprobs:
        logprobs: Logprobs = self.bind_logprobs(LogprobsSpec(spec.vocab, spec.logprobs))(logits, tokens)
        return logprobs

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
        return self.buffers.put(f"sampling_{name}", values, SAMPLING_DTYPES[name])


def _size(logprobs: int, vocab: int) -> int:
    """How many alternatives to bind an op for: rounded up to a power of two, since clients may ask for any number and
    bound ops are kept."""
    return logprobs if logprobs <= 1 else min(1 << (logprobs - 1).bit_length(), vocab)
