"""Arithmetic on arrays that several parts share."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.arrays import int32, ranges


@pytest.mark.parametrize(
    ("starts", "counts", "numbers"),
    [
        ([7, 0, 20], [2, 3, 1], [7, 8, 0, 1, 2, 20]),
        ([5, 9, 1], [1, 0, 2], [5, 1, 2]),
        ([4], [0], []),
        ([], [], []),
    ],
)
def test_ranges_follow_one_another(starts: list[int], counts: list[int], numbers: list[int]) -> None:
    found = ranges(int32(starts), int32(counts))
    assert (found.dtype, found.tolist()) == (np.int64, numbers)
