"""What one request asks of its row's logits, as arrays made once, when the row is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tessera.arrays import Array
from tessera.request import SamplingParams

FOREVER = 2**31 - 1


@dataclass(frozen=True)
class RowEdits:
    """Of one row, as Edits has them: token, until [E] int32, value [E] float32, prefix [E, P] int32."""

    token: Array
    value: Array
    until: Array
    prefix: Array

    @classmethod
    def of(cls, params: SamplingParams, num_prompt_tokens: int, eos: Sequence[int], vocab: int) -> RowEdits | None:
        """None where the request edits nothing. eos: the model's own end-of-text tokens, which min_tokens holds off
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
    """[ceil(vocab / 32)] int32, as mask_logits takes them: the allowed tokens' bits are set."""
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
