"""Hidden states to drawn tokens: one composite where nobody touches the logits; features and what rows ask for in
between where somebody does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from tessera.arrays import Array
from tessera.platform.launch import Launch
from tessera.platform.model import Model
from tessera.platform.ops import (
    BoundOps,
    EditLogitsSpec,
    HotCall,
    LogprobsSpec,
    MaskLogitsSpec,
    PenaliseSpec,
    Sampled,
    SampleSpec,
    SamplingRows,
)
from tessera.platform.runner import Feature
from tessera.runner.buffers import DeviceBuffers
from tessera.runner.logits import LogitsEditor
from tessera.runner.sampling_columns import Asks, SamplingColumns


def bind_ahead(model: Model, ops: BoundOps) -> None:
    """Binds what rows may ask for while the model is loaded, so that a platform that may not fall back is refused then
    and not in a step."""
    vocab = model.facts.vocab_size
    for greedy, filters in ((True, False), (False, False), (False, True)):
        for logprobs in (-1, 1):
            ops.bind("logits_sample", model.head.sampling_spec(SampleSpec(vocab, greedy, filters, logprobs)))
    ops.bind("logprobs", LogprobsSpec(vocab, 1))
    ops.bind("mask_logits", MaskLogitsSpec(vocab))
    ops.bind("edit_logits", EditLogitsSpec(vocab))
    ops.bind("penalise", PenaliseSpec(vocab))


class Sampler:
    """Binds sampling once for each combination of what rows ask for; a step in which nobody asks for anything pays for
    nothing."""

    def __init__(
        self, model: Model, ops: BoundOps, columns: SamplingColumns, buffers: DeviceBuffers,
        features: Sequence[Feature], editor: LogitsEditor,
    ) -> None:  # fmt: skip
        self.model, self.ops, self.columns, self.buffers = model, ops, columns, buffers
        self.features, self.editor = features, editor
        self._calls: dict[tuple[str, Any], HotCall] = {}

    def __call__(self, hidden: Tensor, launch: Launch, rows: Array, positions: Array) -> Sampled:
        """hidden [R, n] of the launch's rows; rows: of its requests; positions: of the tokens to draw."""
        spec, asks = self._spec(rows), self.editor.asks(rows)
        sampling = self._rows(rows, positions, launch.key.rows)
        if not self.features and not asks:
            sampled: Sampled = self._call(spec, "logits_sample")(hidden, self.model.head.weight, sampling)
            return sampled
        logits = self.model.logits(hidden)
        for feature in self.features:
            logits = feature.logits(launch, logits)
        if asks:
            sampled = self._draw_edited(asks, spec, logits, launch, rows, positions, sampling)
        else:
            sampled = self._call(spec, "sample")(logits, sampling)
        for feature in self.features:
            feature.after(launch, sampled.tokens)
        return sampled

    def bind_logprobs(self, spec: LogprobsSpec) -> HotCall:
        """The op, for at least as many alternatives, in a few sizes."""
        return self._call(replace(spec, logprobs=_size(spec.logprobs, spec.vocab)), "logprobs")

    def _draw_edited(
        self, asks: Asks, spec: SampleSpec, logits: Tensor, launch: Launch, rows: Array, positions: Array,
        sampling: SamplingRows,
    ) -> Sampled:  # fmt: skip
        """Drawn from what is asked for; log probabilities are of the logits as they came."""
        edited = self.editor(asks, logits, rows, launch.rows, positions)
        sampled: Sampled = self._call(replace(spec, logprobs=-1), "sample")(edited, sampling)
        if spec.logprobs < 0:
            return sampled
        return Sampled(
            sampled.tokens, *self.bind_logprobs(LogprobsSpec(spec.vocab, spec.logprobs))(logits, sampled.tokens)
        )

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

    def _call(self, spec: Any, name: str) -> HotCall:
        if (name, spec) not in self._calls:
            self._calls[name, spec] = self.ops.bind(
                name, self.model.head.sampling_spec(spec) if name == "logits_sample" else spec
            )
        return self._calls[name, spec]

    def _rows(self, rows: Array, positions: Array, size: int) -> SamplingRows:
        def put(name: str, values: Any) -> Tensor:
            padded = np.zeros(size, values.dtype)
            padded[: len(rows)] = values
            return self.buffers.put(f"sampling_{name}", padded, values.dtype.name)

        columns = self.columns
        return SamplingRows(
            temperature=put("temperature", columns.temperature[rows]),
            top_k=put("top_k", columns.top_k[rows]),
            top_p=put("top_p", columns.top_p[rows]),
            min_p=put("min_p", columns.min_p[rows]),
            seed=put("seed", columns.seed[rows]),
            position=put("position", positions.astype(np.int64)),
        )


def _size(logprobs: int, vocab: int) -> int:
    """Alternatives to bind for: clients name any number, and each that is bound stays."""
    return logprobs if logprobs <= 1 else min(1 << (logprobs - 1).bit_length(), vocab)
