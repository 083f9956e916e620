"""Attention by AMD's package aiter (https://github.com/ROCm/aiter), where it is installed: its kernel in Triton that
serves prompts, decoding and both in one launch over pages."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from tessera.platform import AttentionGroup, Buffers, CacheConstraints, Launch, LayerSpec, Reason
from tessera_triton import DeviceFacts, Launcher
from tessera_triton.providers import Provider
from tessera_triton.varlen import PackageLayer, VarlenAttention, VarlenPlan

UNIFIED = {
    "unified_attention": (
        "q", "k", "v", "out", "cu_seqlens_q", "max_seqlen_q", "seqused_k", "max_seqlen_k", "softmax_scale", "causal",
        "window_size", "block_table", "softcap", "q_descale", "k_descale", "v_descale", "sinks",
    ),
}  # fmt: skip
"""By function, the arguments that calls here name."""

_MOST_GROUPED = 64  # query heads of a head of keys: the smallest tile of long prompts


@dataclass(frozen=True)
class AiterPlan(VarlenPlan):
    """of_tokens [T + 1]: the starts of rows of one query each; None if the plan has starts. keyless [T, 1, 1]: rows
    without keys, for which the package computes nothing in particular; None if there are none."""

    of_tokens: Tensor | None
    keyless: Tensor | None


class AiterAttention(VarlenAttention):
    """Blocks are a multiple of 128 tokens. The package's tiles have up to 64 keys, and only where a tile is smaller
    than a block does it skip what lies behind a row's last key. Such a tile also never reaches into the block before
    the one in which a window begins, which may be freed."""

    name = "aiter"

    def __init__(self, facts: DeviceFacts, launch: Launcher | None = None) -> None:
        super().__init__(facts, launch)
        self.provider = Provider(self.name, "aiter.ops.triton.attention.unified_attention", UNIFIED)

    @cached_property
    def _chosen(self) -> Mapping[str, str]:
        """What chooses the kernel that this backend's blocks fit, in versions that have several: others gather keys by
        token, or have tiles that are not known here."""
        known = inspect.signature(self.provider.function("unified_attention")).parameters
        return {"backend": "triton"} if "backend" in known else {}

    def _declines(self, spec: LayerSpec) -> Reason | None:
        if spec.num_heads > _MOST_GROUPED * spec.num_kv_heads:
            return f"more than {_MOST_GROUPED} query heads for a head of keys"
        return super()._declines(spec)

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(128,), align_bytes=16, dense_planes=True)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> AiterPlan:
        found = super().plan(launch, group, buffers)
        of_tokens, keyless, rows = None, None, len(found.lengths)
        if found.starts is None:
            if buffers is None:
                of_tokens = found.lengths.new_empty(rows + 1)
                keyless = found.lengths.new_empty(rows, 1, 1, dtype=torch.bool)
            else:
                of_tokens = buffers.get(f"{group.name}_of_tokens", (rows + 1,), "int32")
                keyless = buffers.get(f"{group.name}_keyless", (rows, 1, 1), "bool")
            torch.arange(rows + 1, out=of_tokens)
            torch.eq(found.lengths[:, None, None], 0, out=keyless)
        common = {field.name: getattr(found, field.name) for field in fields(found)}
        return AiterPlan(**common, of_tokens=of_tokens, keyless=keyless)

    def attend(
        self, layer: PackageLayer, q: Tensor, keys: Tensor, values: Tensor, plan: AiterPlan, *, lse: bool
    ) -> tuple[Tensor, None]:
        assert not lse, "not promised by constraints()"
        spec, out = layer.spec, torch.empty_like(q)
        self.provider.function("unified_attention")(
            q=q, k=keys, v=values, out=out, cu_seqlens_q=plan.of_tokens if plan.starts is None else plan.starts,
            max_seqlen_q=plan.width, seqused_k=plan.lengths, max_seqlen_k=plan.longest, softmax_scale=spec.scale,
            causal=True, window_size=layer.window, block_table=plan.table, softcap=layer.cap, q_descale=None,
            k_descale=None, v_descale=None, sinks=layer.weights["sinks"] if spec.sinks else None, **self._chosen,
        )  # fmt: skip
        return (out if plan.keyless is None else out.masked_fill_(plan.keyless, 0.0)), None
