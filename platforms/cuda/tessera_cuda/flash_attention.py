"""Attention by the packages flash_attn (FlashAttention-2, arXiv 2307.08691) and flash_attn_interface (FlashAttention-3,
arXiv 2407.08608), where they are installed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tessera.platform import CacheConstraints, LayerSpec, Reason
from tessera_triton import DeviceFacts, Launcher
from tessera_triton.providers import Provider
from tessera_triton.varlen import PackageLayer, VarlenAttention, VarlenPlan

_OF_CACHE = ("q", "k_cache", "v_cache", "cache_seqlens", "softmax_scale", "causal", "window_size", "softcap")
_OF_ROWS = (
    "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "softmax_scale", "causal",
    "window_size", "softcap", "return_attn_probs", "block_table",
)  # fmt: skip
FLASH_ATTENTION_2 = {
    "flash_attn_with_kvcache": (*_OF_CACHE, "block_table", "return_softmax_lse"),
    "flash_attn_varlen_func": _OF_ROWS,
}
FLASH_ATTENTION_3 = {
    "flash_attn_with_kvcache": (*_OF_CACHE, "page_table", "cu_seqlens_q", "max_seqlen_q", "return_softmax_lse"),
}
"""By function, the arguments that calls here name."""

_HOPPER = 90


class FlashAttention(VarlenAttention):
    def _declines(self, spec: LayerSpec) -> Reason | None:
        if spec.sinks:
            return "no sinks"
        return super()._declines(spec)


class FlashAttention2(FlashAttention):
    """Blocks are a multiple of 256 tokens, which the package demands. Its tiles of keys divide that, so none begins
    before a row's window in a block that was freed. Keys are split among programs only where each row has one query."""

    name = "flash_attention_2"
    cumulative = True

    def __init__(self, facts: DeviceFacts, launch: Launcher | None = None) -> None:
        super().__init__(facts, launch)
        self.provider = Provider(self.name, "flash_attn", FLASH_ATTENTION_2)

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(256,), align_bytes=16, dense_planes=True, returns_lse=True)

    def attend(
        self, layer: PackageLayer, q: Tensor, keys: Tensor, values: Tensor, plan: VarlenPlan, *, lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        spec = layer.spec
        if plan.starts is None:
            found = self.provider.function("flash_attn_with_kvcache")(
                q=q[:, None], k_cache=keys, v_cache=values, cache_seqlens=plan.lengths, block_table=plan.table,
                softmax_scale=spec.scale, causal=True, window_size=layer.window, softcap=layer.cap,
                return_softmax_lse=lse,
            )  # fmt: skip
            return _of_single_queries(found, lse)
        found = self.provider.function("flash_attn_varlen_func")(
            q=q, k=keys, v=values, cu_seqlens_q=plan.starts, cu_seqlens_k=plan.ends, max_seqlen_q=plan.width,
            max_seqlen_k=plan.longest, softmax_scale=spec.scale, causal=True, window_size=layer.window,
            softcap=layer.cap, return_attn_probs=lse, block_table=plan.table,
        )  # fmt: skip
        return (found[0], found[1].T) if lse else (found, None)


class FlashAttention3(FlashAttention):
    """Blocks of 32 or 16 tokens, which are smaller than its tiles of keys: then it copies keys and values row by row
    and clears what lies behind a row's last one. Copies of whole blocks would not."""

    name = "flash_attention_3"

    def __init__(self, facts: DeviceFacts, launch: Launcher | None = None) -> None:
        super().__init__(facts, launch)
        self.provider = Provider(self.name, "flash_attn_interface", FLASH_ATTENTION_3)

    def _declines(self, spec: LayerSpec) -> Reason | None:
        if self.facts.arch != _HOPPER:
            return f"made for compute capability 9.0, and this is {self.facts.name}"
        if spec.window is not None:
            return "its tiles of keys may begin before the window, in blocks that were freed"
        return super()._declines(spec)

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(
            block_sizes=(32, 16), block_multiple=False, align_bytes=16, dense_planes=True, returns_lse=True
        )

    def attend(
        self, layer: PackageLayer, q: Tensor, keys: Tensor, values: Tensor, plan: VarlenPlan, *, lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        attend, spec, single = self.provider.function("flash_attn_with_kvcache"), layer.spec, plan.starts is None
        rows = {} if single else {"cu_seqlens_q": plan.starts, "max_seqlen_q": plan.width}
        result = attend(
            q=q[:, None] if single else q, k_cache=keys, v_cache=values, cache_seqlens=plan.lengths,
            page_table=plan.table, softmax_scale=spec.scale, causal=True, window_size=layer.window, softcap=layer.cap,
            return_softmax_lse=lse, **rows,
        )  # fmt: skip
        if single:
            return _of_single_queries(result, lse)
        return (result[0], result[1].T) if lse else (result, None)


def _of_single_queries(result: Any, lse: bool) -> tuple[Tensor, Tensor | None]:
    """What rows of one query each give, [T, 1, H, D] and with lse the sums [T, H, 1], by token."""
    return (result[0].squeeze(1), result[1].squeeze(2)) if lse else (result.squeeze(1), None)
