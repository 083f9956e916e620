"""Sampling on the device: core's definition of the op, compiled, and which requests it can serve.

Rows whose logits are masked, edited or penalized, or whose log probabilities are wanted, are sampled by core's sampler
on the host, and all rows of their step with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tessera.platform import Array, InputBatch, OpSet, SampleSpec, SamplingRows, SchedulerOutput
from tessera_tpu.arrays import as_jax, as_torch
from tessera_tpu.inputs import Fields, Prepared, as_float, empty, parts_of

GREEDY, NOISE, FILTERS = range(3)
"""What the rows of a launch ask for at most: each takes longer than the one before."""

_FLOATS = ("temperature", "top_p", "min_p")


def sample_fields(samples: int) -> Fields:
    """kind [1]: one of the above. feed [S]: where the next step reads each token, in the flattened table of all rows'
    tokens. The others are those of SamplingRows."""
    one = (samples,)
    return {
        "kind": (1,), "feed": one, "position": one, "top_k": one, "temperature": one, "top_p": one, "min_p": one,
        "seed": (samples, 2),
    }  # fmt: skip


def sample_inputs(prepared: Prepared, batch: InputBatch, width: int, spare: int) -> Array:
    """width, spare: as in Launches."""
    flat, parts = empty(sample_fields(prepared.key.num_samples))
    rows, places, sampling = prepared.rows, prepared.places, batch.sampling
    parts["feed"][:] = spare
    parts["feed"][places] = rows * width + prepared.positions
    parts["position"][places] = prepared.positions
    for name in (*_FLOATS, "top_k", "seed"):
        parts[name][places] = getattr(sampling, name)[rows].view(np.int32)
    parts["kind"][0] = _kind(sampling, rows)
    return flat


def _kind(sampling: Any, rows: Array) -> int:
    drawn = sampling.temperature[rows] > 0
    if not drawn.any():
        return GREEDY
    filters = (sampling.top_k[rows] > 0) | (sampling.top_p[rows] < 1) | (sampling.min_p[rows] > 0)
    return FILTERS if (drawn & filters).any() else NOISE


def drawn(reference: OpSet, vocab: int, logits: Any, flat: Any) -> tuple[Any, Any]:
    """logits [S, vocab] -> tokens [S] int32, and where to feed them."""
    parts = parts_of(flat, sample_fields(len(logits)))
    values = {name: as_float(parts[name]) if name in _FLOATS else parts[name] for name in SamplingRows._fields}
    call = reference["sample"].reference
    assert call is not None

    def draw(spec: SampleSpec, logits: Any, values: dict[str, Any]) -> Any:
        return as_jax(call(spec, as_torch(logits), SamplingRows(**as_torch(values))).tokens)

    specs = [SampleSpec(vocab, greedy=True), SampleSpec(vocab), SampleSpec(vocab, filters=True)]
    tokens = jax.lax.switch(parts["kind"][0], [partial(draw, spec) for spec in specs], logits, values)
    return tokens.astype(jnp.int32), parts["feed"]


class HostRows:
    """Which rows core's sampler on the host must serve."""

    def __init__(self) -> None:
        self.rows: set[int] = set()

    def open(self, step: SchedulerOutput) -> None:
        for opened in step.opened:
            self.rows.discard(opened.row)
            if asks_for_the_host(opened.params):
                self.rows.add(opened.row)

    def among(self, rows: Sequence[int]) -> bool:
        return not self.rows.isdisjoint(rows)


def asks_for_the_host(params: Any) -> bool:
    """params: SamplingParams. Whether they change logits or want to see them."""
    return bool(
        params.penalised
        or params.logprobs is not None
        or params.logprob_token_ids is not None
        or params.logit_bias
        or params.bad_words_ids
        or params.min_tokens
        or params.allowed_token_ids is not None
    )
