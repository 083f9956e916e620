"""Hidden states to drawn tokens: one composite where nobody touches the logits, the features in between where somebody
does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from tessera.arrays import Array
from tessera.platform.launch import Launch
from tessera.platform.ops import BoundOps, HotCall, Sampled, SampleSpec, SamplingRows
from tessera.platform.runner import Feature, Model
from tessera.runner.batch import SamplingColumns
from tessera.runner.buffers import DeviceBuffers


def bind_ahead(model: Model, ops: BoundOps) -> None:
    """Binds what rows may ask for while the model is loaded, so that a platform that may not fall back is refused then
    and not in a step."""
    for greedy, filters in ((True, False), (False, False), (False, True)):
        for logprobs in (-1, 1):
            ops.bind(
                "logits_sample", model.head.sampling_spec(SampleSpec(model.facts.vocab_size, greedy, filters, logprobs))
            )


class Sampler:
    """Binds sampling once for each combination of what rows ask for; a step in which nobody asks for anything pays for
    nothing."""

    def __init__(
        self, model: Model, ops: BoundOps, columns: SamplingColumns, buffers: DeviceBuffers, features: Sequence[Feature]
    ) -> None:
        self.model, self.ops, self.columns, self.buffers = model, ops, columns, buffers
        self.features = features
        self._calls: dict[SampleSpec, HotCall] = {}

    def __call__(self, hidden: Tensor, launch: Launch, rows: Array, positions: Array) -> Sampled:
        """hidden [R, n] of the launch's rows; rows: of its requests; positions: of the tokens to draw."""
        columns = self.columns
        spec = SampleSpec(
            vocab=self.model.facts.vocab_size,
            greedy=not columns.temperature[rows].any(),
            filters=bool(
                (columns.top_k[rows] > 0).any() or (columns.top_p[rows] < 1).any() or (columns.min_p[rows] > 0).any()
            ),
            logprobs=int(columns.logprobs[rows].max(initial=-1)),
        )
        sampling = self._rows(rows, positions, launch.key.rows)
        if not self.features:
            sampled: Sampled = self._call(spec, "logits_sample")(hidden, self.model.head.weight, sampling)
            return sampled
        logits = self.model.logits(hidden)
        for feature in self.features:
            logits = feature.logits(launch, logits)
        sampled = self._call(spec, "sample")(logits, sampling)
        for feature in self.features:
            feature.after(launch, sampled.tokens)
        return sampled

    def _call(self, spec: SampleSpec, name: str) -> HotCall:
        if spec not in self._calls:
            self._calls[spec] = self.ops.bind(
                name, self.model.head.sampling_spec(spec) if name == "logits_sample" else spec
            )
        return self._calls[spec]

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
