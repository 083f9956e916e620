"""What memory holds that nobody may read."""

from __future__ import annotations

import torch
from torch import Tensor

_WHOLE = 113  # far from what is written


def poison(plane: Tensor) -> None:
    """Fills it with NaN, or, of whole numbers, with one of them."""
    plane.fill_(torch.nan if plane.is_floating_point() else _WHOLE)
