"""Attention and state mixers in plain torch: the reference definition of what a backend computes, and the fallback."""

from __future__ import annotations

from typing import Any

from tessera.platform.attention import MixerBackend
from tessera.reference.attention import ReferenceAttention
from tessera.reference.cross_attention import ReferenceCrossAttention
from tessera.reference.delta_net import ReferenceGatedDeltaNet
from tessera.reference.encoder_attention import ReferenceEncoderAttention
from tessera.reference.kimi_delta import ReferenceKimiDelta
from tessera.reference.latent import ReferenceLatentAttention
from tessera.reference.lightning import ReferenceLightningAttention
from tessera.reference.mamba import ReferenceMambaConvolution, ReferenceSelectiveScan
from tessera.reference.mamba2 import ReferenceMamba2
from tessera.reference.mlstm import ReferenceMLSTM
from tessera.reference.rg_lru import ReferenceRGLRU
from tessera.reference.short_convolution import ReferenceShortConvolution
from tessera.reference.sparse_attention import ReferenceIndexer, ReferenceSparseLatentAttention
from tessera.reference.state import ReferenceLinearAttention
from tessera.reference.token_shift import ReferenceTokenShift
from tessera.reference.wkv import ReferenceWKV


def reference_backends() -> tuple[MixerBackend[Any], ...]:
    """One for each kind of layer that core defines."""
    return (
        ReferenceAttention(),
        ReferenceEncoderAttention(),
        ReferenceCrossAttention(),
        ReferenceLatentAttention(),
        ReferenceIndexer(),
        ReferenceSparseLatentAttention(),
        ReferenceLinearAttention(),
        ReferenceGatedDeltaNet(),
        ReferenceKimiDelta(),
        ReferenceShortConvolution(),
        ReferenceRGLRU(),
        ReferenceMLSTM(),
        ReferenceTokenShift(),
        ReferenceWKV(),
        ReferenceMamba2(),
        ReferenceMambaConvolution(),
        ReferenceSelectiveScan(),
        ReferenceLightningAttention(),
    )
