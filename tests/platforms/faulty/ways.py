"""Mistakes on ways through the contract that a simple model never takes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tessera.ops.mlp import gate
from tessera.platform import (
    AttentionBackend,
    AttentionGroup,
    BoundOps,
    Buffers,
    Caches,
    Device,
    HeadsLayer,
    LatentInput,
    LatentLayerSpec,
    Launch,
    LaunchShape,
    LayerSpec,
    LinearSpec,
    MemoryFigures,
    ModelFacts,
    OpSet,
    Packed,
    ScanInput,
    ShapePolicy,
    StateSpec,
    StepRules,
    StepShape,
    WKVInput,
    replace,
)
from tessera.reference.attention import ReferenceAttentionLayer
from tessera.reference.convolution import causal_convolution
from tessera.reference.cross_attention import ReferenceCrossLayer
from tessera.reference.delta_net import GatedDeltaNetLayer
from tessera.reference.encoder_attention import ReferenceEncoderLayer
from tessera.reference.kimi_delta import KimiDeltaLayer
from tessera.reference.latent import ReferenceLatentLayer
from tessera.reference.lightning import LightningLayer
from tessera.reference.mamba import MambaConvolutionLayer, SelectiveScanLayer
from tessera.reference.mamba2 import Mamba2Layer
from tessera.reference.mlstm import MLSTMLayer
from tessera.reference.rg_lru import RGLRULayer
from tessera.reference.short_convolution import ShortConvolutionLayer
from tessera.reference.sparse_attention import ReferenceIndexerLayer, ReferenceSparseLatentLayer
from tessera.reference.state import LinearAttentionLayer
from tessera.reference.token_shift import TokenShiftLayer
from tessera.reference.wkv import WKVLayer
from tests.platforms.faulty.fault import Kinds
from tests.platforms.faulty.making import Base, with_backend
from tests.platforms.faulty.plain import (
    Own,
    PlainAttention,
    PlainCross,
    PlainDeltaNet,
    PlainEncoder,
    PlainIndexer,
    PlainKimiDelta,
    PlainLatents,
    PlainLightning,
    PlainMamba2,
    PlainMambaConvolution,
    PlainMLSTM,
    PlainRGLRU,
    PlainScan,
    PlainShortConvolution,
    PlainSparseLatents,
    PlainState,
    PlainTokenShift,
    PlainWKV,
)
from tests.platforms.faulty.steps import _Group

WAYS = Kinds("ways")
op, layer, group, platform = WAYS.op, WAYS.layer, WAYS.group, WAYS.platform


# ---- results that are quantized for the next op


@op("rms_norm")
def NormEmitsNeighboursScale(right: Any, spec: Any, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    """a row that is emitted in int8 has the scale of the next"""
    found = right(x, weight, out=out)
    return found._replace(scale=found.scale.roll(1, 0)) if spec.emit is not None else found


@op("rms_norm")
def NormEmitsWithoutOffset(right: Any, spec: Any, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    """where the result is emitted in int8, the weight's offset is left out"""
    return right(x, weight - spec.offset, out=out) if spec.emit is not None else right(x, weight, out=out)


@op("add_norm")
def NormEmitsResidual(
    right: Any, spec: Any, x: Tensor, residual: Any, weight: Tensor, *, out: Tensor | None = None
) -> Any:
    """where the result is emitted in int8, the residual returned is the one from before the sum"""
    normed, total = right(x, residual, weight, out=out)
    return normed, total if spec.norm.emit is None or residual is None else residual


@op("gate")
def GateEmitsTwice(right: Any, spec: Any, x: Tensor, *, out: Tensor | None = None) -> Any:
    """a gate's result that is emitted in int8 has twice its scale"""
    found = right(x, out=out)
    return found._replace(scale=2 * found.scale) if spec.emit is not None else found


@op("gate")
def GateEmitsSilu(right: Any, spec: Any, x: Tensor, *, out: Tensor | None = None) -> Any:
    """where the result is emitted, the activation is silu"""
    if spec.emit is None or spec.activation == "silu":
        return right(x, out=out)
    return gate(dataclasses.replace(spec, activation="silu"), x)


