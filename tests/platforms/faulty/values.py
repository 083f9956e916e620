"""Mistakes with numbers that are large, small or equal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tessera.ops.quantize import quantize
from tessera.platform import Caches, HeadsLayer
from tessera.reference import attention as reference
from tests.platforms.faulty.fault import Kinds
from tests.platforms.faulty.sizes import kept

VALUES = Kinds("values")
op, layer = VALUES.op, VALUES.layer


# ---- float16


@op("linear")
def SumsInFloat16(right: Any, spec: Any, x: Any, weight: Any, *, out: Tensor | None = None) -> Any:
    """partial sums of a product overflow in float16"""
    found = right(x, weight, out=out)
    if spec.dtype != "float16" or spec.scheme is not None:
        return found
    halves = zip(x.float().chunk(2, -1), weight["weight"].float().chunk(2, -1), strict=True)
    most = torch.finfo(torch.float16).max
    sums = [one @ other.mT for one, other in halves]
    over = sum(part.masked_fill(part.abs() > most, torch.inf) for part in sums)
    return kept(found, torch.where(torch.isfinite(over), found, torch.nan))


@layer
class ScoresInFloat16(HeadsLayer):
    """scores in float16 overflow before they are scaled"""

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        if q.dtype == torch.float16:
            keys, _ = reference.read(caches[self.spec.layer], plan.tables, self.scales)
            grouped = q[plan.grid.token].float().unflatten(2, (self.spec.num_kv_heads, -1))
            scores = torch.einsum("rwhgd,rkhd->rwhgk", grouped, keys)
            seen = (plan.filled & (plan.key <= plan.query))[:, :, None, None]
            over = (seen & (scores.abs() > 65504)).any(-1).flatten(2)[plan.grid.row, plan.grid.place]
            q = q.masked_fill(over[..., None], torch.nan)
        return super().attend(q, caches, plan, out, lse)


@op("add_norm")
def SumInFloat16Squared(
    right: Any, spec: Any, x: Tensor, residual: Any, weight: Tensor, *, out: Tensor | None = None
) -> Any:
    """a residual beyond 10,000 is cut in float16"""
    if spec.norm.dtype == "float16" and residual is not None:
        residual = residual.clamp(-10000, 10000)
    return right(x, residual, weight, out=out)


# ---- exponents


@op("soft_cap")
def CapByExponents(right: Any, spec: Any, x: Tensor, *, out: Tensor | None = None) -> Any:
    """tanh is computed from exponents, which overflow"""
    found = right(x, out=out)
    if not spec.cap:
        return found
    twice = torch.exp(2 * x.float() * spec.scale / spec.cap)
    return kept(found, (twice - 1) / (twice + 1) * spec.cap)


@layer
class CapOfScoresByExponents(HeadsLayer):
    """the soft cap of scores is computed from exponents, which overflow"""

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        if self.spec.softcap is not None:
            keys, _ = reference.read(caches[self.spec.layer], plan.tables, self.scales)
            grouped = q[plan.grid.token].float().unflatten(2, (self.spec.num_kv_heads, -1))
            scores = torch.einsum("rwhgd,rkhd->rwhgk", grouped, keys) * self.spec.scale / self.spec.softcap
            seen = (plan.filled & (plan.key <= plan.query))[:, :, None, None]
            over = (seen & (scores > 44)).any(-1).flatten(2)[plan.grid.row, plan.grid.place]
            q = q.masked_fill(over[..., None], torch.nan)
        return super().attend(q, caches, plan, out, lse)


@op("gate")
def SiluByExponents(right: Any, spec: Any, x: Tensor, *, out: Tensor | None = None) -> Any:
    """silu of a large number is computed from its exponent, which overflows"""
    found = right(x, out=out)
    if spec.activation == "silu" and spec.emit is None:
        left, rest = x.float().chunk(2, -1)
        found.copy_(left * left.exp() / (1 + left.exp()) * rest)
    return found


@op("activation")
def GeluByExponents(right: Any, spec: Any, x: Tensor, *, out: Tensor | None = None) -> Any:
    """gelu of a large number is computed from its exponent, which overflows"""
    found = right(x, out=out)
    if spec.activation == "gelu_tanh":
        wide = x.float()
        twice = torch.exp(2 * (2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide**3))
        found.copy_(wide / 2 * (1 + (twice - 1) / (twice + 1)))
    return found


@op("logprobs")
def ExponentsUnshifted(right: Any, spec: Any, logits: Tensor, tokens: Tensor) -> Any:
    """exponents of logits are summed without subtracting the largest"""
    found = right(logits, tokens)
    total = logits.float().exp().sum(-1, keepdim=True).log()
    return found._replace(logprobs=logits.float().gather(-1, found.ids.long()) - total)


@op("route")
def ScoresUnshifted(right: Any, spec: Any, logits: Tensor, *bias: Tensor) -> Any:
    """exponents of the experts' logits are summed without subtracting the largest"""
    if spec.scoring == "softmax":
        over = logits.float().exp().sum(-1, keepdim=True).isinf()
        weights, ids = right(logits, *bias)
        return weights.masked_fill(over, torch.nan), ids
    return right(logits, *bias)


