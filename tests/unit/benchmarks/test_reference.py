from __future__ import annotations

import pytest
import torch
from benchmarks.peers.reference import near
from benchmarks.task import TOLERANCES, WIDEST


def test_every_token_that_a_tolerance_allows_is_kept():
    below = [1.0, 0.0, 0.3, WIDEST - 0.01, WIDEST + 0.01, 9.0]
    found = near(5.0 - torch.tensor(below))
    assert found == {token: pytest.approx(gap, abs=1e-3) for token, gap in enumerate(below) if gap < WIDEST}
    assert max(TOLERANCES.values()) <= WIDEST
