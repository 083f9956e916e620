"""What transformers' registries get from here: attention, masks and experts that ask the module they are called for.
Registered under names of its own, so that other users of transformers in the process notice nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

SERVED = "tessera"
"""The attention implementation of a served model: masks are not built."""
REHEARSED = "tessera_rehearsal"
"""That of a model under examination: masks say what they are (mask_kind)."""

NO_INTERFACE = "it does not take attention from transformers' attention interface"

CAUSAL, FOREIGN = 0, -1
"""Kinds of masks beside windows, which are given by their size."""


def register() -> None:
    """Idempotent."""
    for name in (SERVED, REHEARSED):
        AttentionInterface.register(name, _attend)
    AttentionMaskInterface.register(REHEARSED, _mask)
    ALL_EXPERTS_FUNCTIONS.register(SERVED, _experts)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **asked: Any
) -> tuple[Tensor, None]:
    """query [1, H, T, D], key and value [1, Hk, T, D] -> [1, T, H, D]."""
    attend: Any = module.tessera_attention
    return attend(module, query, key, value, attention_mask, asked), None


def _experts(module: nn.Module, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """hidden [T, n], ids and weights [T, top_k] -> [T, n]."""
    experts: Any = module.tessera_experts
    result: Tensor = experts(module, hidden, ids, weights)
    return result


def _mask(
    *, q_length: int, kv_length: int, mask_function: Any, device: Any, local_size: int | None = None, **_: Any
) -> Tensor:
    """A mask that carries its kind in every element, whatever part of it a model takes: [1, 1, queries, keys] int64."""
    kind = mask_kind(mask_function, local_size)
    return torch.full((1, 1, q_length, kv_length), kind, dtype=torch.int64, device=device)


def mask_kind(mask_function: Any, local_size: int | None) -> int:
    """CAUSAL, the window of a sliding one, or FOREIGN. mask_function: (batch, head, query, key) -> seen, as
    transformers composes it."""
    keys = torch.arange(max(4096, 3 * (local_size or 0) + 2))
    queries = torch.tensor([0, 1, len(keys) // 2, len(keys) - 1])[:, None]
    try:
        seen = torch.as_tensor(mask_function(torch.tensor(0), torch.tensor(0), queries, keys[None, :]))
        seen = seen.expand(len(queries), len(keys))
    except (IndexError, RuntimeError, TypeError):  # it looks up the tokens of this very batch
        return FOREIGN
    if bool((seen == (keys <= queries)).all()):
        return CAUSAL
    window = int(seen[-1].sum())
    return window if bool((seen == ((keys <= queries) & (keys > queries - window))).all()) else FOREIGN
