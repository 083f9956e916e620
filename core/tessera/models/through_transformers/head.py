"""The way from hidden states to logits: one product, then a scale and a soft cap; found by comparing what goes in with
what comes out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.models.refused import RefusedTypeError

_TOLERANCE = 1e-4


@dataclass(frozen=True)
class HeadShape:
    """logits = cap * tanh(scale * product(hidden) / cap); cap 0: without."""

    scale: float = 1.0
    cap: float = 0.0

    @classmethod
    def of(cls, hidden: Tensor, taken: Tensor, product: Tensor, logits: Tensor, cap: float) -> HeadShape:
        """hidden: what the model below gave; taken: what the head's product got; product: what it gave; logits: what
        the whole model gave. cap: of the configuration. Raises RefusedTypeError where they do not fit together."""
        before = _ratio(taken, hidden)
        if before is None:
            raise RefusedTypeError("its head is more than one product")
        plain = _ratio(logits, product)
        if plain is not None:
            return cls(before * plain)
        if cap and torch.allclose(logits, cap * torch.tanh(product / cap), rtol=_TOLERANCE, atol=_TOLERANCE):
            return cls(before, cap)
        raise RefusedTypeError("it changes its logits in a way that is not known here")


def _ratio(large: Tensor, small: Tensor) -> float | None:
    """The factor between two tensors, where there is one."""
    if large.shape != small.shape:
        return None
    wide, narrow = large.double().flatten(), small.double().flatten()
    factor = float(wide @ narrow / (narrow @ narrow))
    factor = round(factor) if abs(factor - round(factor)) < 1e-7 and round(factor) else factor
    return factor if torch.allclose(wide, factor * narrow, rtol=_TOLERANCE, atol=_TOLERANCE) else None
