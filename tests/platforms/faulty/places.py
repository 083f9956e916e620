"""Mistakes that models and engines show as well: the kit must name the op."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from tessera.ops.moe import experts
from tessera.platform import (
    AttentionGroup,
    Buffers,
    Caches,
    Device,
    Future,
    HeadsLayer,
    Launch,
    Ready,
)
from tessera.platform.collectives import Transfer
from tests.platforms.faulty.fault import Kinds
from tests.platforms.faulty.making import Base
from tests.platforms.faulty.plain import PlainAttention
from tests.platforms.faulty.sizes import kept
from tests.platforms.faulty.steps import _Group

PLACES = Kinds("places")
op, layer, group, platform = PLACES.op, PLACES.layer, PLACES.group, PLACES.platform


# ---- attention


class _StaleSecond(PlainAttention):
    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> Any:
        plan = super().plan(launch, group, buffers)
        if plan.tables.shape[1] < 2:
            return plan
        known = vars(self).setdefault("known", {})
        key = id(group), tuple(launch.rows.tolist())
        _, second = known.setdefault(key, (group, plan.tables[:, 1].clone()))
        tables = plan.tables.clone()
        tables[:, 1] = torch.where(second > 0, second, tables[:, 1])
        return dataclasses.replace(plan, tables=tables)


@platform("attention", "op", "attention", "fused", "cache", "model")
def StaleSecondBlock(base: Base) -> Base:
    """the second block of a row stays the one that it had first"""

    class Faulty(base):
        def attention_backends(self) -> list[Any]:
            return [_StaleSecond(), *super().attention_backends()[1:]]

    return Faulty


@layer
class ScaleOfTheSpecIgnored(HeadsLayer):
    """the scale is that of the head's size, whatever the spec says"""

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        right = self.spec
        self.spec = dataclasses.replace(right, scale=right.head_dim**-0.5)
        try:
            return super().attend(q, caches, plan, out, lse)
        finally:
            self.spec = right


