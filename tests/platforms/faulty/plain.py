"""A platform at op depth in plain torch on the host that brings a kernel for every op, quantized products included, and
backends for keys and values, whole texts, encoders, latents and state: whatever the kit can try, it tries on this
platform."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from tessera.platform import (
    BoundOps,
    Device,
    EncoderLayer,
    HeadsLayer,
    IndexerLayerSpec,
    Kernel,
    LatentLayerSpec,
    LayerSpec,
    MixerBackend,
    Op,
    OpSet,
    Packed,
    Reason,
    SparseLatentLayerSpec,
    replace,
)
from tessera.platform.quantization import ActSpec
from tessera.reference.attention import ReferenceAttention, ReferenceAttentionLayer
from tessera.reference.cross_attention import ReferenceCrossAttention, ReferenceCrossLayer
from tessera.reference.delta_net import GatedDeltaNetLayer, ReferenceGatedDeltaNet
from tessera.reference.encoder_attention import ReferenceEncoderAttention, ReferenceEncoderLayer
from tessera.reference.kimi_delta import KimiDeltaLayer, ReferenceKimiDelta
from tessera.reference.latent import ReferenceLatentAttention, ReferenceLatentLayer
from tessera.reference.lightning import LightningLayer, ReferenceLightningAttention
from tessera.reference.mamba import (
    MambaConvolutionLayer,
    ReferenceMambaConvolution,
    ReferenceSelectiveScan,
    SelectiveScanLayer,
)
from tessera.reference.mamba2 import Mamba2Layer, ReferenceMamba2
from tessera.reference.mlstm import MLSTMLayer, ReferenceMLSTM
from tessera.reference.rg_lru import ReferenceRGLRU, RGLRULayer
from tessera.reference.short_convolution import ReferenceShortConvolution, ShortConvolutionLayer
from tessera.reference.sparse_attention import (
    ReferenceIndexer,
    ReferenceIndexerLayer,
    ReferenceSparseLatentAttention,
    ReferenceSparseLatentLayer,
)
from tessera.reference.state import LinearAttentionLayer, ReferenceLinearAttention
from tessera.reference.token_shift import ReferenceTokenShift, TokenShiftLayer
from tessera.reference.wkv import ReferenceWKV, WKVLayer
from tessera.testing import ReferencePlatform

Call = Callable[..., Any]
Change = Callable[..., Any]
"""(right call, spec, *tensors, out=None) -> what the faulty kernel returns."""


class Own(Kernel[Any]):
    """An op's definition as a kernel. change: what it computes instead."""

    def __init__(self, op: Op[Any], change: Change | None = None) -> None:
        self.op, self.change = op, change

    def supports(self, spec: Any) -> Reason | None:
        return None if self.op.name in ("linear", "packed_embedding") else super().supports(spec)

    def wants(self, spec: Any) -> ActSpec | None:
        scheme = getattr(spec, "scheme", None)
        if scheme is None or scheme.activation is None or scheme.activation.static:
            return None
        return scheme.activation

    def prepare(self, spec: Any, raw: Packed, into: Packed | None = None) -> Packed:
        return super().prepare(spec, {name: tensor.clone() for name, tensor in raw.items()}, into)

    def bind(self, spec: Any, ops: BoundOps, device: Device) -> Call:
        if self.op.compose is not None:
            right = self.op.compose(spec, ops)
        else:
            assert self.op.reference is not None
            right = partial(self.op.reference, spec)
        return right if self.change is None else partial(self.change, right, spec)


class PlainAttention(ReferenceAttention):
    name = "plain"
    fallback = False
    layer: type[HeadsLayer] = ReferenceAttentionLayer

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights, ops)


class PlainEncoder(ReferenceEncoderAttention):
    name = "plain-encoder"
    fallback = False
    layer: type[EncoderLayer] = ReferenceEncoderLayer

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights, ops)


class PlainCross(ReferenceCrossAttention):
    name = "plain-cross"
    fallback = False
    layer: type[ReferenceCrossLayer] = ReferenceCrossLayer

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec)


