"""Rows of a quantized weight, as linear packs it, by token: the embedding of a model whose head has the same weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.platform import BoundOps, Device, Kernel, LinearSpec, Packed, PackedEmbeddingSpec
from tessera_triton.facts import DeviceFacts, Launcher
from tessera_triton.forms import high_bits_of, numbers_of, scale_of, zero_of
from tessera_triton.products import Linear, form_of, places_of, step_of

_BLOCK = 1024  # columns of a program


@triton.jit
def _look_up(
    tokens, weight, weight_stride, weight_step, high, scale, scale_stride, scale_step, larger, zeros, out, out_stride,
    start, rows, k, factor,
    BLOCK: tl.constexpr, STEP: tl.constexpr, PAIRS: tl.constexpr, HIGH: tl.constexpr, SHIFT: tl.constexpr,
    LEVELS: tl.constexpr, ZEROS: tl.constexpr, SCALING: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """out [T, k]: factor times the rows of tokens, of which this rank has those from `start` on; zeros for others. The
    weight and the constants are those of a product."""
    token = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(tokens + token) - start
    here = (row >= 0) & (row < rows)
    row = tl.where(here, row, 0).to(tl.int64)
    inside = (column < k) & here
    group = column // GROUP if GROUP else 0 * column
    multiplier, minimum = scale_of(scale, larger, row // ROWS, scale_stride, group, scale_step, inside, SCALING)
    turn = column // (2 * STEP if PAIRS else STEP)
    stored = tl.load(
        weight + row * weight_stride + turn.to(tl.int64) * weight_step + column % STEP, mask=inside, other=0.0
    )
    if PAIRS:
        codes = tl.where(column // STEP % 2 == 0, stored & 15, stored >> 4)
        if HIGH:
            words = tl.load(high + column // (32 // HIGH) * rows + row, mask=inside, other=0)
            codes = codes.to(tl.int32) | high_bits_of(words, column, HIGH)
        shift = tl.full((BLOCK,), SHIFT, tl.float32)
        value = numbers_of(codes, shift, tl.float32, LEVELS)
    else:
        value = stored.to(tl.float32)
    if ZEROS:
        value -= zero_of(zeros, row, scale_stride, group, scale_step, inside)
    value = value * multiplier + minimum
    place = out + token.to(tl.int64) * out_stride + column
    tl.store(place, (value * factor).to(out.dtype.element_ty), mask=column < k)


@dataclass(frozen=True)
class PackedEmbedding(Kernel[PackedEmbeddingSpec]):
    """linear: packs the weights. None: the library's. packed_elsewhere: whether it packs a weight so that only another
    package can read it."""

    facts: DeviceFacts
    launch: Launcher
    linear: Linear | None = None
    packed_elsewhere: Callable[[LinearSpec], bool] | None = None

    def supports(self, spec: PackedEmbeddingSpec) -> str | None:
        if spec.linear.scheme is None:
            return "weights that are not quantized are looked up by embedding"
        if self.packed_elsewhere is not None and self.packed_elsewhere(spec.linear):
            return "the weight is packed for a package that only multiplies"
        return (self.linear or Linear(self.facts, self.launch)).supports(spec.linear)

    def bind(self, spec: PackedEmbeddingSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        linear, scheme = spec.linear, spec.linear.scheme
        assert scheme is not None, "supports() declines it"
        dtype, form, step = getattr(torch, linear.dtype), form_of(scheme), step_of(linear, scheme)

        def packed_embedding(tokens: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            fits = out is not None and out.stride(-1) == 1
            made = out if fits and out is not None else torch.empty(
                len(tokens), linear.k, dtype=dtype, device=tokens.device
            )  # fmt: skip
            stored, scale, places = weight["weight"], weight["scale"], places_of(weight, scheme, step)
            if len(tokens):
                self.launch(
                    _look_up, (len(tokens), -(-linear.k // _BLOCK)), tokens, stored, places.stride, places.step,
                    weight.get("high", stored), scale, places.scale_stride, places.scale_step,
                    weight.get("larger", scale), weight.get("zero_point", scale), made, made.stride(0), spec.start,
                    linear.n, linear.k, float(spec.scale),
                    BLOCK=_BLOCK, STEP=step, PAIRS=form.bits > 0, HIGH=max(form.bits - 4, 0), SHIFT=form.zero,
                    LEVELS=form.levels, ZEROS=not scheme.weight.symmetric, SCALING=form.scaling, GROUP=form.group,
                    ROWS=scheme.weight.block[0] if scheme.weight.block else 1, num_warps=4,
                )  # fmt: skip
            return made if out is None or made is out else out.copy_(made)

        return packed_embedding
