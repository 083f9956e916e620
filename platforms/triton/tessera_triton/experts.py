"""The gated MLPs of experts. Tokens are brought together by expert, and each tile of a grouped product multiplies with
one expert's weight: the first product with the gate, the second back to a place for each token and expert, from which
a third kernel sums the tokens' results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.platform import BoundOps, Device, ExpertsSpec, GateSpec, Kernel, LinearSpec, Packed, Quantized
from tessera_triton.facts import DeviceFacts, Launcher, power_of_two
from tessera_triton.permutation import Tiles, tiles_of
from tessera_triton.tiles import warps_of

_GATES = ("silu", "gelu", "gelu_tanh")


@triton.jit
def _gated(gate, up, GATE: tl.constexpr):
    """float32; GATE: a place in _GATES."""
    if GATE == 0:
        result = gate / (1.0 + tl.exp(-gate))
    elif GATE == 1:
        result = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        result = gate - gate / (1.0 + tl.exp(2.0 * inner))
    return result * up


@triton.jit(do_not_specialize=["tiles"])
def _expert_rows(
    x, x_stride, tile_owners, tile_rows, weight, bias, out, out_stride, tiles, n, k, shared,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GATE: tl.constexpr, BACK: tl.constexpr,
    BIAS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """A tile of rows with n outputs of its expert's weight, [n, k], or [2 n, k] if there is a gate. Rows come from
    tokens, each of which is in `shared` rows, and stay in their tile; or, if BACK, they come from their tile and go to
    their place among all. EVEN: BLOCK_K divides k."""
    tile = tl.program_id(0) % tiles  # those with the same outputs are neighbours, so that they share weights
    owner = tl.load(tile_owners + tile)
    if owner == 0:
        return
    expert = (owner - 1).to(tl.int64)
    place = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tl.load(tile_rows + place) - 1
    filled = row >= 0
    source = (place if BACK else row // shared).to(tl.int64)
    column = tl.program_id(0) // tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = column < n
    height = 2 * n if GATE >= 0 else n
    inputs = tl.arange(0, BLOCK_K)
    x_rows = x + source[:, None] * x_stride + inputs[None, :]
    weights = weight + expert * height * k + column.to(tl.int64)[None, :] * k + inputs[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    other = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        known = start + inputs < k
        mask_x = filled[:, None] if EVEN else filled[:, None] & known[None, :]
        mask_w = inside[None, :] if EVEN else inside[None, :] & known[:, None]
        some = tl.load(x_rows + start, mask=mask_x, other=0.0)
        total = tl.dot(some, tl.load(weights + start, mask=mask_w, other=0.0), total, input_precision="ieee")
        if GATE >= 0:
            second = weights + start + n.to(tl.int64) * k
            other = tl.dot(some, tl.load(second, mask=mask_w, other=0.0), other, input_precision="ieee")
    if BIAS:
        biases = bias + expert * height + column
        total += tl.load(biases, mask=inside, other=0.0).to(tl.float32)[None, :]
        if GATE >= 0:
            other += tl.load(biases + n, mask=inside, other=0.0).to(tl.float32)[None, :]
    if GATE >= 0:
        kind = out.dtype.element_ty
        total = _gated(total.to(kind).to(tl.float32), other.to(kind).to(tl.float32), GATE)
    target = (row if BACK else place).to(tl.int64)
    tl.store(
        out + target[:, None] * out_stride + column[None, :], total.to(out.dtype.element_ty),
        mask=filled[:, None] & inside[None, :],
    )  # fmt: skip


@triton.jit
def _sum_of_experts(parts, weights, ids, out, out_stride, n, first, number, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """out [T, n]: the weighted sum of parts [T, TOP_K, n], without those of experts that are not here."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    total = tl.zeros((BLOCK,), tl.float32)
    for place in tl.static_range(TOP_K):
        entry = token * TOP_K + place
        expert = tl.load(ids + entry) - first
        here = (expert >= 0) & (expert < number)
        part = tl.load(parts + entry * n + column, mask=inside & here, other=0.0).to(tl.float32)
        total += tl.where(here, tl.load(weights + entry) * part, 0.0)
    tl.store(out + token * out_stride + column, total.to(out.dtype.element_ty), mask=inside)