@layer
class OneRowSplit(HeadsLayer):
    """a single row's keys are split in parts of 256, and the last part is left out"""

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        rows, keys = plan.filled.shape[0], int(plan.filled[0].sum())
        if rows == 1 and len(q) == 1 and keys > 256:
            plan = dataclasses.replace(plan, filled=plan.filled & (plan.key < keys // 256 * 256))
        return super().attend(q, caches, plan, out, lse)


@layer
class PairOfRows(HeadsLayer):
    """of two rows, the second gets the result of the first's heads in reverse order"""

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        found = super().attend(q, caches, plan, out, lse)
        if plan.filled.shape[0] == 2 and len(q) == 2:
            mixed = found[0] if lse else found
            mixed[1] = mixed[1].flip(0)
        return found


# ---- ops


@op("rotary")
def OneKeyHeadUnturned(right: Any, spec: Any, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """a single key head is not rotated"""
    right(q, k.clone() if k.shape[1] == 1 else k, positions, cos_sin)


@op("rms_norm")
def OneHeadUnnormed(right: Any, spec: Any, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    """a single head is not normed"""
    found = right(x, weight, out=out)
    return found.copy_(x) if x.dim() == 3 and x.shape[1] == 1 else found


@op("add_norm")
def FirstResidual(right: Any, spec: Any, x: Tensor, residual: Any, weight: Tensor, *, out: Tensor | None = None) -> Any:
    """the residual of the first norm is its result"""
    normed, total = right(x, residual, weight, out=out)
    return normed, normed if residual is None else total


@op("add_norm")
def FirstResidualMultiplied(
    right: Any, spec: Any, x: Tensor, residual: Any, weight: Tensor, *, out: Tensor | None = None
) -> Any:
    """the multiplier is applied to the first norm too"""
    return right(x * spec.multiplier if residual is None else x, residual, weight, out=out)


@op("add_layer_norm")
def FirstResidualOfLayerNorm(
    right: Any, spec: Any, x: Tensor, residual: Any, weight: Tensor, bias: Tensor, *, out: Tensor | None = None
) -> Any:
    """the residual of the first norm is twice its input"""
    normed, total = right(x, residual, weight, bias, out=out)
    return normed, 2 * total if residual is None else total


@op("norm_linear")
def FirstResidualOfNormLinear(
    right: Any, spec: Any, x: Tensor, residual: Any, norm: Tensor, weight: Any, *, out: Tensor | None = None
) -> Any:
    """the residual of the first norm is zero"""
    product, total = right(x, residual, norm, weight, out=out)
    return product, torch.zeros_like(total) if residual is None else total


def _last_missing(found: Tensor, low: int, high: int) -> Tensor:
    if low <= len(found) <= high:
        found[-1] = 0
    return found


@op("linear")
def FiveToEightTokens(right: Any, spec: Any, x: Any, weight: Any, *, out: Tensor | None = None) -> Any:
    """of 5 to 8 tokens the last is left out"""
    return _last_missing(right(x, weight, out=out), 5, 8)


@op("linear")
def ThirtyTwoTokens(right: Any, spec: Any, x: Any, weight: Any, *, out: Tensor | None = None) -> Any:
    """of 32 tokens the last is left out"""
    return _last_missing(right(x, weight, out=out), 32, 32)


@op("gate")
def FiveToEightTokensGated(right: Any, spec: Any, x: Any, *, out: Tensor | None = None) -> Any:
    """of 5 to 8 tokens the last is left out"""
    found = right(x, out=out)
    return _last_missing(found, 5, 8) if spec.emit is None else found


@op("embedding")
def ThirtyTwoTokensEmbedded(right: Any, spec: Any, tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    """of 32 tokens the last is left out"""
    return _last_missing(right(tokens, weight, out=out), 32, 32)


@op("add_norm")
def SixteenTokensNormed(
    right: Any, spec: Any, x: Tensor, residual: Any, weight: Tensor, *, out: Tensor | None = None
) -> Any:
    """of 16 tokens the last is left out"""
    normed, total = right(x, residual, weight, out=out)
    return (_last_missing(normed, 16, 16) if spec.norm.emit is None else normed), total


@op("gated_mlp")
def GatedBySilu(right: Any, spec: Any, x: Any, gate_up: Any, down: Any, *, out: Tensor | None = None) -> Any:
    """the activation is silu, whatever the spec says"""
    if spec.gate.activation == "silu" or spec.down.scheme is not None:
        return right(x, gate_up, down, out=out)
    left, rest = (x @ gate_up["weight"].mT).float().chunk(2, -1)
    wide = (torch.nn.functional.silu(left) * rest).to(x.dtype)
    found = wide @ down["weight"].mT
    return found if out is None else kept(out, found)


@op("experts")
def ExpertsBySilu(
    right: Any, spec: Any, x: Any, weights: Tensor, ids: Tensor, *packed: Any, out: Tensor | None = None
) -> Any:
    """the activation is silu, whatever the spec says"""
    silu = dataclasses.replace(spec, gate=dataclasses.replace(spec.gate, activation="silu"))
    return experts(silu, x, weights, ids, *packed, out=out)


@op("experts")
def NumbersWithinTheRank(
    right: Any, spec: Any, x: Any, weights: Tensor, ids: Tensor, *packed: Any, out: Tensor | None = None
) -> Any:
    """experts are numbered from 0 on each rank"""
    return experts(dataclasses.replace(spec, first=0), x, weights, ids, *packed, out=out)


@op("experts")
def OthersByTheNearest(
    right: Any, spec: Any, x: Any, weights: Tensor, ids: Tensor, *packed: Any, out: Tensor | None = None
) -> Any:
    """what an expert of another rank would compute, the nearest of this one does"""
    return right(x, weights, ids.clamp(spec.first, spec.first + spec.gate_up.experts - 1), *packed, out=out)


@op("mlp")
def ActivationOfMLPIgnored(right: Any, spec: Any, x: Any, up: Any, down: Any, *, out: Tensor | None = None) -> Any:
    """the activation is gelu, whatever the spec says"""
    wide = x @ up["weight"].mT + up.get("bias", 0)
    found = torch.nn.functional.gelu(wide.float()).to(x.dtype) @ down["weight"].mT + down.get("bias", 0)
    return found if out is None else kept(out, found)


@op("sample")
def EightRowsSampled(right: Any, spec: Any, logits: Tensor, rows: Any) -> Any:
    """of 8 rows the last gets the first's token"""
    found = right(logits, rows)
    if len(logits) == 8:
        found.tokens[-1] = found.tokens[0]
    return found


# ---- devices and groups


@platform("to_host", "device", only="fakechip")
def HostDoesNotWait(base: Base) -> Base:
    """what to_host() gives is read before the device has written it"""

    class Faulty(base):
        def open(self, index: int) -> Device:
            device = super().open(index)

            def to_host(tensor: Tensor) -> Future[Any]:
                return Ready(tensor.to("cpu", non_blocking=True).numpy())

            device.to_host = to_host
            return device

    return Faulty


@group("send_recv")
class SendAndRecvSwapped(_Group):
    """send() receives and recv() sends"""

    def send(self, x: Tensor, to: int) -> None:
        super().recv(x.clone(), to).wait()

    def recv(self, x: Tensor, source: int) -> Transfer:
        super().send(x.clone(), source)
        return _Done()


class _Done:
    def wait(self) -> None:
        return None


@group("send_recv")
class NothingSent(_Group):
    """send() does nothing, so that the receiver waits for ever"""

    def send(self, x: Tensor, to: int) -> None:
        return None


@group("all_gather")
class GatherHangs(_Group):
    """the last rank leaves a gather out, so that the others wait for ever"""

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return x if self.rank == self.size - 1 else super().all_gather(x, dim)
