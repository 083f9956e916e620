"""Puts results where the caller wants them."""

from __future__ import annotations

from torch import Tensor


def into(result: Tensor, out: Tensor | None) -> Tensor:
    """Copies the result to `out`, if given."""
    return result if out is None else out.copy_(result)