@op("rms_norm")
def SumsForgotten(right: Any, spec: Any, x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Any:
    """the sums that an emitted row should have are left out"""
    found = right(x, weight, out=out)
    return found._replace(sums=None) if spec.emit is not None else found


# ---- weights that are written over


class _Prepared(Own):
    """A quantized weight, written over an earlier one."""

    def _over(self, raw: Packed, into: Mapping[str, Tensor]) -> None:
        raise NotImplementedError

    def prepare(self, spec: LinearSpec, raw: Packed, into: Packed | None = None) -> Packed:
        if into is None or spec.scheme is None:
            return super().prepare(spec, raw, into)
        self._over(raw, into)
        return into


class _ScaleStays(_Prepared):
    def _over(self, raw: Packed, into: Mapping[str, Tensor]) -> None:
        into["weight"].copy_(raw["weight"])


class _Accumulates(_Prepared):
    def _over(self, raw: Packed, into: Mapping[str, Tensor]) -> None:
        for name, tensor in raw.items():
            into[name].copy_(tensor)
        if "bias" in raw:
            into["bias"].add_(raw["bias"])


class _SecondTime(_Prepared):
    """Right the first time."""

    def __init__(self, op: Any) -> None:
        super().__init__(op)
        self.times: dict[int, int] = {}

    def _over(self, raw: Packed, into: Mapping[str, Tensor]) -> None:
        at = into["weight"].data_ptr()
        self.times[at] = self.times.get(at, 0) + 1
        if self.times[at] == 1:
            for name, tensor in raw.items():
                into[name].copy_(tensor)


def _linear(kernel: type[Own]) -> Any:
    def plant(base: Base) -> Base:
        class Faulty(base):
            def ops(self, reference: OpSet) -> OpSet:
                return replace(super().ops(reference), linear=kernel(reference["linear"]))

        return Faulty

    return plant


@platform("scheme", "op", "scheme", "packed")
def ScaleOfTheFirstWeight(base: Base) -> Base:
    """an int8 weight that is written over an earlier one has the earlier one's scales"""
    return _linear(_ScaleStays)(base)


@platform("scheme", "op", "scheme", "packed")
def BiasOfBothWeights(base: Base) -> Base:
    """the bias of an int8 weight that is written over an earlier one is added twice"""
    return _linear(_Accumulates)(base)


@platform("scheme", "op", "scheme", "packed")
def SecondWeightStays(base: Base) -> Base:
    """an int8 weight can be written over once, and not twice"""
    return _linear(_SecondTime)(base)


# ---- backends


def _instead(plain: type[Any], made: type[Any]) -> Any:
    """made: the layer that the backend of that class then binds."""

    class Backend(plain):
        layer = made

    def plant(base: Base) -> Base:
        class Faulty(base):
            def attention_backends(self) -> list[Any]:
                every = super().attention_backends()
                return [Backend() if isinstance(backend, plain) else backend for backend in every]

        return Faulty

    return plant


# ---- linear biases


class _SlopesOfTheNext(ReferenceAttentionLayer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps) -> None:
        slopes = spec.slopes[1:] + spec.slopes[:1]
        super().__init__(dataclasses.replace(spec, slopes=slopes), weights, ops)


class _BiasesScaled(ReferenceAttentionLayer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps) -> None:
        slopes = tuple(slope * spec.scale for slope in spec.slopes)
        super().__init__(dataclasses.replace(spec, slopes=slopes), weights, ops)


class _BiasesOfGroups(ReferenceAttentionLayer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps) -> None:
        super().__init__(spec, weights, ops)
        self.slopes = None if self.slopes is None else self.slopes[:, :1]


class _BiasesBehindPromptsAlone(ReferenceAttentionLayer):
    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        whole = self.slopes
        self.slopes = None if plan.query.shape[1] == 1 else whole
        try:
            return super().attend(q, caches, plan, out, lse)
        finally:
            self.slopes = whole


@platform("alibi attention", "op", "alibi")
def SlopesOfTheNextHead(base: Base) -> Base:
    """the biases of each head have the slope of the next"""
    return _instead(PlainAttention, _SlopesOfTheNext)(base)


@platform("alibi attention", "op", "alibi")
def BiasesScaled(base: Base) -> Base:
    """biases are scaled as scores are"""
    return _instead(PlainAttention, _BiasesScaled)(base)


@platform("alibi attention", "op", "alibi")
def SlopeOfTheGroup(base: Base) -> Base:
    """heads that share a key head share the slope of the first"""
    return _instead(PlainAttention, _BiasesOfGroups)(base)


@platform("alibi attention", "op", "alibi")
def DecodesWithoutBiases(base: Base) -> Base:
    """launches of rows that decode have no biases"""
    return _instead(PlainAttention, _BiasesBehindPromptsAlone)(base)


# ---- biases by distance


class _RelativeBiasOfTheNext(ReferenceAttentionLayer):
    def _relative_bias(self, distance: Tensor) -> Tensor:
        return super()._relative_bias(distance).flatten(1, 2).roll(1, 1).unflatten(1, (self.spec.num_kv_heads, -1))


class _DistancesOfTheLaunch(ReferenceAttentionLayer):
    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        self._before = plan.query[:, :1]
        return super().attend(q, caches, plan, out, lse)

    def _relative_bias(self, distance: Tensor) -> Tensor:
        return super()._relative_bias(distance + self._before)


class _FarOnesUnbiased(ReferenceAttentionLayer):
    def _relative_bias(self, distance: Tensor) -> Tensor:
        near = distance > -self.spec.relative_reach
        return super()._relative_bias(distance) * near[:, None, None]


@platform("relative attention", "op", "relative")
def RelativeBiasOfTheNextHead(base: Base) -> Base:
    """the biases by distance of each head are those of the next"""
    return _instead(PlainAttention, _RelativeBiasOfTheNext)(base)


@platform("relative attention", "op", "relative")
def DistancesFromTheFirstQuery(base: Base) -> Base:
    """distances count queries from the first one of a launch"""
    return _instead(PlainAttention, _DistancesOfTheLaunch)(base)


@platform("relative attention", "op", "relative")
def FarKeysUnbiased(base: Base) -> Base:
    """keys farther than the last distance that is told apart have no bias"""
    return _instead(PlainAttention, _FarOnesUnbiased)(base)


# ---- attention within chunks


class _WindowsForChunks(ReferenceAttentionLayer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps) -> None:
        super().__init__(dataclasses.replace(spec, window=spec.chunk, chunk=None), weights, ops)


class _ChunksFromTheFirstQuery(ReferenceAttentionLayer):
    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        if self.spec.chunk is not None and plan.query.shape[1] > 1:
            first = plan.query[:, :1] % self.spec.chunk
            plan = dataclasses.replace(plan, query=plan.query - first, key=plan.key - first)
        return super().attend(q, caches, plan, out, lse)


@platform("chunked attention", "op", "chunk")
def WindowsForChunks(base: Base) -> Base:
    """a query sees as many tokens as a chunk has, its neighbour's too"""
    return _instead(PlainAttention, _WindowsForChunks)(base)


@platform("chunked attention", "op", "chunk")
def ChunksFromTheFirstQuery(base: Base) -> Base:
    """chunks are counted from the first query of a launch"""
    return _instead(PlainAttention, _ChunksFromTheFirstQuery)(base)


# ---- attention that looks ahead


class _NeverAhead(ReferenceAttentionLayer):
    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        return super().attend(q, caches, dataclasses.replace(plan, last=plan.query), out, lse)


class _AheadOfTheRow(ReferenceAttentionLayer):
    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        far = torch.where(plan.last > plan.query, plan.filled.sum(-1, keepdim=True) - 1, plan.last)
        return super().attend(q, caches, dataclasses.replace(plan, last=far), out, lse)


@platform("lookahead attention", "op", "lookahead")
def NeverLooksAhead(base: Base) -> Base:
    """a token of an image sees none of it that come later"""
    return _instead(PlainAttention, _NeverAhead)(base)


@platform("lookahead attention", "op", "lookahead")
def LooksBeyondTheImage(base: Base) -> Base:
    """a token of an image sees all of its row, what comes behind the image too"""
    return _instead(PlainAttention, _AheadOfTheRow)(base)


# ---- state


class _StateKept(LinearAttentionLayer):
    def mix(self, laid: Tensor, caches: Caches, grid: Any) -> Tensor:
        return super().mix(laid, caches, dataclasses.replace(grid, fresh=torch.zeros_like(grid.fresh)))


class _StateOfAnother(LinearAttentionLayer):
    def mix(self, laid: Tensor, caches: Caches, grid: Any) -> Tensor:
        return super().mix(laid, caches, dataclasses.replace(grid, slot=grid.slot.roll(1)))


class _StateUnfaded(LinearAttentionLayer):
    def mix(self, laid: Tensor, caches: Caches, grid: Any) -> Tensor:
        if grid.valid.shape[1] == 1:
            return super().mix(laid, caches, grid)
        kept = self.log_decay
        self.log_decay = 0 * kept
        try:
            return super().mix(laid, caches, grid)
        finally:
            self.log_decay = kept


@platform("state", "op", "state")
def StateOfTheLastRequest(base: Base) -> Base:
    """a request begins with the state that the slot's last request left"""
    return _instead(PlainState, _StateKept)(base)


@platform("state", "op", "state")
def StateOfAnotherRow(base: Base) -> Base:
    """a row's state is another's"""
    return _instead(PlainState, _StateOfAnother)(base)


@platform("state", "op", "state")
def StateUnfaded(base: Base) -> Base:
    """a chunk of a prompt does not fade the state"""
    return _instead(PlainState, _StateUnfaded)(base)


class _OneColumn(AttentionBackend):
    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> Any:
        if isinstance(group.spec.cache, StateSpec):
            tables = [table.as_strided((len(table), 1), (1, 1)) for table in launch.block_tables]
            launch = dataclasses.replace(launch, block_tables=tables)
        return super().plan(launch, group, buffers)


@platform("state", "op", "state")
def StatesOfOneColumn(base: Base) -> Base:
    """slots are read as if tables had one column, so that a state behind rejected drafts is taken"""
    return with_backend(_OneColumn)(base)


# ---- delta net


class _InputsOfAnEarlierToken(GatedDeltaNetLayer):
    def _convolved(self, inputs: Tensor, conv: Tensor, grid: Any) -> Tensor:
        return super()._convolved(inputs, conv, dataclasses.replace(grid, length=(grid.length - 1).clamp(min=0)))


class _TapsReversed(GatedDeltaNetLayer):
    def _convolved(self, inputs: Tensor, conv: Tensor, grid: Any) -> Tensor:
        return causal_convolution(inputs, self.weights["conv"].flip(1), conv, grid)


class _OneKeyHead(GatedDeltaNetLayer):
    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super()._heads(mixed)
        return q, k.roll(1, 2), v


class _NormOverAllHeads(GatedDeltaNetLayer):
    def _normed(self, mixed: Tensor, gate: Tensor) -> Tensor:
        whole = mixed.square().mean((-2, -1), keepdim=True) / mixed.square().mean(-1, keepdim=True)
        return super()._normed(mixed, gate) * whole.rsqrt().expand_as(mixed).flatten(2)


class _Undelayed(GatedDeltaNetLayer):
    def mix(self, laid: Tensor, caches: Caches, grid: Any) -> Tensor:
        kept, self.weights = self.weights, {**self.weights, "dt_bias": self.weights["dt_bias"] * 0}
        try:
            return super().mix(laid, caches, grid)
        finally:
            self.weights = kept


@platform("state", "op", "state")
def DeltaNetGoesOnAToken(base: Base) -> Base:
    """the convolution of a chunk begins with the inputs of a token earlier"""
    return _instead(PlainDeltaNet, _InputsOfAnEarlierToken)(base)


@platform("state", "op", "state")
def DeltaNetReadsBackwards(base: Base) -> Base:
    """the convolution's weights are in the opposite order"""
    return _instead(PlainDeltaNet, _TapsReversed)(base)


@platform("state", "op", "state")
def DeltaNetSharesKeysWrongly(base: Base) -> Base:
    """where value heads share a key head, one takes the next group's"""
    return _instead(PlainDeltaNet, _OneKeyHead)(base)


@platform("state", "op", "state")
def DeltaNetNormsAllHeads(base: Base) -> Base:
    """the norm of the result is over all heads"""
    return _instead(PlainDeltaNet, _NormOverAllHeads)(base)


@platform("state", "op", "state")
def DeltaNetWithoutBias(base: Base) -> Base:
    """the time step has no bias"""
    return _instead(PlainDeltaNet, _Undelayed)(base)


# ---- Kimi delta attention


class _OneDecayOfAHead(KimiDeltaLayer):
    def _decay(self, forget: Tensor) -> Tensor:
        decay = super()._decay(forget)
        return decay.mean(-1, keepdim=True).expand_as(decay)


class _GateOfSilu(KimiDeltaLayer):
    def _normed(self, mixed: Tensor, gate: Tensor) -> Tensor:
        return super()._normed(mixed, gate) * gate


@platform("state", "op", "state")
def KimiDeltaFadesHeads(base: Base) -> Base:
    """all elements of a head's key fade alike"""
    return _instead(PlainKimiDelta, _OneDecayOfAHead)(base)


@platform("state", "op", "state")
def KimiDeltaGatedBySilu(base: Base) -> Base:
    """the gate of Kimi delta attention is SiLU's"""
    return _instead(PlainKimiDelta, _GateOfSilu)(base)


# ---- short convolution


class _ForgetsInputs(ShortConvolutionLayer):
    def mix(self, laid: Tensor, caches: Caches, grid: Any) -> Tensor:
        return super().mix(laid, caches, dataclasses.replace(grid, fresh=torch.ones_like(grid.fresh)))


class _SidesExchanged(ShortConvolutionLayer):
    def mix(self, laid: Tensor, caches: Caches, grid: Any) -> Tensor:
        before, after, inputs = laid.chunk(3, dim=-1)
        return super().mix(torch.cat([after, before, inputs], dim=-1), caches, grid)


class _WithoutBias(ShortConvolutionLayer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        super().__init__(spec, weights)
        self.biased = False


@platform("state", "op", "state")
def ShortConvolutionForgets(base: Base) -> Base:
    """each chunk is convolved as if nothing were before it"""
    return _instead(PlainShortConvolution, _ForgetsInputs)(base)


@platform("state", "op", "state")
def ShortConvolutionGatesExchanged(base: Base) -> Base:
    """the gate before the convolution is taken for the one after it"""
    return _instead(PlainShortConvolution, _SidesExchanged)(base)


@platform("state", "op", "state")
def ShortConvolutionWithoutBias(base: Base) -> Base:
    """the short convolution has no bias"""
    return _instead(PlainShortConvolution, _WithoutBias)(base)


# ---- mamba


class _ForgetsChannels(MambaConvolutionLayer):
    def mix(self, laid: Tensor, caches: Caches, grid: Any) -> Tensor:
        return super().mix(laid, caches, dataclasses.replace(grid, fresh=torch.ones_like(grid.fresh)))


class _ChannelsUnbiased(MambaConvolutionLayer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        super().__init__(spec, weights)
        self.biased = False


class _OneRate(SelectiveScanLayer):
    def _rate(self) -> Tensor:
        rate = super()._rate()
        return rate.mean(-1, keepdim=True).expand_as(rate)


class _ReadsAsItWrites(SelectiveScanLayer):
    def mix(self, laid: ScanInput, caches: Caches, grid: Any) -> Tensor:
        return super().mix(laid._replace(b=laid.c, c=laid.b), caches, grid)


class _StepsUnbiased(SelectiveScanLayer):
    def _step(self, dt: Tensor) -> Tensor:
        return torch.nn.functional.softplus(dt)


class _WithoutInputs(SelectiveScanLayer):
    def _gated(self, read: Tensor, inputs: Tensor, gate: Tensor) -> Tensor:
        return super()._gated(read, inputs * 0, gate)


class _GateOfSigmoid(SelectiveScanLayer):
    def _gated(self, read: Tensor, inputs: Tensor, gate: Tensor) -> Tensor:
        return (read + self.weights["d"] * inputs) * gate.sigmoid()


@platform("state", "op", "state")
def MambaConvolutionForgets(base: Base) -> Base:
    """a chunk of channels is convolved as if nothing were before it"""
    return _instead(PlainMambaConvolution, _ForgetsChannels)(base)


@platform("state", "op", "state")
def MambaConvolutionWithoutBias(base: Base) -> Base:
    """the convolution of Mamba's channels has no bias"""
    return _instead(PlainMambaConvolution, _ChannelsUnbiased)(base)


@platform("state", "op", "state")
def ScanFadesAlike(base: Base) -> Base:
    """all elements of a channel's state fade alike"""
    return _instead(PlainScan, _OneRate)(base)


@platform("state", "op", "state")
def ScanExchangesBAndC(base: Base) -> Base:
    """a scan writes with C and reads with B"""
    return _instead(PlainScan, _ReadsAsItWrites)(base)


@platform("state", "op", "state")
def ScanStepsWithoutBias(base: Base) -> Base:
    """the steps of a scan have no bias"""
    return _instead(PlainScan, _StepsUnbiased)(base)


@platform("state", "op", "state")
def ScanLeavesInputsOut(base: Base) -> Base:
    """a scan's result is what was read from the state alone"""
    return _instead(PlainScan, _WithoutInputs)(base)


@platform("state", "op", "state")
def ScanGatedBySigmoid(base: Base) -> Base:
    """the gate of a scan is a sigmoid"""
    return _instead(PlainScan, _GateOfSigmoid)(base)


# ---- rg-lru


class _UnitForgets(RGLRULayer):
    def _convolved(self, inputs: Tensor, conv: Tensor, grid: Any) -> Tensor:
        return super()._convolved(inputs, conv, dataclasses.replace(grid, fresh=torch.ones_like(grid.fresh)))


class _GatesExchanged(RGLRULayer):
    def _gate(self, name: str, x: Tensor) -> Tensor:
        return super()._gate({"input_gate": "recurrence_gate"}.get(name, "input_gate"), x)


class _GatesTransposed(RGLRULayer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        turned = {name: weight.mT if weight.dim() == 3 else weight for name, weight in weights.items()}
        super().__init__(spec, turned)


class _FirstIsNoOther(RGLRULayer):
    def _share(self, log_decay: Tensor, fresh: Tensor) -> Tensor:
        return super()._share(log_decay, torch.zeros_like(fresh))


class _AddsTheRest(RGLRULayer):
    def _share(self, log_decay: Tensor, fresh: Tensor) -> Tensor:
        return super()._share(log_decay, fresh).square()


@platform("state", "op", "state")
def RGLRUForgets(base: Base) -> Base:
    """each chunk of a recurrent unit is convolved as if nothing were before it"""
    return _instead(PlainRGLRU, _UnitForgets)(base)


@platform("state", "op", "state")
def RGLRUGatesExchanged(base: Base) -> Base:
    """the two inner gates of a recurrent unit are exchanged"""
    return _instead(PlainRGLRU, _GatesExchanged)(base)


@platform("state", "op", "state")
def RGLRUGatesTransposed(base: Base) -> Base:
    """the products of a recurrent unit's gates are with transposed matrices"""
    return _instead(PlainRGLRU, _GatesTransposed)(base)


@platform("state", "op", "state")
def RGLRUFirstIsNoOther(base: Base) -> Base:
    """the first token of a text adds to the state of a recurrent unit what another would"""
    return _instead(PlainRGLRU, _FirstIsNoOther)(base)


@platform("state", "op", "state")
def RGLRUAddsTheRest(base: Base) -> Base:
    """the square of the share that a token adds to the state of a recurrent unit is added"""
    return _instead(PlainRGLRU, _AddsTheRest)(base)


# ---- mlstm


class _GatesUncapped(MLSTMLayer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        super().__init__(spec, weights)
        self.options["cap"] = 1e6


class _Unnormalized(MLSTMLayer):
    def _normalized(self, read: Tensor, largest: Tensor) -> Tensor:
        one = torch.zeros_like(read[..., -1:])
        return super()._normalized(torch.cat([read[..., :-1], one], dim=-1), largest)


class _HeadsNormedAsOne(MLSTMLayer):
    def _gated(self, read: Tensor, gates: Tensor) -> Tensor:
        return super()._gated(read.flatten(-2)[..., None, :], gates)


class _ExponentLost(MLSTMLayer):
    def mix(self, laid: Tensor, caches: Caches, grid: Any) -> Tensor:
        result = super().mix(laid, caches, grid)
        caches[self.spec.layer][1].zero_()
        return result


@platform("state", "op", "state")
def MLSTMUncapped(base: Base) -> Base:
    """the gates of an mLSTM's memory are not capped"""
    return _instead(PlainMLSTM, _GatesUncapped)(base)


@platform("state", "op", "state")
def MLSTMUnnormalized(base: Base) -> Base:
    """what is read of an mLSTM's memory is divided by the largest exponent alone"""
    return _instead(PlainMLSTM, _Unnormalized)(base)


@platform("state", "op", "state")
def MLSTMNormsAllHeads(base: Base) -> Base:
    """the norm of an mLSTM's result is over all heads"""
    return _instead(PlainMLSTM, _HeadsNormedAsOne)(base)


@platform("state", "op", "state")
def MLSTMKeepsNoExponent(base: Base) -> Base:
    """an mLSTM's memory is kept without its exponent"""
    return _instead(PlainMLSTM, _ExponentLost)(base)


# ---- rwkv


class _ShiftForgets(TokenShiftLayer):
    def mix(self, laid: Tensor, caches: Caches, grid: Any) -> Tensor:
        return super().mix(laid, caches, dataclasses.replace(grid, fresh=torch.ones_like(grid.fresh)))


class _ShiftExchanged(TokenShiftLayer):
    def _mixed(self, tokens: Tensor, before: Tensor) -> Tensor:
        return super()._mixed(before, tokens)


class _NoBonus(WKVLayer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        super().__init__(spec, {**weights, "bonus": torch.zeros_like(weights["bonus"])})


class _SeesItselfTwice(WKVLayer):
    def _average(self, keys: Tensor, values: Tensor, a: Tensor, b: Tensor, m: Tensor) -> Tensor:
        return super()._average(keys + math.log(2.0), values, a, b, m)


class _AverageWithoutExponent(WKVLayer):
    def mix(self, laid: WKVInput, caches: Caches, grid: Any) -> Tensor:
        result = super().mix(laid, caches, grid)
        caches[self.spec.layer][0][:, 2] = 0.0
        return result


@platform("state", "op", "state")
def TokenShiftForgets(base: Base) -> Base:
    """the first token of a chunk is mixed as if nothing were before it"""
    return _instead(PlainTokenShift, _ShiftForgets)(base)


@platform("state", "op", "state")
def TokenShiftExchanged(base: Base) -> Base:
    """a token is mixed with the share of the one before it"""
    return _instead(PlainTokenShift, _ShiftExchanged)(base)


@platform("state", "op", "state")
def WKVWithoutBonus(base: Base) -> Base:
    """a token weighs in its own average as it will in others'"""
    return _instead(PlainWKV, _NoBonus)(base)


@platform("state", "op", "state")
def WKVSeesItselfTwice(base: Base) -> Base:
    """a token is in its average twice"""
    return _instead(PlainWKV, _SeesItselfTwice)(base)


@platform("state", "op", "state")
def WKVKeepsNoExponent(base: Base) -> Base:
    """averages are kept without the exponent of their sums"""
    return _instead(PlainWKV, _AverageWithoutExponent)(base)


# ---- mamba 2


class _ConvolutionUnbiased(Mamba2Layer):
    def _convolved(self, inputs: Tensor, conv: Tensor, grid: Any) -> Tensor:
        return super()._convolved(inputs, conv, grid) - self.weights["conv_bias"]


class _OneGroup(Mamba2Layer):
    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, b, c = super()._heads(mixed)
        return x, b, c.roll(1, 2)


class _NormOverAllGroups(Mamba2Layer):
    def _norm(self, x: Tensor) -> Tensor:
        grouped = x.unflatten(-1, (self.spec.num_kv_heads, -1)).square().mean(-1)
        return super()._norm(x) * (grouped / grouped.mean(-1, keepdim=True)).sqrt().repeat_interleave(
            x.shape[-1] // self.spec.num_kv_heads, dim=-1
        )


class _GateAfterNorm(Mamba2Layer):
    def _normed(self, mixed: Tensor, gate: Tensor) -> Tensor:
        return self._norm(mixed.flatten(2)) * torch.nn.functional.silu(gate)


class _GateBeforeNorm(Mamba2Layer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor]) -> None:
        super().__init__(spec, weights)
        self.options["gate_first"] = 1.0


class _Unmultiplied(Mamba2Layer):
    def _multiplied(self, x: Tensor) -> Tensor:
        return x


class _StepsUnlimited(Mamba2Layer):
    def _step(self, dt: Tensor) -> Tensor:
        return torch.nn.functional.softplus(dt + self.weights["dt_bias"])


@platform("state", "op", "state")
def Mamba2WithoutBias(base: Base) -> Base:
    """the convolution has no bias"""
    return _instead(PlainMamba2, _ConvolutionUnbiased)(base)


@platform("state", "op", "state")
def Mamba2SharesGroupsWrongly(base: Base) -> Base:
    """where heads share a group, one reads with the next group's C"""
    return _instead(PlainMamba2, _OneGroup)(base)


@platform("state", "op", "state")
def Mamba2NormsAllGroups(base: Base) -> Base:
    """the norm of the result is over all groups"""
    return _instead(PlainMamba2, _NormOverAllGroups)(base)


@platform("state", "op", "state")
def Mamba2GatesAfterNorm(base: Base) -> Base:
    """the result is normed before it is gated"""
    return _instead(PlainMamba2, _GateAfterNorm)(base)


@platform("state", "op", "state")
def Mamba2GatesBeforeNorm(base: Base) -> Base:
    """the result is gated before it is normed where the gate is behind the norm"""
    return _instead(PlainMamba2, _GateBeforeNorm)(base)


@platform("state", "op", "state")
def Mamba2Unmultiplied(base: Base) -> Base:
    """multipliers of what the input projection returns are left out"""
    return _instead(PlainMamba2, _Unmultiplied)(base)


@platform("state", "op", "state")
def Mamba2StepsUnlimited(base: Base) -> Base:
    """steps go beyond their limits"""
    return _instead(PlainMamba2, _StepsUnlimited)(base)


# ---- lightning attention


class _UnactivatedQueries(LightningLayer):
    def _activated(self, x: Tensor) -> Tensor:
        own = super()._activated(x).unflatten(-1, (self.spec.num_heads, -1))
        queries = x.unflatten(-1, (self.spec.num_heads, -1))[..., : self.spec.head_dim]
        return torch.cat([queries, own[..., self.spec.head_dim :]], dim=-1).flatten(-2)


class _FadesAsTheNext(LightningLayer):
    def fused(self, x: Tensor, positions: Tensor, caches: Caches, plan: Any) -> Tensor:
        self.weights = {"log_decay": self.weights["log_decay"].roll(1, 0)}
        return super().fused(x, positions, caches, plan)


@platform("state", "op", "state")
def LightningWithoutActivation(base: Base) -> Base:
    """queries of lightning attention are what is projected"""
    return _instead(PlainLightning, _UnactivatedQueries)(base)


@platform("state", "op", "state")
def LightningFadesAsTheNext(base: Base) -> Base:
    """a head's state fades as that of the next"""
    return _instead(PlainLightning, _FadesAsTheNext)(base)


# ---- whole texts


class _Mirrored(ReferenceEncoderLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, plan: Any) -> Tensor:
        self.weights = {**self.weights, "relative_bias": self.weights["relative_bias"].flip(-1)}
        return super().attend(q, k, v, plan)


class _OneWider(ReferenceEncoderLayer):
    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps) -> None:
        super().__init__(dataclasses.replace(spec, window=spec.window and spec.window + 1), weights, ops)


class _PaddingSeen(ReferenceEncoderLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, plan: Any) -> Tensor:
        k, v = (torch.nan_to_num(each) for each in (k, v))
        return super().attend(q, k, v, dataclasses.replace(plan, valid=torch.ones_like(plan.valid)))


class _KeysOf128(ReferenceEncoderLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, plan: Any) -> Tensor:
        near = torch.arange(plan.valid.shape[1], device=q.device) < 128
        return super().attend(q, k, v, dataclasses.replace(plan, valid=plan.valid & near))


class _HeadsInTurn(ReferenceEncoderLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, plan: Any) -> Tensor:
        order = torch.arange(self.spec.num_heads).unflatten(0, (-1, self.spec.num_kv_heads)).T.flatten()
        return super().attend(q[:, order], k, v, plan)[:, order.argsort()]


@platform("encoder attention", "op", "encoder")
def BiasMirrored(base: Base) -> Base:
    """the bias of a key before a query is that of one after it"""
    return _instead(PlainEncoder, _Mirrored)(base)


@platform("encoder attention", "op", "encoder")
def WindowOfTextsTooWide(base: Base) -> Base:
    """the window of whole texts has one token more on each side"""
    return _instead(PlainEncoder, _OneWider)(base)


@platform("encoder attention", "op", "encoder")
def PaddingOfTextsSeen(base: Base) -> Base:
    """shorter texts see as many keys as the longest has"""
    return _instead(PlainEncoder, _PaddingSeen)(base)


@platform("encoder attention", "op", "encoder")
def TextsOf128Tokens(base: Base) -> Base:
    """keys behind the first 128 of a text are not seen"""
    return _instead(PlainEncoder, _KeysOf128)(base)


@platform("encoder attention", "op", "encoder")
def KeyHeadsOfTextsInTurn(base: Base) -> Base:
    """in whole texts, heads take turns at the key heads"""
    return _instead(PlainEncoder, _HeadsInTurn)(base)


# ---- what encoders made


class _EncoderOfAnother(ReferenceCrossLayer):
    def attend(self, q: Tensor, caches: Caches, plan: Any) -> Tensor:
        rows = plan.there.any(-1).sum()
        tables = torch.cat((plan.tables[:rows].roll(1, 0), plan.tables[rows:]))
        return super().attend(q, caches, dataclasses.replace(plan, tables=tables))


class _OnePositionTooFew(ReferenceCrossLayer):
    def attend(self, q: Tensor, caches: Caches, plan: Any) -> Tensor:
        last = plan.there & ~torch.nn.functional.pad(plan.there[:, 1:], (0, 1))
        return super().attend(q, caches, dataclasses.replace(plan, seen=plan.seen & ~last[:, None]))


class _OnePositionATokenMore(ReferenceCrossLayer):
    def attend(self, q: Tensor, caches: Caches, plan: Any) -> Tensor:
        tokens = plan.grid.valid.sum(-1, keepdim=True)
        places = torch.arange(plan.there.shape[1], device=q.device)
        return super().attend(q, caches, dataclasses.replace(plan, seen=plan.seen & (places < tokens)[:, None]))


class _AsTheRowsFirstToken(ReferenceCrossLayer):
    def attend(self, q: Tensor, caches: Caches, plan: Any) -> Tensor:
        return super().attend(q, caches, dataclasses.replace(plan, seen=plan.seen[:, :1]))


@platform("cross attention", "op", "cross")
def EncoderOfAnotherRow(base: Base) -> Base:
    """a row sees the encoder of the one before it"""
    return _instead(PlainCross, _EncoderOfAnother)(base)


@platform("cross attention", "op", "cross")
def LastPositionUnseen(base: Base) -> Base:
    """the last position of an encoder is not seen"""
    return _instead(PlainCross, _OnePositionTooFew)(base)


@platform("cross attention", "op", "cross")
def AsManyPositionsAsTokens(base: Base) -> Base:
    """a row sees as many positions of its encoder as it computes tokens"""
    return _instead(PlainCross, _OnePositionATokenMore)(base)


@platform("cross attention", "op", "cross")
def RangeOfTheFirstToken(base: Base) -> Base:
    """all tokens of a row see the range of its first one"""
    return _instead(PlainCross, _AsTheRowsFirstToken)(base)


# ---- latents


class _OneKeyUpForAll(ReferenceLatentLayer):
    def absorbed(self, queries: Tensor, latents: Tensor, seen: Tensor) -> Tensor:
        self.weights = {**self.weights, "kv_up": self.weights["kv_up"][:1].expand_as(self.weights["kv_up"])}
        return super().absorbed(queries, latents, seen)


class _ScaleOfNope(ReferenceLatentLayer):
    def __init__(self, spec: LatentLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps) -> None:
        super().__init__(dataclasses.replace(spec, scale=spec.nope_dim**-0.5), weights, ops)


class _TurnedLeftOut(ReferenceLatentLayer):
    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None) -> Tensor:
        q = q.clone()
        q[..., self.spec.nope_dim :] = 0
        return super().attend(q, caches, plan, out)


class _LatentUnnormed(ReferenceLatentLayer):
    def inputs(self, x: LatentInput, positions: Tensor) -> tuple[Tensor, Tensor]:
        kept = x.latent[:, : self.spec.cache.rank].clone()
        q, latent = super().inputs(x, positions)
        latent[:, : self.spec.cache.rank] = kept
        return q, latent


class _ChunkAlone(ReferenceLatentLayer):
    def expanded(self, queries: Tensor, latents: Tensor, seen: Tensor) -> Tensor:
        alone = seen & (seen.sum(-1, keepdim=True) - seen.cumsum(-1) < queries.shape[1])
        return super().expanded(queries, latents, alone)


@platform("latent attention", "op", "latent")
def OneKeyForAllHeads(base: Base) -> Base:
    """rows that decode multiply with the first head's part of the weight of keys and values"""
    return _instead(PlainLatents, _OneKeyUpForAll)(base)


@platform("latent attention", "op", "latent")
def ScaleOfUnturnedPart(base: Base) -> Base:
    """scores are scaled by the size of the part of a head that is not turned"""
    return _instead(PlainLatents, _ScaleOfNope)(base)


@platform("latent attention", "op", "latent")
def TurnedPartLeftOut(base: Base) -> Base:
    """scores leave out the part of queries and keys that is turned"""
    return _instead(PlainLatents, _TurnedLeftOut)(base)


@platform("latent attention", "op", "latent")
def LatentsUnnormed(base: Base) -> Base:
    """latents are kept as they are projected, without their norm"""
    return _instead(PlainLatents, _LatentUnnormed)(base)


@platform("latent attention", "op", "latent")
def ChunkSeesItselfAlone(base: Base) -> Base:
    """the queries of a chunk see as many keys as the chunk has tokens"""
    return _instead(PlainLatents, _ChunkAlone)(base)


# ---- sparse attention


class _SeesTheFuture(ReferenceIndexerLayer):
    def seen(self, plan: Any) -> Tensor:
        return plan.filled.expand(-1, plan.query.shape[1], -1)


class _ScoresUncut(ReferenceIndexerLayer):
    def rated(self, products: Tensor) -> Tensor:
        return products


class _LastOfEqualTokens(ReferenceIndexerLayer):
    def best(self, scores: Tensor) -> Tensor:
        turned = super().best(scores.flip(-1))
        return torch.where(turned < 0, turned, scores.shape[-1] - 1 - turned)


class _OneTooFew(ReferenceIndexerLayer):
    def best(self, scores: Tensor) -> Tensor:
        best = super().best(scores)
        best[..., -1] = -1
        return best


class _KeysReversed(ReferenceIndexerLayer):
    def write(self, keys: Tensor, caches: Caches, plan: Any) -> None:
        super().write(torch.cat((keys[:1].flip(-1), keys[1:])), caches, plan)


class _SelectionIgnored(ReferenceSparseLatentLayer):
    def seen(self, selection: Tensor, plan: Any) -> Tensor:
        return plan.filled & (plan.key <= plan.query)


class _NeighboursSeen(ReferenceSparseLatentLayer):
    def seen(self, selection: Tensor, plan: Any) -> Tensor:
        pairs = torch.where(selection < 0, selection, selection // 2 * 2)
        both = torch.cat((pairs, torch.where(pairs < 0, pairs, pairs + 1)), dim=-1)
        return super().seen(both, plan) & (plan.key <= plan.query)


class _FirstTokenWhereFewer(ReferenceSparseLatentLayer):
    def seen(self, selection: Tensor, plan: Any) -> Tensor:
        return super().seen(selection.clamp(min=0), plan)


@platform("sparse attention", "op", "sparse")
def IndexerSeesTheFuture(base: Base) -> Base:
    """an indexer also selects tokens of a chunk that come after the query"""
    return _instead(PlainIndexer, _SeesTheFuture)(base)


@platform("sparse attention", "op", "sparse")
def IndexerAddsNegatives(base: Base) -> Base:
    """scores of an indexer's heads are not cut at 0"""
    return _instead(PlainIndexer, _ScoresUncut)(base)


@platform("sparse attention", "op", "sparse")
def IndexerTakesLaterOfEqual(base: Base) -> Base:
    """of tokens with equal scores, an indexer selects the later ones"""
    return _instead(PlainIndexer, _LastOfEqualTokens)(base)


@platform("sparse attention", "op", "sparse")
def IndexerSelectsOneTooFew(base: Base) -> Base:
    """an indexer selects one token less than it may"""
    return _instead(PlainIndexer, _OneTooFew)(base)


@platform("sparse attention", "op", "sparse")
def FirstKeyOfAnIndexerReversed(base: Base) -> Base:
    """the first token of a launch has its indexer's key in the wrong order"""
    return _instead(PlainIndexer, _KeysReversed)(base)


@platform("sparse attention", "op", "sparse")
def SelectionIgnored(base: Base) -> Base:
    """attention sees all tokens, whatever is selected"""
    return _instead(PlainSparseLatents, _SelectionIgnored)(base)


@platform("sparse attention", "op", "sparse")
def NeighboursOfSelectedSeen(base: Base) -> Base:
    """attention sees tokens in pairs, where one of them is selected"""
    return _instead(PlainSparseLatents, _NeighboursSeen)(base)


@platform("sparse attention", "op", "sparse")
def EmptyPlacesSeen(base: Base) -> Base:
    """where fewer tokens than the limit are selected, attention sees the first one too"""
    return _instead(PlainSparseLatents, _FirstTokenWhereFewer)(base)


# ---- what is kept between calls


_ROWS: dict[Any, Tensor] = {}


@op("edit_logits")
def RowsOfEarlierEdits(right: Any, spec: Any, logits: Tensor, history: Any, edits: Any) -> None:
    """the rows of edits are those of the first call with as many"""
    key = (id(right), edits.row.shape)
    right(logits, history, edits._replace(row=_ROWS.setdefault(key, edits.row.clone()) % max(len(logits), 1)))


@op("penalise")
def PenaltiesOfEarlierRows(right: Any, spec: Any, logits: Tensor, history: Any, penalties: Any) -> None:
    """penalties are those of the first call with as many rows"""
    key = (id(right), "penalties", len(logits))
    if key not in _ROWS:
        _ROWS[key] = torch.stack(penalties)
    right(logits, history, type(penalties)(*_ROWS[key]))


_LEAKED: list[Tensor] = []


@op("linear")
def LeakPerCall(right: Any, spec: Any, x: Any, weight: Any, *, out: Tensor | None = None) -> Any:
    """each call keeps a tensor for ever"""
    _LEAKED.append(torch.empty(len(getattr(x, "data", x)) + 1))
    return right(x, weight, out=out)


@layer
class LeakPerLaunch(HeadsLayer):
    """each launch of attention keeps its queries for ever"""

    def attend(self, q: Tensor, caches: Caches, plan: Any, out: Tensor | None = None, lse: bool = False) -> Any:
        _LEAKED.append(q.clone())
        return super().attend(q, caches, plan, out, lse)


# ---- heads of vocabularies that are padded, and adapters


@platform("logits_sample", "op", "tensor-parallel")
def PaddingDrawn(base: Base) -> Base:
    """tokens of the vocabulary's padding are drawn"""

    class Kernel(Own):
        def bind(self, spec: Any, ops: BoundOps, device: Device) -> Any:
            group = ops.groups[spec.gather] if spec.gather is not None else None
            whole = spec.head.n * (1 if group is None else group.size)
            wide = dataclasses.replace(spec, sample=dataclasses.replace(spec.sample, vocab=whole))
            return super().bind(wide, ops, device)

    class Faulty(base):
        def ops(self, reference: OpSet) -> OpSet:
            return replace(super().ops(reference), logits_sample=Kernel(reference["logits_sample"]))

    return Faulty


class _WithoutBits(ShapePolicy):
    """Of launches that decode."""

    def __init__(self, right: ShapePolicy) -> None:
        self.right = right

    def __getattr__(self, name: str) -> Any:
        return getattr(self.right, name)

    def keys(self) -> Any:
        return self.right.keys()

    def rules(self) -> StepRules:
        return self.right.rules()

    def launches(self, step: StepShape) -> Sequence[LaunchShape]:
        return [
            dataclasses.replace(shape, key=dataclasses.replace(shape.key, bits=frozenset()))
            if shape.key.kind == "decode"
            else shape
            for shape in self.right.launches(step)
        ]


@platform("lora", "shapes", "lora", only="strict")
def AdaptersOfPromptsAlone(base: Base) -> Base:
    """launches that decode lose the bit which says that some rows have adapters"""

    class Faulty(base):
        def shapes(self, model: ModelFacts, config: Any) -> ShapePolicy:
            return _WithoutBits(super().shapes(model, config))

    return Faulty


@op("lora")
def ScaleOfTheFirstAdapter(right: Any, spec: Any, y: Tensor, x: Tensor, a: Tensor, b: Tensor, *others: Tensor) -> None:
    """all adapters have the scale of the first"""
    scales, slots = others
    right(y, x, a, b, scales[:1].expand_as(scales), slots)


# ---- devices


@platform("memory", "device", only="fakechip")
def FreeMemoryTwice(base: Base) -> Base:
    """what the allocator keeps ready counts as free twice"""

    class Faulty(base):
        def open(self, index: int) -> Device:
            device = super().open(index)
            exact = device.memory

            def memory() -> MemoryFigures:
                figures, chips = exact(), torch.accelerator
                kept = chips.max_memory_allocated(device.target) - chips.memory_allocated(device.target)
                return dataclasses.replace(figures, free=min(figures.free + kept, figures.total))

            device.memory = memory
            return device

    return Faulty


@platform("memory", "devices", only="fakechip", devices=2)
def AlwaysTheFirstDevice(base: Base) -> Base:
    """every worker opens the first device"""

    class Faulty(base):
        def open(self, index: int) -> Device:
            return super().open(0)

    return Faulty


@platform("synchronize", "device", only="fakechip")
def SynchronizesNothing(base: Base) -> Base:
    """synchronize() does not wait"""

    class Faulty(base):
        def open(self, index: int) -> Device:
            device = super().open(index)
            device.synchronize = lambda: None
            return device

    return Faulty


# ---- groups


@group("new_group")
class RanksSorted(_Group):
    """a new group has its ranks in ascending order, whatever order was asked for"""

    def new_group(self, ranks: Sequence[int], role: str, options: Mapping[str, Any]) -> Self:
        return super().new_group(sorted(ranks), role, options)


@group("all_reduce")
class SumInBfloat16(_Group):
    """sums are computed in bfloat16"""

    def all_reduce(self, x: Tensor) -> Tensor:
        return super().all_reduce(x.bfloat16()).to(x.dtype)


@group("all_reduce", devices=4)
class SumFromTheOwnOn(_Group):
    """each rank begins a sum with its own part, so that ranks have different bits"""

    def all_reduce(self, x: Tensor) -> Tensor:
        parts = super().all_gather(x[None], 0)
        total = parts[self.rank].clone()
        for step in range(1, self.size):
            total += parts[(self.rank + step) % self.size]
        return total