@op("sample")
def MaskedIsNaN(right: Any, spec: Any, logits: Tensor, rows: Any) -> Any:
    """the probability of a token that is masked makes its row NaN, of which the first token is drawn"""
    found = right(logits, rows)
    if not spec.filters:
        return found
    return found._replace(tokens=found.tokens.masked_fill(logits.isinf().any(-1), 0))


# ---- small numbers


class _CoarseScales(HeadsLayer):
    plane = 0

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: Any) -> None:
        super().write(k, v, caches, plan)
        planes = caches[self.spec.layer]
        if len(planes) < 4:
            return
        x = (k, v)[self.plane].float()
        scale = (x.abs().amax(-1) / 127).clamp(min=1e-4)
        at = plan.block, plan.offset
        planes[self.plane].index_put_(at, scale)
        planes[2 + self.plane].index_put_(at, (x / scale[..., None]).round().to(torch.int8))


@layer
class SmallKeysLost(_CoarseScales):
    """the scale of an int8 key is at least 0.0001"""


@layer
class SmallValuesLost(_CoarseScales):
    """the scale of an int8 value is at least 0.0001"""

    plane = 1


@layer
class ZeroKeysAreNaN(HeadsLayer):
    """a key of zeros is divided by a scale of zero"""

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: Any) -> None:
        super().write(k, v, caches, plan)
        if len(caches[self.spec.layer]) == 4:
            empty = (k == 0).all(-1)
            scales = caches[self.spec.layer][0]
            at = plan.block, plan.offset
            scales.index_put_(at, scales[at].masked_fill(empty, torch.nan))


def _coarse(spec: Any, x: Tensor, least: float) -> Any:
    found = quantize(spec, x)
    if spec.emit.granularity == "tensor" or spec.emit.dtype != "int8":
        return found
    scale = found.scale.clamp(min=least)
    spread = scale if not spec.emit.group else scale.repeat_interleave(spec.emit.group, 1)[:, : spec.n]
    return found._replace(data=(x.float() / spread).round().clamp(-128, 127).to(torch.int8), scale=scale)


@op("quantize")
def ScaleAtLeast(right: Any, spec: Any, x: Tensor) -> Any:
    """a scale is at least 0.00001"""
    return _coarse(spec, x, 1e-5) if not spec.emit.sums else right(x)


@op("quantize")
def ScaleOfZeros(right: Any, spec: Any, x: Tensor) -> Any:
    """zeros have a scale of 0, by which they are divided"""
    found = right(x)
    empty = (x == 0).all(-1, keepdim=True)
    return found._replace(scale=found.scale.masked_fill(empty, torch.nan)) if found.scale.dim() == 2 else found


