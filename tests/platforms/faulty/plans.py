"""What is planted in a plan, in the words of each backend: PagedPlan of the reference and of strict has positions of
queries and keys, fakechip's how far a key lies before its query (negative: not seen)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def one_ahead(plan: Any) -> Mapping[str, Tensor]:
    """Each query sees the key after its own too, where there is one."""
    if hasattr(plan, "query"):
        return {"query": plan.query + 1}
    return {"back": torch.where(_there(plan), plan.back + 1, plan.back)}


def to_the_end_of_the_block(plan: Any) -> Mapping[str, Tensor]:
    """The last block's keys are there, also those that nobody wrote."""
    if hasattr(plan, "filled"):
        return {"filled": _whole_blocks(plan.filled, plan)}
    stale = _whole_blocks(_there(plan), plan) & ~_there(plan)
    return {"back": torch.where(stale, 0, plan.back)}


def first_128_keys(plan: Any) -> Mapping[str, Tensor]:
    """Keys behind the first tile are not there."""
    if hasattr(plan, "filled"):
        return {"filled": plan.filled & (plan.key < 128)}
    key = torch.arange(plan.back.shape[-1], device=plan.back.device)
    return {"back": torch.where(key < 128, plan.back, -1)}


def rows(plan: Any) -> Tensor:
    """Of tokens, [T]."""
    return getattr(plan, "grid", plan).row


def places(plan: Any) -> Tensor:
    """Of tokens in their rows, [T]."""
    grid = getattr(plan, "grid", plan)
    return grid.place


def _there(plan: Any) -> Tensor:
    return (plan.back >= 0).any(1, keepdim=True)


def _whole_blocks(keys: Tensor, plan: Any) -> Tensor:
    blocks = keys.unflatten(-1, (plan.tables.shape[1], -1))
    return blocks.any(-1, keepdim=True).expand_as(blocks).flatten(-2)
