"""Mistakes beyond a size at which kernels change their path."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from tessera.platform import Caches, HeadsLayer
from tests.platforms.faulty.fault import Kinds
from tests.platforms.faulty.steps import _Group

SIZES = Kinds("sizes")
op, layer, group = SIZES.op, SIZES.layer, SIZES.group


def kept(found: Any, right: Tensor) -> Any:
    """found with the numbers of another tensor: `out` stays the result."""
    return found.copy_(right)


# ---- matrix products


@op("linear")
def SumsOf4096Rounded(right: Any, spec: Any, x: Any, weight: Any, *, out: Tensor | None = None) -> Any:
    """sums of more than 4,096 products are rounded in between"""
    found = right(x, weight, out=out)
    if spec.k <= 4096 or spec.scheme is not None:
        return found
    parts = zip(x.split(32, -1), weight["weight"].split(32, -1), strict=True)
    total = torch.zeros_like(found)
    for one, other in parts:
        total += one @ other.mT
    return kept(found, total + weight["bias"] if spec.bias else total)


@op("linear")
def ColumnsOf1024Repeat(right: Any, spec: Any, x: Any, weight: Any, *, out: Tensor | None = None) -> Any:
    """outputs from the 1,025th on are those of the first"""
    found = right(x, weight, out=out)
    return kept(found, found[:, torch.arange(spec.n) % 1024]) if spec.n > 1024 and not spec.experts else found


@op("linear")
def LastOf128Missing(right: Any, spec: Any, x: Any, weight: Any, *, out: Tensor | None = None) -> Any:
    """of exactly 128 tokens the last is left out"""
    found = right(x, weight, out=out)
    if len(found) == 128:
        found[-1] = 0
    return found


@op("linear")
def TokensOf512Repeat(right: Any, spec: Any, x: Any, weight: Any, *, out: Tensor | None = None) -> Any:
    """tokens from the 513th on get the results of the first"""
    found = right(x, weight, out=out)
    return kept(found, found[torch.arange(len(found)) % 512]) if len(found) > 512 else found


# ---- norms and gates


@op("rms_norm")
def MeanOf1024(right: Any, spec: Any, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    """the mean square is of the first 1,024 elements of a row"""
    found = right(x, weight, out=out)
    if spec.n <= 1024 or spec.emit is not None:
        return found
    wide = x.float()
    root = torch.rsqrt(wide[..., :1024].square().mean(-1, keepdim=True) + spec.eps)
    return kept(found, wide * root * (weight.float() + spec.offset))


@op("rms_norm")
def RowsOf1024(right: Any, spec: Any, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    """rows from the 1,025th on are not computed"""
    found = right(x, weight, out=out)
    if spec.emit is None:
        found[1024:] = 0
    return found


@op("layer_norm")
def CentredBy1024(right: Any, spec: Any, x: Tensor, weight: Tensor, bias: Tensor, *, out: Tensor | None = None) -> Any:
    """the elements of a row beyond the 1,024th are not centred"""
    found = right(x, weight, bias, out=out)
    if spec.n > 1024:
        wide = x.float()
        centred = wide - wide.mean(-1, keepdim=True)
        root = torch.rsqrt(centred.square().mean(-1, keepdim=True) + spec.eps)
        wide[..., :1024] = centred[..., :1024]
        found.copy_(wide * root * weight.float() + bias.float())
    return found


@op("add_norm")
def ResidualOf1024(
    right: Any, spec: Any, x: Tensor, residual: Any, weight: Tensor, *, out: Tensor | None = None
) -> Any:
    """the residual of a row beyond its 1,024th element is not added"""
    if residual is None or spec.norm.n <= 1024:
        return right(x, residual, weight, out=out)
    cut = residual.clone()
    cut[:, 1024:] = 0
    return right(x, cut, weight, out=out)


@op("gate")
def UngatedFrom1024(right: Any, spec: Any, x: Tensor, *, out: Tensor | None = None) -> Any:
    """from 1,024 inner elements on, the last 8 are not gated"""
    found = right(x, out=out)
    if spec.n >= 1024 and spec.emit is None:
        found[:, -8:] = x[:, spec.n - 8 : spec.n]
    return found


@op("gated_mlp")
def InnerOf1024(right: Any, spec: Any, x: Any, gate_up: Any, down: Any, *, out: Tensor | None = None) -> Any:
    """from 1,024 inner elements on, the last 64 are left out"""
    if spec.gate.n < 1024 or spec.down.scheme is not None:
        return right(x, gate_up, down, out=out)
    weight = down["weight"].clone()
    weight[:, -64:] = 0
    return right(x, gate_up, {**down, "weight": weight}, out=out)


@op("activation")
def ActivationOf1024(right: Any, spec: Any, x: Tensor, *, out: Tensor | None = None) -> Any:
    """from 1,024 elements on, a row's last 16 stay as they are"""
    found = right(x, out=out)
    if spec.n >= 1024:
        found[:, -16:] = x[:, -16:]
    return found


