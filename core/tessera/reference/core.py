"""Group core: embedding, products, norms, rotary, gates, and the composites made of them.

Shapes: T tokens, n outputs, k inputs, H heads of D. Norms, rotary and activations compute in float32 and round once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.platform.ops import (
    ActivationSpec,
    AddLayerNormSpec,
    AddNormSpec,
    AddSpec,
    BoundOps,
    EmbeddingSpec,
    GatedMLPSpec,
    GateSpec,
    HotCall,
    LayerNormSpec,
    LinearSpec,
    MLPSpec,
    NormAddSpec,
    NormLinearSpec,
    NormSpec,
    Packed,
    PackedEmbeddingSpec,
    QKNormSpec,
    QuantizeSpec,
    RotarySpec,
    SoftCapSpec,
)
from tessera.reference.dtypes import torch_dtype
from tessera.reference.quantized import Activation, meaning, part_rows, plain, product, quantize

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def into(result: Tensor, out: Tensor | None) -> Tensor:
    """The result, in `out` where the caller brought one."""
    return result if out is None else out.copy_(result)


def embedding(spec: EmbeddingSpec, tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
    """tokens [T], weight [rows, n] -> [T, n]."""
    if spec.sharded:
        here, inside = _on_this_rank(tokens, spec.start, spec.rows)
        rows = torch.where(inside[:, None], F.embedding(here, weight), 0)
    else:
        rows = F.embedding(tokens, weight)
    return into(rows if spec.scale == 1.0 else rows * spec.scale, out)


def packed_embedding(spec: PackedEmbeddingSpec, tokens: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
    """tokens [T], weight as linear has it, [n, k] -> [T, k]."""
    scheme, inside, here = spec.linear.scheme, None, tokens
    if spec.sharded:
        here, inside = _on_this_rank(tokens, spec.start, spec.linear.n)
    rows = weight["weight"][here].float() if scheme is None else meaning(part_rows(weight, scheme, here), scheme)
    if inside is not None:
        rows = torch.where(inside[:, None], rows, 0)
    return into((rows * spec.scale).to(torch_dtype(spec.linear.dtype)), out)


def _on_this_rank(tokens: Tensor, start: int, rows: int) -> tuple[Tensor, Tensor]:
    """Rows of this rank, 0 for tokens of others; and which are its own."""
    here = tokens - start
    inside = (here >= 0) & (here < rows)
    return torch.where(inside, here, 0), inside


def linear(spec: LinearSpec, x: Activation, weight: Packed, *, out: Tensor | None = None) -> Tensor:
    """x [T, k], weight {"weight": [n, k], "bias": [n]}, or the parts of the spec's scheme -> [T, n]."""
    if spec.scheme is not None:
        return into(product(spec, x, weight), out)
    return into(F.linear(plain(x, weight["weight"].dtype), weight["weight"], weight.get("bias")), out)


def rms_norm(spec: NormSpec, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Activation:
    """x [..., n], weight [n] -> [..., n]; Quantized where spec.emit. Root mean square layer normalization,
    arXiv:1910.07467."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + spec.eps) * (weight.float() + spec.offset)
    if spec.emit is not None:
        return quantize(QuantizeSpec(spec.n, spec.dtype, spec.emit), normed)
    return into(normed.to(x.dtype), out)


def layer_norm(spec: LayerNormSpec, x: Tensor, weight: Tensor, bias: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x [..., n], weight and bias [n] -> [..., n]. Layer normalization, arXiv:1607.06450."""
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + spec.eps)
    return into((normed * weight.float() + bias.float()).to(x.dtype), out)


