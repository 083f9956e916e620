"""Sampling on the device: core's definitions of the ops, compiled. What no row of a launch asks for is not computed."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from tessera.platform import (
    EditLogitsSpec,
    Edits,
    History,
    LogprobsSpec,
    MaskLogitsSpec,
    OpSet,
    PenaliseSpec,
    Penalties,
    SampleSpec,
    SamplingRows,
)
from tessera_tpu.arrays import as_jax, as_torch
from tessera_tpu.inputs import Fields, as_float

EDITS, PREFIX, ALTERNATIVES = 256, 8, 32
"""Edits of a launch, tokens of the prefix of one, and most likely tokens that are reported: so many at most."""

FLOATS = ("temperature", "top_p", "min_p", "presence", "frequency", "repetition", "value")
"""Fields whose int32 are the bits of float32."""

WANTS = ("noise", "filters", "masks", "edits", "penalties", "logprobs")
"""What some row of a launch may ask for."""


def sample_fields(samples: int) -> Fields:
    """wants [6]: 1 where some row asks for this of WANTS. feed [S]: where the next step reads each token, in the
    flattened table of all rows' tokens. row [S]: of each in that table. The others are those of SamplingRows, History,
    Penalties and Edits."""
    one, each = (samples,), (EDITS,)
    rows = dict.fromkeys(
        ("feed", "row", "position", "top_k", "temperature", "top_p", "min_p", "num_prompt", "presence", "frequency",
         "repetition"), one,
    )  # fmt: skip
    edits = {"edited": each, "token": each, "value": each, "until": each, "prefix": (EDITS, PREFIX)}
    return Fields({"wants": (len(WANTS),), **rows, "seed": (samples, 2), **edits})


class DeviceSampler:
    """reference: core's ops."""

    def __init__(self, reference: OpSet, vocab: int) -> None:
        self.reference, self.vocab = reference, vocab

    def __call__(self, logits: Any, tokens: Any, flat: Any, bits: Any) -> tuple[Any, Any]:
        """logits [S, vocab]. tokens [rows, width] int32: of all rows. flat: as sample_fields() says. bits [S,
        ceil(vocab / 32)] int32: of the tokens that each row may sample. Returns the tokens with those that were drawn
        in them, and what was drawn: the tokens [S], and the other fields of Logprobs if some row wants them."""
        parts = sample_fields(len(logits)).split(flat)
        parts |= {name: as_float(parts[name]) for name in FLOATS}
        wants = {name: parts["wants"][place] > 0 for place, name in enumerate(WANTS)}
        edited = logits.astype(jnp.float32)
        edited = jax.lax.cond(wants["masks"], self._masked, lambda logits, _: logits, edited, bits)
        edited = jax.lax.cond(wants["edits"], self._edited, lambda logits, *_: logits, edited, tokens, parts)
        edited = jax.lax.cond(wants["penalties"], self._penalised, lambda logits, *_: logits, edited, tokens, parts)
        kind = wants["noise"].astype(jnp.int32) * (1 + wants["filters"].astype(jnp.int32))
        specs = (
            SampleSpec(self.vocab, greedy=True), SampleSpec(self.vocab), SampleSpec(self.vocab, filters=True),
        )  # fmt: skip
        ids = jax.lax.switch(kind, [partial(self._drawn, spec) for spec in specs], edited, parts).astype(jnp.int32)
        scores = jax.lax.cond(wants["logprobs"], self._scored, self._unscored, logits, ids)
        fed = tokens.reshape(-1).at[parts["feed"]].set(ids).reshape(tokens.shape)
        return fed, (ids, *scores)

    def _masked(self, logits: Any, bits: Any) -> Any:
        rows = jnp.arange(len(logits), dtype=jnp.int32)
        return self._changed("mask_logits", MaskLogitsSpec(self.vocab), logits, rows, bits)

    def _edited(self, logits: Any, tokens: Any, parts: dict[str, Any]) -> Any:
        edits = Edits(parts["edited"], parts["token"], parts["value"], parts["until"], parts["prefix"])
        return self._changed("edit_logits", EditLogitsSpec(self.vocab, PREFIX), logits, _history(tokens, parts), edits)

    def _penalised(self, logits: Any, tokens: Any, parts: dict[str, Any]) -> Any:
        penalties = Penalties(parts["presence"], parts["frequency"], parts["repetition"])
        return self._changed("penalise", PenaliseSpec(self.vocab), logits, _history(tokens, parts), penalties)

    def _drawn(self, spec: SampleSpec, logits: Any, parts: dict[str, Any]) -> Any:
        rows = SamplingRows(*(as_torch(parts[name]) for name in SamplingRows._fields))
        return as_jax(self._call("sample")(spec, as_torch(logits), rows).tokens)

    def _scored(self, logits: Any, ids: Any) -> tuple[Any, Any, Any]:
        spec = LogprobsSpec(self.vocab, self.alternatives)
        found = self._call("logprobs")(spec, as_torch(logits), as_torch(ids))
        return as_jax(found.ids), as_jax(found.logprobs), as_jax(found.ranks)

    def _unscored(self, logits: Any, ids: Any) -> tuple[Any, Any, Any]:
        shape = len(logits), 1 + self.alternatives
        return jnp.zeros(shape, jnp.int32), jnp.zeros(shape), jnp.zeros(len(logits), jnp.int32)

    @property
    def alternatives(self) -> int:
        return min(ALTERNATIVES, self.vocab)

    def _changed(self, name: str, spec: Any, logits: Any, *arguments: Any) -> Any:
        """The result of an op that changes its logits."""
        changed = as_torch(logits)
        self._call(name)(spec, changed, *(as_torch(each) for each in arguments))
        return as_jax(changed)

    def _call(self, name: str) -> Any:
        return self.reference[name].reference


def _history(tokens: Any, parts: dict[str, Any]) -> History:
    return History(tokens, parts["row"], parts["num_prompt"], parts["position"])


def words(vocab: int) -> int:
    """int32 that the bits of a vocabulary take."""
    return -(-vocab // 32)