class Tiling(NamedTuple):
    """Of a product: rows, outputs and inputs of a tile."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


def tiling(facts: DeviceFacts, rows: int, size: int, *, gated: bool) -> Tiling:
    """rows: that an expert has on average. size: bytes of an element. gated: a program keeps two tiles of sums."""
    m = min(max(power_of_two(rows), 16), 128 if size < 4 and facts.backend == "cuda" else 64)
    n = 64 if gated or m < 64 or size == 4 else 128
    stages = 2 if facts.backend == "hip" else 3
    return Tiling(m, n, 128 // size if size == 2 else 32, warps_of(facts, m * n, two=gated), stages)


@dataclass(frozen=True)
class Experts(Kernel[ExpertsSpec]):
    facts: DeviceFacts
    launch: Launcher

    def supports(self, spec: ExpertsSpec) -> str | None:
        if spec.gate_up.scheme is not None or spec.down.scheme is not None:
            return "no quantized experts"
        if not isinstance(spec.gate, GateSpec):
            return "no experts without gates, or with clamped ones"
        if spec.gate.activation not in _GATES or spec.gate.emit is not None:
            return f"gates of {', '.join(_GATES)}, which are not quantized"
        return None

    def bind(self, spec: ExpertsSpec, ops: BoundOps, device: Device) -> Callable[..., Any]:
        assert isinstance(spec.gate, GateSpec)
        gate, number = _GATES.index(spec.gate.activation), spec.gate_up.experts

        def experts(
            x: Tensor | Quantized, weights: Tensor, ids: Tensor, gate_up: Packed, down: Packed, *,
            out: Tensor | None = None,
        ) -> Tensor:  # fmt: skip
            assert not isinstance(x, Quantized), "its first product wants nothing quantized"
            x = x if x.stride(-1) == 1 else x.contiguous()
            weights, ids = weights.contiguous(), ids.contiguous()
            tokens, n = len(x), spec.down.n
            fits = out is not None and out.stride(-1) == 1
            made = out if fits and out is not None else torch.empty(tokens, n, dtype=x.dtype, device=x.device)
            if tokens:
                rows, size = tokens * spec.top_k, x.element_size()
                each = -(-rows // number)
                first = tiling(self.facts, each, size, gated=True)
                second = tiling(self.facts, each, size, gated=False)
                tiles = tiles_of(self.launch, ids.view(-1), first.m, number, spec.first)
                hidden = torch.empty(len(tiles.rows), spec.gate.n, dtype=x.dtype, device=x.device)
                self._multiply(first, tiles, x, gate_up, spec.gate_up, hidden, gate=gate, shared=spec.top_k)
                parts = torch.empty(rows, n, dtype=x.dtype, device=x.device)
                self._multiply(second, tiles, hidden, down, spec.down, parts)
                self.launch(
                    _sum_of_experts, (tokens, -(-n // 1024)), parts, weights, ids, made, made.stride(0), n, spec.first,
                    number, TOP_K=spec.top_k, BLOCK=1024, num_warps=4,
                )  # fmt: skip
            return made if out is None or made is out else out.copy_(made)

        return experts

    def _multiply(
        self, by: Tiling, tiles: Tiles, x: Tensor, weight: Packed, spec: LinearSpec, out: Tensor, *,
        gate: int = -1, shared: int = 1,
    ) -> None:  # fmt: skip
        """gate: a place in _GATES, -1 for none, where rows go back to their place among all."""
        n, k, bias, owned = out.shape[1], spec.k, weight.get("bias"), len(tiles.owners)
        self.launch(
            _expert_rows, (owned * -(-n // by.n),), x, x.stride(0), tiles.owners, tiles.rows, weight["weight"],
            out if bias is None else bias, out, out.stride(0), owned, n, k, shared,
            BLOCK_M=by.m, BLOCK_N=by.n, BLOCK_K=by.k, GATE=gate, BACK=gate < 0, BIAS=bias is not None,
            EVEN=k % by.k == 0, num_warps=by.warps, num_stages=by.stages,
        )  # fmt: skip
