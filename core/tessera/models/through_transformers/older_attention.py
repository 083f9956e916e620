"""Attention of modules from before transformers' attention interface, which compute it in a method of their own, _attn
(GPT-J, CodeGen, GPT-Neo). What the method computes is read off from its results on random numbers; then attention goes
through the interface as elsewhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tessera.models.fields import RefusedTypeError
from tessera.models.through_transformers.skeleton import NO_INTERFACE, Sight

_ARGUMENTS = ["query", "key", "value", "attention_mask"]
_TOLERANCE = 1e-3
_QUERIES = 2
_KEYS = 4096  # where a configuration has no limit of positions

Method = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""query, key and value [1, H, T, D], a mask that is added to scores -> [1, H, T, D], shares of values [1, H, T, T]."""


def route_methods(model: PreTrainedModel) -> None:
    """Sends the attention of all such modules to where the interface sends that of others."""
    keys = getattr(model.config.get_text_config(), "max_position_embeddings", _KEYS)
    for module in model.modules():
        method: Any = getattr(module, "_attn", None)
        if callable(method) and list(inspect.signature(method).parameters) == _ARGUMENTS:
            module._attn = partial(_attend, module, method, keys)


def _attend(
    module: nn.Module, method: Method, keys: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, None]:
    """mask: in the rehearsal, one that shows its kind. keys: of the longest text."""
    arguments = {}
    if mask is not None:
        scale, sight = _read(method, query.shape[1], query.shape[3], keys, mask)
        mask, arguments = torch.full_like(mask, sight.number), {"scaling": scale}
    attend: Any = module.tessera_attention
    # A rotation in float32 leaves queries and keys so.
    return attend(module, query.to(value.dtype), key.to(value.dtype), value, mask, arguments).transpose(1, 2), None


def _read(method: Method, heads: int, dim: int, keys: int, mask: Tensor) -> tuple[float, Sight]:
    """The scale of scores and what a query sees, by the shares of the last queries of a text. Raises RefusedTypeError
    for attention that is more than that."""
    if bool((mask != Sight(None, ahead=False).number).any()):
        raise RefusedTypeError(NO_INTERFACE)
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, size, dim, generator=draw) for size in (_QUERIES, keys, keys))
    query *= dim**-0.5  # so that no share is 0 without a scale
    seen = torch.ones(_QUERIES, keys, dtype=torch.bool).tril(keys - _QUERIES)
    result, shares = method(query, key, value, torch.zeros(seen.shape).masked_fill(~seen, torch.finfo().min))
    window = int((shares[0, 0, -1] > 0).sum())
    scores = (query @ key.transpose(2, 3)).masked_fill(~seen.triu(keys - _QUERIES - window + 1), -torch.inf)
    for scale in (dim**-0.5, 1.0):
        expected = torch.softmax(scores * scale, -1)
        if _same(expected, shares) and _same(expected @ value, result):
            return scale, Sight(window if window < keys else None, ahead=False)
    raise RefusedTypeError(NO_INTERFACE)


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=_TOLERANCE, atol=1e-6)