class PlainLatents(ReferenceLatentAttention):
    name = "plain-latents"
    fallback = False
    layer: type[ReferenceLatentLayer] = ReferenceLatentLayer

    def bind(self, spec: LatentLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights, ops)


class PlainIndexer(ReferenceIndexer):
    name = "plain-indexer"
    fallback = False
    layer: type[ReferenceIndexerLayer] = ReferenceIndexerLayer

    def bind(self, spec: IndexerLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights, ops)


class PlainSparseLatents(ReferenceSparseLatentAttention):
    name = "plain-sparse-latents"
    fallback = False
    layer: type[ReferenceSparseLatentLayer] = ReferenceSparseLatentLayer

    def bind(self, spec: SparseLatentLayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights, ops)


class PlainState(ReferenceLinearAttention):
    name = "plain-state"
    fallback = False
    layer: type[LinearAttentionLayer] = LinearAttentionLayer

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, device)


class PlainDeltaNet(ReferenceGatedDeltaNet):
    name = "plain-delta-net"
    fallback = False
    layer: type[GatedDeltaNetLayer] = GatedDeltaNetLayer

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights)


class PlainKimiDelta(ReferenceKimiDelta):
    name = "plain-kimi-delta"
    fallback = False
    layer: type[KimiDeltaLayer] = KimiDeltaLayer

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights)


class PlainShortConvolution(ReferenceShortConvolution):
    name = "plain-short-convolution"
    fallback = False
    layer: type[ShortConvolutionLayer] = ShortConvolutionLayer

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights)


class PlainRGLRU(ReferenceRGLRU):
    name = "plain-rg-lru"
    fallback = False
    layer: type[RGLRULayer] = RGLRULayer

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights)


class PlainLightning(ReferenceLightningAttention):
    name = "plain-lightning-attention"
    fallback = False
    layer: type[LightningLayer] = LightningLayer

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights)


class PlainMLSTM(ReferenceMLSTM):
    name = "plain-mlstm"
    fallback = False
    layer: type[MLSTMLayer] = MLSTMLayer

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights)


class PlainTokenShift(ReferenceTokenShift):
    name = "plain-token-shift"
    fallback = False
    layer: type[TokenShiftLayer] = TokenShiftLayer

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights)


class PlainWKV(ReferenceWKV):
    name = "plain-wkv"
    fallback = False
    layer: type[WKVLayer] = WKVLayer

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights)


class PlainMamba2(ReferenceMamba2):
    name = "plain-mamba2"
    fallback = False
    layer: type[Mamba2Layer] = Mamba2Layer

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights)


class PlainMambaConvolution(ReferenceMambaConvolution):
    name = "plain-mamba-convolution"
    fallback = False
    layer: type[MambaConvolutionLayer] = MambaConvolutionLayer

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights)


class PlainScan(ReferenceSelectiveScan):
    name = "plain-scan"
    fallback = False
    layer: type[SelectiveScanLayer] = SelectiveScanLayer

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Any:
        return self.layer(spec, weights)


class PlainPlatform(ReferencePlatform):
    name = "plain"
    capabilities = dataclasses.replace(ReferencePlatform.capabilities, dtypes=("bfloat16", "float32", "float16"))

    def ops(self, reference: OpSet) -> OpSet:
        return replace(reference, **{name: Own(reference[name]) for name in reference.names()})

    def attention_backends(self) -> Sequence[MixerBackend[Any]]:
        return (
            PlainAttention(),
            PlainEncoder(),
            PlainCross(),
            PlainLatents(),
            PlainIndexer(),
            PlainSparseLatents(),
            PlainKimiDelta(),
            PlainShortConvolution(),
            PlainRGLRU(),
            PlainMLSTM(),
            PlainTokenShift(),
            PlainWKV(),
            PlainMamba2(),
            PlainMambaConvolution(),
            PlainScan(),
            PlainLightning(),
            PlainDeltaNet(),
            PlainState(),
        )
