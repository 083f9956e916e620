"""Rows of a quantized weight, as linear packs it, by token: the embedding of a model whose head has the same weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, Packed, PackedEmbeddingSpec
from tessera_triton.facts import DeviceFacts, Launcher
from tessera_triton.products import Linear, shared_inputs, step_of, strides_of

_BLOCK = 1024  # columns of a program


@triton.jit
def _look_up(
    tokens, weight, weight_stride, scale, scale_stride, scale_step, zeros, out, out_stride, start, rows, k, factor,
    BLOCK: tl.constexpr, STEP: tl.constexpr, ZEROS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """out [T, k]: factor times the rows of tokens, of which this rank has those from `start` on; zeros for others.
    STEP: of int4, inputs that lie in low halves before as many in high halves; 0 for other weights. GROUP, ROWS: inputs
    and outputs that share a scale; GROUP 0: all inputs."""
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(tokens + token) - start
    here = (row >= 0) & (row < rows)
    row = tl.where(here, row, 0).to(tl.int64)
    inside = (column < k) & here
    scales = row // ROWS * scale_stride + (column // GROUP * scale_step if GROUP else 0 * column)
    if STEP:
        pairs = tl.load(
            weight + row * weight_stride + column // (2 * STEP) * STEP + column % STEP, mask=inside, other=0
        )
        value = tl.where(column // STEP % 2 == 0, pairs & 15, pairs >> 4).to(tl.float32) - 8.0
        if ZEROS:
            value -= tl.load(zeros + scales, mask=inside, other=0).to(tl.float32)
    else:
        value = tl.load(weight + row * weight_stride + column, mask=inside, other=0.0).to(tl.float32)
    value *= tl.load(scale + scales, mask=inside, other=0.0).to(tl.float32)
    place = out + token.to(tl.int64) * out_stride + column
    tl.store(place, (value * factor).to(out.dtype.element_ty), mask=column < k)


@dataclass(frozen=True)
class PackedEmbedding(Kernel[PackedEmbeddingSpec]):
    """linear: packs the weights. None: the library's."""

    facts: DeviceFacts
    launch: Launcher
    linear: Linear | None = None

    def supports(self, spec: PackedEmbeddingSpec) -> str | None:
        if spec.linear.scheme is None:
            return "weights that are not quantized are looked up by embedding"
        linear = self.linear or Linear(self.facts, self.launch)
        if linear.packs_for_others(spec.linear):
            return "the weight is packed for a package that only multiplies"
        return linear.supports(spec.linear)

    def bind(self, spec: PackedEmbeddingSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        linear, scheme = spec.linear, spec.linear.scheme
        assert scheme is not None, "supports() declines it"
        dtype, symmetric = getattr(torch, linear.dtype), scheme.weight.symmetric
        step = step_of(linear, scheme) if scheme.weight.dtype == "int4" else 0

        def packed_embedding(tokens: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            fits = out is not None and out.stride(-1) == 1
            made = out if fits and out is not None else torch.empty(
                len(tokens), linear.k, dtype=dtype, device=tokens.device
            )  # fmt: skip
            stored, scale = weight["weight"], weight["scale"]
            if len(tokens):
                self.launch(
                    _look_up, (len(tokens), -(-linear.k // _BLOCK)), tokens, stored, stored.stride(0), scale,
                    *strides_of(scale, scheme), scale if symmetric else weight["zero_point"], made, made.stride(0),
                    spec.start, linear.n, linear.k, float(spec.scale),
                    BLOCK=_BLOCK, STEP=step, ZEROS=not symmetric, GROUP=shared_inputs(scheme),
                    ROWS=scheme.weight.block[0] if scheme.weight.block else 1, num_warps=4,
                )  # fmt: skip
            return made if out is None or made is out else out.copy_(made)

        return packed_embedding