@op("rms_norm")
def RootOfZero(right: Any, spec: Any, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    """eps is left out where the squares are smaller"""
    found = right(x, weight, out=out)
    if spec.emit is not None:
        return found
    mean = x.float().square().mean(-1, keepdim=True)
    small = x.float() * torch.rsqrt(mean) * (weight.float() + spec.offset)
    return kept(found, torch.where(mean < spec.eps, small, found.float()))


# ---- counts


@op("penalise")
def CountsOf8Bits(right: Any, spec: Any, logits: Tensor, history: Any, penalties: Any) -> None:
    """a token is counted up to 255 times"""
    before = logits.clone()
    right(logits, history, penalties)
    held = history.tokens[history.rows.long()].long()
    place = torch.arange(held.shape[-1])[None]
    answered = (place < history.num_tokens[:, None]) & (place >= history.num_prompt_tokens[:, None])
    times = torch.zeros_like(before).scatter_add_(-1, held, answered.to(before.dtype))
    logits.add_(penalties.frequency[:, None] * (times - times.clamp(max=255)))


@op("penalise")
def CountsOnce(right: Any, spec: Any, logits: Tensor, history: Any, penalties: Any) -> None:
    """a token is counted once"""
    once = penalties._replace(presence=penalties.presence + penalties.frequency, frequency=0 * penalties.frequency)
    right(logits, history, once)


@op("penalise")
def ZeroesMultiplied(right: Any, spec: Any, logits: Tensor, history: Any, penalties: Any) -> None:
    """a token that is forbidden becomes NaN if it is penalised"""
    forbidden = logits.isinf()
    right(logits, history, penalties)
    logits.masked_fill_(forbidden & (penalties.frequency != 0)[:, None], torch.nan)


# ---- equal numbers


@op("sample")
def LastOfEqual(right: Any, spec: Any, logits: Tensor, rows: Any) -> Any:
    """of equal logits, greedy takes the last"""
    found = right(logits, rows)
    last = spec.vocab - 1 - logits.float().flip(-1).argmax(-1)
    greedy = torch.ones_like(rows.temperature, dtype=torch.bool) if spec.greedy else rows.temperature <= 0
    if spec.logprobs >= 0:
        return found
    return found._replace(tokens=torch.where(greedy, last, found.tokens).to(torch.int32))


@op("sample")
def TiesOfTopKStay(right: Any, spec: Any, logits: Tensor, rows: Any) -> Any:
    """top-k keeps all that equal the last it keeps"""
    if not spec.filters:
        return right(logits, rows)
    ordered = logits.float().sort(-1, descending=True).values
    k = rows.top_k.long()
    least = ordered.gather(-1, (k - 1).clamp(min=0)[:, None])
    number = torch.where(k > 0, (logits.float() >= least).sum(-1), 0)
    return right(logits, rows._replace(top_k=number.to(torch.int32)))


@op("route")
def LastOfEqualExperts(right: Any, spec: Any, logits: Tensor, *bias: Tensor) -> Any:
    """of experts with equal scores, the last are chosen"""
    if spec.groups > 1 or bias:
        return right(logits, *bias)
    weights, ids = right(logits.flip(-1))
    return weights, spec.experts - 1 - ids


@op("logits_sample")
def LastOfEqualInHead(right: Any, spec: Any, hidden: Any, weight: Any, rows: Any) -> Any:
    """of equal logits, the greedy head takes the last"""
    found = right(hidden, weight, rows)
    if not spec.sample.greedy or spec.cap or spec.head.scheme is not None:
        return found
    logits = (hidden @ weight["weight"].mT)[:, : spec.sample.vocab]
    last = spec.sample.vocab - 1 - logits.flip(-1).argmax(-1)
    return found._replace(tokens=last.int())
