"""Where windows end of models that write no times."""

from __future__ import annotations

import numpy as np

from tessera.speech.cuts import QUIET, window_end
from tessera.speech.model import SAMPLE_RATE


def test_a_window_ends_where_it_is_quietest_near_its_end() -> None:
    samples = np.full(40 * SAMPLE_RATE, 0.5, np.float32)
    samples[10 * SAMPLE_RATE :][:QUIET] = 0.0
    first = 27 * SAMPLE_RATE
    samples[first : first + QUIET] = 0.1
    assert window_end(samples, 0, 30 * SAMPLE_RATE) == first
    assert window_end(samples, first, 30 * SAMPLE_RATE) == len(samples)
    assert window_end(samples, 0, 7) == 7
