"""The table of all ops, and how a vendor, a model or a feature puts its own in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tessera.errors import PlatformError
from tessera.platform.ops.elementwise import ActivationSpec, AddSpec, GateSpec, SoftCapSpec
from tessera.platform.ops.kernel import FunctionKernel, HotCall, Kernel
from tessera.platform.ops.linear import EmbeddingSpec, LinearSpec, PackedEmbeddingSpec
from tessera.platform.ops.logits import EditLogitsSpec, MaskLogitsSpec, PenaliseSpec
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
from tessera.platform.ops.quantize import QuantizeSpec
from tessera.platform.ops.rotary import RotarySpec
from tessera.platform.ops.sampling import LogitsSampleSpec, LogprobsSpec, SampleSpec

REPLACED_OPS: Mapping[str, str] = MappingProxyType({})
"""Names that ops had, and what replaced them."""


@dataclass(frozen=True)
class OpSet:
    """One field an op, by group. Hot calls name what they mutate, take a keyword `out` wherever they would allocate,
    and accept Quantized where a tensor is the input of a product. `extra`: ops a model or a feature brings, each with
    its reference."""

    # core
    embedding: Op[EmbeddingSpec]
    linear: Op[LinearSpec]
    rms_norm: Op[NormSpec]
    rotary: Op[RotarySpec]
    gate: Op[GateSpec]
    add_norm: Op[AddNormSpec]
    norm_linear: Op[NormLinearSpec]
    gated_mlp: Op[GatedMLPSpec]
    layer_norm: Op[LayerNormSpec]
    activation: Op[ActivationSpec]
    add: Op[AddSpec]
    add_layer_norm: Op[AddLayerNormSpec]
    norm_add: Op[NormAddSpec]
    qk_norm: Op[QKNormSpec]
    mlp: Op[MLPSpec]
    soft_cap: Op[SoftCapSpec]
    packed_embedding: Op[PackedEmbeddingSpec]
    # quant
    quantize: Op[QuantizeSpec]
    # moe
    route: Op[RouteSpec]
    experts: Op[ExpertsSpec]
    moe: Op[MoESpec]
    # sampling
    logprobs: Op[LogprobsSpec]
    mask_logits: Op[MaskLogitsSpec]
    edit_logits: Op[EditLogitsSpec]
    penalise: Op[PenaliseSpec]
    sample: Op[SampleSpec]
    logits_sample: Op[LogitsSampleSpec]
    extra: Mapping[str, Op[Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Op[Any]:
        if name in self.extra:
            return self.extra[name]
        op = getattr(self, name, None)
        if not isinstance(op, Op):
            raise PlatformError(f"there is no op '{name}'; the ops are {', '.join(self.names())}.")
        return op

    def names(self) -> list[str]:
        """All ops, in the order of the fields, then the extra ones."""
        return [f.name for f in dataclasses.fields(self) if f.name != "extra"] + list(self.extra)


def replace(base: OpSet, **kernels: Kernel[Any] | HotCall) -> OpSet:
    """The table with a vendor's kernels in it. Raises PlatformError for a name that is no op, with what replaced it."""
    fields: dict[str, Op[Any]] = {}
    extra = dict(base.extra)
    for name, kernel in kernels.items():
        if name in REPLACED_OPS and name not in extra:
            raise PlatformError(f"op '{name}' no longer exists; {REPLACED_OPS[name]} replaced it.")
        op = dataclasses.replace(base[name], kernel=kernel if isinstance(kernel, Kernel) else FunctionKernel(kernel))
        (extra if name in extra else fields)[name] = op
    return dataclasses.replace(base, **fields, extra=extra)


def with_extra(base: OpSet, ops: Sequence[Op[Any]]) -> OpSet:
    """The table with a model's or a feature's own ops. Raises PlatformError where a name is taken."""
    for op in ops:
        if op.name in base.names():
            raise PlatformError(f"op '{op.name}' exists already.")
    return dataclasses.replace(base, extra={**base.extra, **{op.name: op for op in ops}})
