"""Results where the caller wants them."""

from __future__ import annotations

from torch import Tensor


def into(result: Tensor, out: Tensor | None) -> Tensor:
    """The result, in `out` where the caller brought one."""
    return result if out is None else out.copy_(result)
