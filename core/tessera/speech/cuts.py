"""Where a recording is cut for a model that writes no times, and so does not say how far it got: at a quiet place."""

from __future__ import annotations

import numpy as np

from tessera.arrays import Array
from tessera.speech.model import SAMPLE_RATE

SEARCHED = 5 * SAMPLE_RATE
"""Samples before the end of a full window, among which the quietest place is."""
QUIET = SAMPLE_RATE // 10
"""Samples of such a place."""


def window_end(samples: Array, start: int, width: int) -> int:
    """The end of the window that begins at start: that of the recording if it is within width. Otherwise the window
    ends where the quietest place begins, of those one behind the other in its last seconds."""
    end = start + width
    if end >= len(samples):
        return len(samples)
    first = max(start + 1, end - SEARCHED)
    places = (end - first) // QUIET
    if not places:
        return end
    loudness = np.square(samples[first : first + places * QUIET].reshape(places, QUIET)).mean(axis=1)
    return first + int(loudness.argmin()) * QUIET
