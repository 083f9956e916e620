"""A layer over a paged cache of planes: how the library's kernels prepare queries and write keys and values into it.
What attends over it is a subclass's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from tessera.platform import (
    KV_FP8,
    KV_INT8,
    BoundOps,
    Caches,
    FullAttentionSpec,
    HeadsLayer,
    LayerSpec,
)
from tessera_triton.cache import IN_FP8, IN_INT8, PLAIN, heads_input, write_heads
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two

_ROWS_AT_ONCE = 4096  # elements of heads that a program writes


class CachePlan(Protocol):
    """What a plan says of the cache. slots [T]: of the launch's tokens. size: tokens of a block."""

    @property
    def slots(self) -> Tensor: ...
    @property
    def size(self) -> int: ...


class CachedLayer(HeadsLayer):
    """Keys and values are in dense planes [blocks, token, head, dim], with their scales before them where they have
    some. A subclass adds attend()."""

    def __init__(
        self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, facts: DeviceFacts, launch: Launcher
    ) -> None:
        super().__init__(spec, weights, ops)
        self.facts, self.launch = facts, launch
        cache = spec.cache
        assert isinstance(cache, FullAttentionSpec)
        form = IN_INT8 if cache.quant == KV_INT8 else IN_FP8 if cache.quant == KV_FP8 else PLAIN
        # One of PLAIN, IN_INT8 and IN_FP8.
        self.cache_format: int = form.value
        self.dim = power_of_two(spec.head_dim)
        self.group = spec.num_heads // spec.num_kv_heads

    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: CachePlan) -> Tensor:
        spec, tokens = self.spec, len(x)
        q = x.new_empty(tokens, spec.num_heads, spec.head_dim)
        rotary, q_norm, k_norm = spec.rotary, spec.q_norm, spec.k_norm
        table = x if rotary is None else self.weights["cos_sin"]
        block = self._rows_at_once
        if tokens:
            self.launch(
                heads_input,
                (-(-tokens * spec.num_heads // block) + 2 * -(-tokens * spec.num_kv_heads // block),),
                x, x.stride(0), positions, table, table.stride(0),
                x if q_norm is None else self.weights["q_norm"], x if k_norm is None else self.weights["k_norm"],
                plan.slots, q, *self._planes(caches), tokens,
                *((0.0, 0.0) if q_norm is None else (q_norm.eps, q_norm.offset)),
                *((0.0, 0.0) if k_norm is None else (k_norm.eps, k_norm.offset)),
                HEADS=spec.num_heads, KV_HEADS=spec.num_kv_heads, DIM=spec.head_dim, SIZE=plan.size,
                FORMAT=self.cache_format, ROTARY=0 if rotary is None else rotary.dim,
                PAIRS=rotary is not None and rotary.style == "pairs",
                Q_NORMED=q_norm is not None, K_NORMED=k_norm is not None, BLOCK_R=block, BLOCK_D=self.dim, num_warps=4,
            )  # fmt: skip
        return self.attend(q, caches, plan).flatten(1)

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: CachePlan) -> None:
        spec, block = self.spec, self._rows_at_once
        k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (k, v))
        if len(k):
            self.launch(
                write_heads, (-(-len(k) * spec.num_kv_heads // block),),
                k, k.stride(0), k.stride(1), v, v.stride(0), v.stride(1), plan.slots, *self._planes(caches), len(k),
                KV_HEADS=spec.num_kv_heads, DIM=spec.head_dim, SIZE=plan.size, FORMAT=self.cache_format, BLOCK_R=block,
                BLOCK_D=self.dim, num_warps=4,
            )  # fmt: skip

    @property
    def _rows_at_once(self) -> int:
        return max(_ROWS_AT_ONCE // self.dim, 1)

    def _planes(self, caches: Caches) -> Sequence[Any]:
        """The keys and the values, each with the stride of its blocks, their scales, and the stride of those' blocks. A
        cache without scales has its keys in their place."""
        *scales, keys, values = caches[self.spec.layer]
        if self.cache_format == IN_FP8.value:
            scales = [self.weights["k_scale"], self.weights["v_scale"]]
        k_scale, v_scale = scales or (keys, keys)
        return keys, keys.stride(0), values, values.stride(0), k_scale, v_scale, k_scale.stride(0)
