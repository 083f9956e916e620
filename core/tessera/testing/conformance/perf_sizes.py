"""Places of the size that a served model has, at which speed is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tessera.platform.ops import (
    ActivationSpec,
    AddLayerNormSpec,
    AddNormSpec,
    AddSpec,
    EditLogitsSpec,
    EmbeddingSpec,
    ExpertsSpec,
    GatedMLPSpec,
    GateSpec,
    LayerNormSpec,
    LinearSpec,
    LogitsSampleSpec,
    LogprobsSpec,
    MaskLogitsSpec,
    MLPSpec,
    MoESpec,
    NormAddSpec,
    NormLinearSpec,
    NormSpec,
    Op,
    PackedEmbeddingSpec,
    PenaliseSpec,
    QKNormSpec,
    QuantizeSpec,
    RotarySpec,
    RouteSpec,
    SampleSpec,
    SoftCapSpec,
)
from tessera.platform.quantization import ActSpec
from tessera.testing.conformance.ops import dtype_of

_HIDDEN, _WIDE, _KEYS, _VOCAB, _EXPERTS, _NARROW = 1024, 2816, 256, 32000, 8, 512
TOKENS = (1, 16, 128)
"""One row that decodes, some, and a chunk of a prompt."""


def _norm(dtype: str) -> NormSpec:
    return NormSpec(_HIDDEN, dtype, 1e-6)


def _layer_norm(dtype: str) -> LayerNormSpec:
    return LayerNormSpec(_HIDDEN, dtype, 1e-5)


def _experts(dtype: str) -> ExpertsSpec:
    up = LinearSpec(2 * _NARROW, _HIDDEN, dtype, experts=_EXPERTS)
    return ExpertsSpec(up, GateSpec(_NARROW, dtype), LinearSpec(_HIDDEN, _NARROW, dtype, experts=_EXPERTS), top_k=2)


_SIZES: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {
        "embedding": lambda dtype: EmbeddingSpec(_VOCAB, _HIDDEN, dtype),
        "linear": lambda dtype: LinearSpec(_HIDDEN, _HIDDEN, dtype),
        "rms_norm": _norm,
        "rotary": lambda _: RotarySpec(64, 64, "half"),
        "gate": lambda dtype: GateSpec(_WIDE, dtype),
        "add_norm": lambda dtype: AddNormSpec(_norm(dtype)),
        "norm_linear": lambda dtype: NormLinearSpec(AddNormSpec(_norm(dtype)), LinearSpec(_HIDDEN, _HIDDEN, dtype)),
        "gated_mlp": lambda dtype: GatedMLPSpec(
            LinearSpec(2 * _WIDE, _HIDDEN, dtype), GateSpec(_WIDE, dtype), LinearSpec(_HIDDEN, _WIDE, dtype)
        ),
        "layer_norm": _layer_norm,
        "activation": lambda dtype: ActivationSpec(_WIDE, dtype, "gelu"),
        "add": lambda dtype: AddSpec(_HIDDEN, dtype),
        "add_layer_norm": lambda dtype: AddLayerNormSpec(_layer_norm(dtype)),
        "norm_add": lambda dtype: NormAddSpec(_norm(dtype)),
        "qk_norm": lambda dtype: QKNormSpec(_HIDDEN, _KEYS, dtype, 1e-6),
        "mlp": lambda dtype: MLPSpec(
            LinearSpec(_WIDE, _HIDDEN, dtype), ActivationSpec(_WIDE, dtype, "gelu"), LinearSpec(_HIDDEN, _WIDE, dtype)
        ),
        "packed_embedding": lambda dtype: PackedEmbeddingSpec(LinearSpec(_VOCAB, _HIDDEN, dtype)),
        "soft_cap": lambda dtype: SoftCapSpec(_VOCAB, dtype, cap=30.0),
        "quantize": lambda dtype: QuantizeSpec(_HIDDEN, dtype, ActSpec("int8", granularity="token")),
        "route": lambda _: RouteSpec(_EXPERTS, 2),
        "experts": _experts,
        "moe": lambda dtype: MoESpec(LinearSpec(_EXPERTS, _HIDDEN, dtype), RouteSpec(_EXPERTS, 2), _experts(dtype)),
        "logprobs": lambda _: LogprobsSpec(_VOCAB, 5),
        "mask_logits": lambda _: MaskLogitsSpec(_VOCAB),
        "edit_logits": lambda _: EditLogitsSpec(_VOCAB, 4),
        "penalise": lambda _: PenaliseSpec(_VOCAB),
        "sample": lambda _: SampleSpec(_VOCAB, greedy=True),
        "logits_sample": lambda dtype: LogitsSampleSpec(
            LinearSpec(_VOCAB, _HIDDEN, dtype), SampleSpec(_VOCAB, greedy=True)
        ),
    }
)


def realistic(op: Op[Any], dtype: str) -> Any:
    """A spec of an op in a dtype; of an op that core does not know, the first of its samples in this dtype, else
    None."""
    if op.name in _SIZES:
        return _SIZES[op.name](dtype)
    specs = op.sample_specs() if op.sample_specs is not None else ()
    return next((spec for spec in specs if dtype_of(spec) in (None, dtype)), None)
