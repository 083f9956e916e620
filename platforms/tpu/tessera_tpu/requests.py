"""What the rows of a launch ask of sampling, as the device reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.platform import Array, InputBatch, TokenMasks
from tessera_tpu.inputs import Fields, Prepared
from tessera_tpu.sampling import ALTERNATIVES, EDITS, PREFIX, WANTS, sample_fields, words

_PENALTIES = {"presence": 0.0, "frequency": 0.0, "repetition": 1.0}
"""Those that change nothing."""


@dataclass(frozen=True)
class SamplingInputs:
    """What a launch reads to sample its rows."""

    # An array as sample_fields() says.
    inputs: Array
    # [S, ceil(vocab / 32)] int32: of the tokens that may be sampled; None if any row may sample any.
    bits: Array | None
    # [n]: how many alternatives each row wants; -1: no log probabilities.
    logprobs: Array


class SamplingInputBuilder:
    """width, spare: as in Launches."""

    def __init__(self, batch: InputBatch, vocab: int, width: int, spare: int) -> None:
        self.batch, self.vocab, self.width, self.spare = batch, vocab, width, spare
        self._fields: dict[int, Fields] = {}

    def exceed_program(self, rows: Array) -> bool:
        """Whether the rows of a launch ask for more than its program has room for."""
        sampling = self.batch.sampling
        edits = [sampling.edits[row] for row in rows.tolist() if row in sampling.edits]
        return bool(
            any(row in sampling.scored for row in rows.tolist())
            or sampling.logprobs[rows].max(initial=-1) > min(ALTERNATIVES, self.vocab)
            or sum(len(edit.token) for edit in edits) > EDITS
            or any(edit.prefix.shape[-1] > PREFIX for edit in edits)
        )

    def _fields_of(self, samples: int) -> Fields:
        if samples not in self._fields:
            self._fields[samples] = sample_fields(samples)
        return self._fields[samples]

    def build(self, prepared: Prepared, masks: TokenMasks | None) -> SamplingInputs:
        flat, parts = self._fields_of(prepared.key.num_samples).empty()
        rows, places, sampling = prepared.rows, prepared.places, self.batch.sampling
        parts["feed"][:] = self.spare
        parts["feed"][places] = rows * self.width + prepared.positions
        parts["row"][places], parts["position"][places] = rows, prepared.positions
        parts["num_prompt"][places] = sampling.num_prompt_tokens[rows]
        for name in ("temperature", "top_p", "min_p", "top_k", "seed"):
            parts[name][places] = getattr(sampling, name)[rows].view(np.int32)
        penalised = False
        for name, off in _PENALTIES.items():
            values = getattr(sampling, f"{name}_penalty")[rows]
            parts[name][:] = np.float32(off).view(np.int32)
            parts[name][places] = values.view(np.int32)
            penalised |= bool((values != off).any())
        drawn = sampling.temperature[rows] > 0
        filters = (sampling.top_k[rows] > 0) | (sampling.top_p[rows] < 1) | (sampling.min_p[rows] > 0)
        bits, logprobs = self._bits(prepared, masks), sampling.logprobs[rows]
        wants = {
            "noise": drawn.any(), "filters": (drawn & filters).any(), "masks": bits is not None,
            "edits": self._edit(parts, prepared), "penalties": penalised, "logprobs": (logprobs >= 0).any(),
        }  # fmt: skip
        parts["wants"][:] = [wants[name] for name in WANTS]
        return SamplingInputs(flat, bits, logprobs)

    def _edit(self, parts: dict[str, Array], prepared: Prepared) -> bool:
        """Writes the edits of all rows that have any. Others add 0 to a logit."""
        edits, done = self.batch.sampling.edits, 0
        parts["prefix"][:] = -1
        for place, row in zip(prepared.places.tolist(), prepared.rows.tolist(), strict=True):
            own: Any = edits.get(row)
            if own is None:
                continue
            here = slice(done, done := done + len(own.token))
            parts["edited"][here], parts["token"][here], parts["until"][here] = place, own.token, own.until
            parts["value"][here] = own.value.view(np.int32)
            parts["prefix"][here, PREFIX - own.prefix.shape[-1] :] = own.prefix
        return done > 0

    def _bits(self, prepared: Prepared, masks: TokenMasks | None) -> Array | None:
        """A row that is sampled several times has as many masks, in the same order."""
        rows, places, allowed = prepared.rows, prepared.places, self.batch.sampling.masks
        own = [(place, allowed[row]) for place, row in zip(places, rows.tolist(), strict=True) if row in allowed]
        held = np.zeros(0, int) if masks is None else np.flatnonzero(np.isin(masks.rows, rows))
        if not own and not len(held):
            return None
        bits = np.full((prepared.key.num_samples, words(self.vocab)), -1, np.int32)
        if masks is not None and len(held):
            masked = np.flatnonzero(np.isin(rows, masks.rows))
            masked = masked[np.argsort(rows[masked], kind="stable")]
            bits[places[masked]] = masks.bits[held[np.argsort(masks.rows[held], kind="stable")]]
        for place, given in own:
            bits[place] &= given
        return bits