def rotary(spec: RotarySpec, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """q [T, H, D] and k [T, Hk, D] in place; positions [T]; cos_sin [positions, dim] float32, cosines then sines.
    RoFormer, arXiv:2104.09864."""
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    for heads in (q, k):
        turned = heads[..., : spec.dim].float()
        if spec.style == "half":
            a, b = turned.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        else:
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        heads[..., : spec.dim] = turned.to(heads.dtype)


def gate(spec: GateSpec, x: Tensor, *, out: Tensor | None = None) -> Activation:
    """x [T, 2n] -> act(x[:, :n]) * x[:, n:], [T, n]; Quantized where spec.emit."""
    left, right = x.chunk(2, dim=-1)
    result = _ACTIVATIONS[spec.activation](left.float()) * right.float()
    if spec.emit is not None:
        return quantize(QuantizeSpec(spec.n, spec.dtype, spec.emit), result)
    return into(result.to(x.dtype), out)


def activation(spec: ActivationSpec, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x [T, n] -> act(x), [T, n]."""
    return into(_ACTIVATIONS[spec.activation](x.float()).to(x.dtype), out)


def add(spec: AddSpec, a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """a, b [T, n] -> a + b, [T, n]."""
    return into(a + b, out)


def soft_cap(spec: SoftCapSpec, x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x [T, n] -> scaled and capped, [T, n]."""
    wide = x.float() * spec.scale
    if spec.cap:
        wide = torch.tanh(wide / spec.cap) * spec.cap
    return into(wide.to(x.dtype), out)


# ---- composites ------------------------------------------------------------------------------------------------------
# -------------------


def add_norm(spec: AddNormSpec, ops: BoundOps) -> HotCall:
    """(x [T, n], residual [T, n] or None, weight [n]) -> (normed, x + residual)."""
    norm = ops.bind("rms_norm", spec.norm)
    group = ops.groups[spec.reduce] if spec.reduce is not None else None

    def call(
        x: Tensor, residual: Tensor | None, weight: Tensor, *, out: Tensor | None = None
    ) -> tuple[Activation, Tensor]:
        whole = x if group is None else group.all_reduce(x)
        if residual is None:
            return norm(whole, weight, out=out), whole
        residual = (whole if spec.multiplier == 1.0 else whole * spec.multiplier) + residual
        return norm(residual, weight, out=out), residual

    return call


def add_layer_norm(spec: AddLayerNormSpec, ops: BoundOps) -> HotCall:
    """(x [T, n], residual [T, n] or None, weight [n], bias [n]) -> (normed, x + residual)."""
    norm = ops.bind("layer_norm", spec.norm)
    group = ops.groups[spec.reduce] if spec.reduce is not None else None

    def call(
        x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, *, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        whole = x if group is None else group.all_reduce(x)
        residual = whole if residual is None else whole + residual
        return norm(residual, weight, bias, out=out), residual

    return call


def norm_add(spec: NormAddSpec, ops: BoundOps) -> HotCall:
    """(x [T, n], residual [T, n], weight [n]) -> norm(x) + residual."""
    norm = ops.bind("rms_norm", spec.norm)
    group = ops.groups[spec.reduce] if spec.reduce is not None else None

    def call(x: Tensor, residual: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
        return into(norm(x if group is None else group.all_reduce(x), weight) + residual, out)

    return call


def qk_norm(spec: QKNormSpec, ops: BoundOps) -> HotCall:
    """x [T, q + 2 k] in place: queries and keys normed, values as they are; q_weight [q], k_weight [k]."""
    group = ops.groups[spec.reduce] if spec.reduce is not None else None
    ranks = 1 if group is None else group.size

    def call(x: Tensor, q_weight: Tensor, k_weight: Tensor) -> None:
        parts = x[:, : spec.q], x[:, spec.q : spec.q + spec.k]
        squares = torch.stack([part.float().square().sum(-1, keepdim=True) for part in parts])
        if group is not None:
            squares = group.all_reduce(squares)
        for part, total, weight in zip(parts, squares, (q_weight, k_weight), strict=True):
            mean = total / (part.shape[-1] * ranks)
            part.copy_((part.float() * torch.rsqrt(mean + spec.eps) * weight.float()).to(x.dtype))

    return call


def norm_linear(spec: NormLinearSpec, ops: BoundOps) -> HotCall:
    """(x, residual or None, norm weight [n], weight) -> (y, x + residual): add_norm, then linear."""
    norm = ops.bind_emitting("add_norm", spec.norm, ops.wants("linear", spec.linear))
    product = ops.bind("linear", spec.linear)

    def call(
        x: Tensor, residual: Tensor | None, norm_weight: Tensor, weight: Packed, *, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        normed, residual = norm(x, residual, norm_weight)
        return product(normed, weight, out=out), residual

    return call


def gated_mlp(spec: GatedMLPSpec, ops: BoundOps) -> HotCall:
    """(x [T, k], gate_up, down) -> [T, n]: linear, gate, linear."""
    gate_up = ops.bind("linear", spec.gate_up)
    act = ops.bind_emitting("gate", spec.gate, ops.wants("linear", spec.down))
    down = ops.bind("linear", spec.down)

    def call(x: Activation, gate_up_weight: Packed, down_weight: Packed, *, out: Tensor | None = None) -> Any:
        return down(act(gate_up(x, gate_up_weight)), down_weight, out=out)

    return call


def mlp(spec: MLPSpec, ops: BoundOps) -> HotCall:
    """(x [T, k], up, down) -> [T, n]: linear, activation, linear."""
    up = ops.bind("linear", spec.up)
    act = ops.bind("activation", spec.activation)
    down = ops.bind("linear", spec.down)

    def call(x: Activation, up_weight: Packed, down_weight: Packed, *, out: Tensor | None = None) -> Any:
        return down(act(up(x, up_weight)), down_weight, out=out)

    return call
