"""Ops: named, each defined by a reference in plain torch, each replaceable by a vendor's kernel, bound once when the
model is built.

A *spec* holds what is constant for one place in a model (sizes, dtypes, eps); a *hot call* takes tensors. `linear`,
`norms`, `rotary`, `elementwise`, `mlp`, `moe`, `quantize`, `logits` and `sampling` hold the specs; `op`, `kernel` and
`table` say what an op is, what a vendor supplies and which ops there are; `binding` chooses who computes.
docs/decisions/ops.md is the table of all.
"""

from __future__ import annotations

from tessera.platform.ops.binding import BoundOps, Choice, Emission
from tessera.platform.ops.elementwise import ActivationSpec, AddSpec, GateSpec, SoftCapSpec
from tessera.platform.ops.kernel import FunctionKernel, HotCall, Kernel, Packed
from tessera.platform.ops.linear import EmbeddingSpec, LinearSpec, PackedEmbeddingSpec
from tessera.platform.ops.logits import EditLogitsSpec, Edits, History, MaskLogitsSpec, PenaliseSpec, Penalties
from tessera.platform.ops.mlp import GatedMLPSpec, MLPSpec
from tessera.platform.ops.moe import ExpertsSpec, MoESpec, RouteSpec
from tessera.platform.ops.norms import (
    AddLayerNormSpec,
    AddNormSpec,
    LayerNormSpec,
    NormAddSpec,
    NormLinearSpec,
    NormSpec,
    QKNormSpec,
)
from tessera.platform.ops.op import Op
from tessera.platform.ops.quantize import Quantized, QuantizeSpec
from tessera.platform.ops.rotary import RotarySpec
from tessera.platform.ops.sampling import LogitsSampleSpec, Logprobs, LogprobsSpec, Sampled, SampleSpec, SamplingRows
from tessera.platform.ops.table import REPLACED_OPS, OpSet, replace, with_extra

__all__ = [
    "REPLACED_OPS",
    "ActivationSpec",
    "AddLayerNormSpec",
    "AddNormSpec",
    "AddSpec",
    "BoundOps",
    "Choice",
    "EditLogitsSpec",
    "Edits",
    "EmbeddingSpec",
    "Emission",
    "ExpertsSpec",
    "FunctionKernel",
    "GateSpec",
    "GatedMLPSpec",
    "History",
    "HotCall",
    "Kernel",
    "LayerNormSpec",
    "LinearSpec",
    "LogitsSampleSpec",
    "Logprobs",
    "LogprobsSpec",
    "MLPSpec",
    "MaskLogitsSpec",
    "MoESpec",
    "NormAddSpec",
    "NormLinearSpec",
    "NormSpec",
    "Op",
    "OpSet",
    "Packed",
    "PackedEmbeddingSpec",
    "PenaliseSpec",
    "Penalties",
    "QKNormSpec",
    "QuantizeSpec",
    "Quantized",
    "RotarySpec",
    "RouteSpec",
    "SampleSpec",
    "Sampled",
    "SamplingRows",
    "SoftCapSpec",
    "replace",
    "with_extra",
]