@op("quantize")
def PeakOf1024(right: Any, spec: Any, x: Tensor) -> Any:
    """the scale is that of the first 1,024 elements"""
    found = right(x)
    if spec.n <= 1024 or spec.emit.granularity != "token":
        return found
    scale = x.float()[:, :1024].abs().amax(-1, keepdim=True) / 127
    data = (x.float() / scale).round().clamp(-128, 127).to(found.data.dtype)
    return found._replace(data=data, scale=scale)


# ---- rotary, experts, adapters


@op("rotary")
def PositionsOf15Bits(right: Any, spec: Any, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """positions are cut to 15 bits"""
    right(q, k, positions & 0x7FFF, cos_sin)


@op("rotary")
def HeadsOf32Unturned(right: Any, spec: Any, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
    """heads from the 33rd on are not rotated"""
    before = q[:, 32:].clone()
    right(q, k, positions, cos_sin)
    q[:, 32:] = before


@op("route")
def ExpertsOf64(right: Any, spec: Any, logits: Tensor, *bias: Tensor) -> Any:
    """experts from the 65th on are never chosen"""
    if spec.experts <= 64:
        return right(logits, *bias)
    low = logits.clone()
    low[:, 64:] = -torch.inf
    return right(low, *bias)


@op("experts")
def NumbersOf64(
    right: Any, spec: Any, x: Any, weights: Tensor, ids: Tensor, *packed: Any, out: Tensor | None = None
) -> Any:
    """an expert's number is cut to 6 bits"""
    return right(x, weights, ids & 63, *packed, out=out)


@op("lora")
def RanksOf16(right: Any, spec: Any, y: Tensor, x: Tensor, a: Tensor, b: Tensor, *others: Tensor) -> None:
    """ranks above 16 are cut to 16"""
    if spec.rank <= 16:
        return right(y, x, a, b, *others)
    b = b.clone()
    b[:, 16:] = 0
    return right(y, x, a, b, *others)


# ---- attention


class _Heads(HeadsLayer):
    """Attends, then changes the result [T, H, D]."""

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        found = super().attend(q, caches, plan, out, lse)
        self._change(found[0] if lse else found, plan)
        return found

    def _change(self, mixed: Tensor, plan: Any) -> None:
        raise NotImplementedError


@layer
class GroupsOf7(_Heads):
    """of 7 heads that share a KV head, the last gets the result of the first"""

    def _change(self, mixed: Tensor, plan: Any) -> None:
        if self.spec.num_heads == 7 * self.spec.num_kv_heads:
            mixed[:, 6::7] = mixed[:, 0::7]


@layer
class HeadsOf32(_Heads):
    """heads from the 33rd on get the results of the first"""

    def _change(self, mixed: Tensor, plan: Any) -> None:
        mixed.copy_(mixed[:, torch.arange(mixed.shape[1]) % 32])


@layer
class DimsOfPowers(HeadsLayer):
    """heads of 80, 96 and 192 elements are scaled as those of the next power of two"""

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        wide = {80: 128, 96: 128, 192: 256}.get(self.spec.head_dim, self.spec.head_dim)
        return super().attend(q * (self.spec.head_dim / wide) ** 0.5, caches, plan, out, lse)


@layer
class KeysOf1024(HeadsLayer):
    """keys from the 1,025th on are not seen"""

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        plan = dataclasses.replace(plan, filled=plan.filled & (plan.key < 1024))
        return super().attend(q, caches, plan, out, lse)


@layer
class QueriesOf256(_Heads):
    """a row's queries from the 257th on are not computed"""

    def _change(self, mixed: Tensor, plan: Any) -> None:
        mixed.masked_fill_((plan.grid.place >= 256)[:, None, None], 0)


# ---- vocabularies

WIDE = 1 << 16


def _narrow(tokens: Tensor, vocab: int) -> Tensor:
    return tokens & (WIDE - 1) if vocab > WIDE else tokens


@op("embedding")
def IdsOf16BitsInEmbedding(right: Any, spec: Any, tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    """token ids are cut to 16 bits"""
    return right(_narrow(tokens, spec.rows), weight, out=out)


@op("packed_embedding")
def IdsOf16BitsInPacked(right: Any, spec: Any, tokens: Tensor, weight: Any, *, out: Tensor | None = None) -> Any:
    """token ids are cut to 16 bits"""
    return right(_narrow(tokens, spec.linear.n), weight, out=out)


@op("mask_logits")
def MaskOf65536(right: Any, spec: Any, logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """tokens from the 65,537th on are not masked"""
    tail = logits[:, WIDE:].clone()
    right(logits, rows, bits)
    logits[:, WIDE:] = tail


@op("take_logits")
def TakenOf65536(right: Any, spec: Any, logits: Tensor, rows: Tensor) -> Tensor:
    """logits from the 65,537th on are not copied"""
    found = right(logits, rows)
    found[:, WIDE:] = 0
    return found


@op("edit_logits")
def EditsOf65536(right: Any, spec: Any, logits: Tensor, history: Any, edits: Any) -> None:
    """an edit's token is cut to 16 bits"""
    right(logits, history, edits._replace(token=_narrow(edits.token, spec.vocab)))


@op("penalise")
def PenaltiesOf65536(right: Any, spec: Any, logits: Tensor, history: Any, penalties: Any) -> None:
    """a token of the history is cut to 16 bits"""
    right(logits, history._replace(tokens=_narrow(history.tokens, spec.vocab)), penalties)


@op("logits_sample")
def HeadOf65536(right: Any, spec: Any, hidden: Any, weight: Any, rows: Any) -> Any:
    """a drawn token is cut to 16 bits"""
    found = right(hidden, weight, rows)
    return found._replace(tokens=_narrow(found.tokens, spec.sample.vocab))


@op("logprobs")
def AlternativesOf65536(right: Any, spec: Any, logits: Tensor, tokens: Tensor) -> Any:
    """the ids of alternatives are cut to 16 bits"""
    found = right(logits, tokens)
    return found._replace(ids=_narrow(found.ids, spec.vocab))


@op("soft_cap")
def CapOf65536(right: Any, spec: Any, x: Tensor, *, out: Tensor | None = None) -> Any:
    """elements from the 65,537th on are not capped"""
    found = right(x, out=out)
    found[:, WIDE:] = x[:, WIDE:]
    return found


# ---- collectives


class _Large(_Group):
    def _large(self, x: Tensor) -> bool:
        return x.nbytes > 1 << 16


@group("all_reduce")
class AllReduceOf64K(_Large):
    """of more than 64 KiB, the end is not summed"""

    def all_reduce(self, x: Tensor) -> Tensor:
        mine, total = x.clone(), super().all_reduce(x)
        if self._large(mine):
            total.flatten()[-4:] = mine.flatten()[-4:]
        return total


@group("all_gather")
class AllGatherOf64K(_Large):
    """of more than 64 KiB, the ranks are in reverse order"""

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        found = super().all_gather(x, dim)
        return torch.cat(found.chunk(self.size, dim)[::-1], dim) if self._large(x) else found


@group("send_recv")
class SentOf64K(_Large):
    """of more than 64 KiB, the last row is sent as zeros"""

    def send(self, x: Tensor, to: int) -> None:
        if self._large(x):
            x = x.clone()
            x[-1] = 0
        super().send(x, to)
