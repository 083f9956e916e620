"""LoRA adapters: native in bfloat16, otherwise with torch."""

from __future__ import annotations

from ctypes import c_int64
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, LoraSpec, Reason
from tessera_cpu import native
from tessera_cpu.products import rows_apart

MANY_TOKENS = 32
"""Tokens for each adapter from which products with zeros cost more than several small products."""


class Lora(Kernel[LoraSpec]):
    def supports(self, spec: LoraSpec) -> Reason | None:
        return None

    def batch_invariant(self, spec: LoraSpec) -> Reason | None:
        if spec.rank > native.MAX_RANK:
            return f"torch's kernels, which compute ranks above {native.MAX_RANK}, do not promise batch invariance"
        return native.varying(spec.dtype)

    def bind(self, spec: LoraSpec, ops: BoundOps, device: Device) -> Any:
        library = native.library()
        if library is None or spec.dtype != "bfloat16" or spec.rank > native.MAX_RANK:
            return lambda *tensors: with_torch(spec, *tensors)
        ends = list(accumulate(spec.layers))
        held = (c_int64 * len(ends))(*ends)
        task = native.Lora(ends=held, layers=len(ends), n=ends[-1], k=spec.k, rank=spec.rank)

        def lora(y: Tensor, x: Tensor, a: Tensor, b: Tensor, scales: Tensor, slots: Tensor) -> None:
            own, x = rows_apart(y), rows_apart(x)
            task.y, task.y_stride, task.rows = own.data_ptr(), own.stride(0), own.size(0)
            task.x, task.x_stride = x.data_ptr(), x.stride(0)
            task.a, task.b, task.scales, task.slots = a.data_ptr(), b.data_ptr(), scales.data_ptr(), slots.data_ptr()
            library.tessera_cpu_lora(task)
            if own is not y:
                y.copy_(own)

        return lora


def with_torch(spec: LoraSpec, y: Tensor, x: Tensor, a: Tensor, b: Tensor, scales: Tensor, slots: Tensor) -> None:
    """Few tokens are multiplied by all adapters in use at once, and what is not of their own adapter counts as 0. Many
    tokens are multiplied by their own adapter only. Reading slots on the host is free here, since it is the device."""
    used = slots[slots >= 0].unique().long()
    together = len(used) if len(slots) < MANY_TOKENS * len(used) else 1
    for some in used.split(together) if len(used) else ():
        own = slots[:, None] == some
        tokens = own.any(dim=1).nonzero()[:, 0]
        low = (x[tokens].float() @ a[some].float().flatten(0, 1).T).view(len(tokens), len(some), len(spec.layers), -1)
        low.mul_(scales[some][:, None, None]).masked_fill_(~own[tokens][:, :, None, None], 0)
        parts = b[some].float().split(spec.layers, dim=2)
        deltas = (low[:, :, layer].flatten(1) @ part.flatten(0, 1) for layer, part in enumerate(parts))
        y[tokens] = (y[tokens].float() + torch.cat(list(deltas), dim=1)).to(y.dtype)
