"""When each token of a text was said: from how much tokens attend to the positions of a sound to times, by dynamic time
warping, as openai-whisper's timing.py (arXiv:2212.04356; the warping: Sakoe and Chiba 1978)."""

from __future__ import annotations

import numpy as np

from tessera.arrays import Array

_SMOOTHED = 7
"""Positions of which the median is taken."""


def token_starts(attention: Array, positions: int) -> Array:
    """[tokens] int64: the position at which each token begins. attention: [tokens, heads, positions] float32, each row
    of which sums to 1. positions: of the recording; those behind them are silence that fills the window."""
    heard = attention[:, :, :positions].astype(np.float64)
    heard /= np.maximum(heard.sum(-1, keepdims=True), 1e-30)
    spread = np.maximum(heard.std(0, keepdims=True), 1e-30)
    smooth = _medians((heard - heard.mean(0, keepdims=True)) / spread)
    return _warped(-smooth.mean(1))


def _medians(values: Array) -> Array:
    """Of each value and its neighbours on the last axis, which is mirrored at its ends."""
    reach = _SMOOTHED // 2
    if values.shape[-1] <= reach:
        return values
    wide = np.pad(values, ((0, 0), (0, 0), (reach, reach)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(wide, _SMOOTHED, axis=-1)
    medians: Array = np.partition(windows, reach, axis=-1)[..., reach]
    return medians


def _warped(costs: Array) -> Array:
    """[tokens]: the first position of each token on the cheapest way through costs [tokens, positions], on which
    neither a token nor a position goes back."""
    tokens, positions = costs.shape
    totals = np.full((tokens + 1, positions + 1), np.inf)
    totals[0, 0] = 0.0
    for token in range(tokens):
        # A way enters a token's row from the row above, and goes on in it: its cost from a place on is a sum.
        sums = np.concatenate(([0.0], np.cumsum(costs[token])))
        entered = np.minimum(totals[token, :-1], totals[token, 1:])
        totals[token + 1, 1:] = np.minimum.accumulate(entered - sums[:-1]) + sums[1:]
    starts = np.zeros(tokens, np.int64)
    token, position = tokens, positions
    while token > 0 and position > 0:
        starts[token - 1] = position - 1
        both, above, before = totals[token - 1, position - 1], totals[token - 1, position], totals[token, position - 1]
        if both < above and both < before:
            token, position = token - 1, position - 1
        elif above < both and above < before:
            token -= 1
        else:
            position -= 1
    return starts
