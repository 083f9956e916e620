"""Hidden states to drawn tokens: one composite where nobody touches the logits; features and what rows ask for in
between where somebody does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from tessera.arrays import Array
from tessera.ops import EditLogitsSpec, LogprobsSpec, MaskLogitsSpec, PenaliseSpec, Sampled, SampleSpec, SamplingRows
from tessera.platform.kernel import HotCall
from tessera.platform.launch import Launch
from tessera.platform.model import Model
from tessera.platform.ops import BoundOps
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
        self._asked: _Asked | None = None

    def __call__(self, hidden: Tensor, launch: Launch, rows: Array, positions: Array) -> Sampled:
        """hidden [R, n] of the launch's rows; rows: of its requests; positions: of the tokens to draw."""
        asked = self._asked_by(rows, launch.key.rows)
        sampling = asked.at(self._put("position", positions, launch.key.rows, "int64"))
        if not self.features and not asked.asks:
            sampled: Sampled = asked.draw(hidden, self.model.head.weight, sampling)
            return sampled
        logits = self.model.logits(hidden)
        for feature in self.features:
            logits = feature.logits(launch, logits)
        if asked.asks:
            sampled = self._draw_edited(asked, logits, launch, rows, positions, sampling)
        else:
            sampled = asked.draw(logits, sampling)
        for feature in self.features:
            feature.after(launch, sampled.tokens)
        return sampled

    def bind_logprobs(self, spec: LogprobsSpec) -> HotCall:
        """The op, for at least as many alternatives, in a few sizes."""
        return self._call(replace(spec, logprobs=_size(spec.logprobs, spec.vocab)), "logprobs")

    def _draw_edited(
        self, asked: _Asked, logits: Tensor, launch: Launch, rows: Array, positions: Array, sampling: SamplingRows
    ) -> Sampled:
        """Drawn from what is asked for; log probabilities are of the logits as they came."""
        spec, edited = asked.spec, self.editor(asked.asks, logits, rows, launch.rows, positions)
        sampled: Sampled = asked.draw(edited, sampling)
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

    def _asked_by(self, rows: Array, size: int) -> _Asked:
        """The same as before where the same rows are drawn for and none was opened since."""
        whose = (self.columns.opened, size, rows.tobytes())
        if self._asked is None or self._asked.whose != whose:
            columns, spec, asks = self.columns, self._spec(rows), self.editor.asks(rows)
            self._asked = _Asked(
                whose,
                spec,
                asks,
                self._draw(spec, asks),
                temperature=self._put("temperature", columns.temperature[rows], size, "float32"),
                top_k=self._put("top_k", columns.top_k[rows], size, "int32"),
                top_p=self._put("top_p", columns.top_p[rows], size, "float32"),
                min_p=self._put("min_p", columns.min_p[rows], size, "float32"),
                seed=self._put("seed", columns.seed[rows], size, "int64"),
            )
        return self._asked

    def _draw(self, spec: SampleSpec, asks: Asks) -> HotCall:
        """From hidden states where nobody touches the logits, else from those."""
        if asks:
            return self._call(replace(spec, logprobs=-1), "sample")
        return self._call(spec, "sample" if self.features else "logits_sample")

    def _put(self, name: str, values: Array, size: int, dtype: str) -> Tensor:
        """Of SamplingRows, 0 for the padding."""
        if len(values) < size:
            values = np.concatenate((values, np.zeros(size - len(values), values.dtype)))
        return self.buffers.put(f"sampling_{name}", values, dtype)


@dataclass(frozen=True)
class _Asked:
    """What a choice of rows asks for, on the host and on the device. whose: equal for the same rows with the same
    requests. draw: the op that draws for them."""

    whose: tuple[int, int, bytes]
    spec: SampleSpec
    asks: Asks
    draw: HotCall
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor

    def at(self, position: Tensor) -> SamplingRows:
        return SamplingRows(self.temperature, self.top_k, self.top_p, self.min_p, self.seed, position)


def _size(logprobs: int, vocab: int) -> int:
    """Alternatives to bind for: clients name any number, and each that is bound stays."""
    return logprobs if logprobs <= 1 else min(1 << (logprobs - 1).bit_length(), vocab)
