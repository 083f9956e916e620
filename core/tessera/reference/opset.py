"""REFERENCE: every op with its definition, and the shapes conformance tries it in."""

from __future__ import annotations

from collections.abc import Iterator

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
    OpSet,
    PackedEmbeddingSpec,
    PenaliseSpec,
    QKNormSpec,
    QuantizeSpec,
    RotarySpec,
    RouteSpec,
    SampleSpec,
    SoftCapSpec,
)
from tessera.platform.quantization import ActSpec, QuantSpec, Scheme, TensorSpec
from tessera.reference import core, logits, moe, quantized, sampling

_DTYPES = ("float32", "bfloat16", "float16")
_SIZES = ((8, 8), (72, 40), (130, 56))
_INT8, _INT8_WITH_SUMS = (ActSpec("int8", granularity="token", sums=sums) for sums in (0, 8))


def _embeddings() -> Iterator[EmbeddingSpec]:
    for dtype in _DTYPES:
        yield EmbeddingSpec(97, 40, dtype)
        yield EmbeddingSpec(33, 56, dtype, start=33, sharded=True)
        yield EmbeddingSpec(33, 40, dtype, start=33, sharded=True, scale=6.3125)
        yield EmbeddingSpec(97, 40, dtype, scale=6.3125)


def _packed_embeddings() -> Iterator[PackedEmbeddingSpec]:
    int8 = Scheme(
        QuantSpec("int8", "channel"),
        _INT8,
        parts={"weight": TensorSpec("int8", (1, 1)), "scale": TensorSpec("float32", (1,))},
    )
    int4 = Scheme(
        QuantSpec("int4", "group", 8, scale_dtype="bfloat16"),
        _INT8,
        parts={"weight": TensorSpec("uint8", (1, 2)), "scale": TensorSpec("bfloat16", (1, 8))},
    )
    for dtype in _DTYPES:
        for scheme in (None, int8, int4):
            yield PackedEmbeddingSpec(LinearSpec(97, 40, dtype, scheme))
            yield PackedEmbeddingSpec(LinearSpec(33, 56, dtype, scheme), start=33, sharded=True)
            yield PackedEmbeddingSpec(LinearSpec(33, 40, dtype, scheme), start=33, sharded=True, scale=6.3125)
            yield PackedEmbeddingSpec(LinearSpec(97, 520, dtype, scheme), scale=6.3125)


def _linears() -> Iterator[LinearSpec]:
    for dtype in _DTYPES:
        for n, k in _SIZES:
            yield LinearSpec(n, k, dtype)
            yield LinearSpec(n, k, dtype, bias=True)


def _norms() -> Iterator[NormSpec]:
    for dtype in _DTYPES:
        yield NormSpec(40, dtype, 1e-6)
        yield NormSpec(129, dtype, 1e-5, offset=1.0)
        yield NormSpec(520, dtype, 1e-2)  # wide enough for a sum in few bits to show, and an eps that shows


def _layer_norms() -> Iterator[LayerNormSpec]:
    for dtype in _DTYPES:
        yield LayerNormSpec(40, dtype, 1e-5)
        yield LayerNormSpec(129, dtype, 1e-5)
        yield LayerNormSpec(520, dtype, 1e-2)


def _add_norms() -> Iterator[AddNormSpec]:
    for norm in _norms():
        yield AddNormSpec(norm)
        yield AddNormSpec(norm, multiplier=0.22)


def _qk_norms() -> Iterator[QKNormSpec]:
    for dtype in _DTYPES:
        yield QKNormSpec(60, 20, dtype, 1e-5)


def _rotaries() -> Iterator[RotarySpec]:
    for style in ("half", "pairs"):
        yield RotarySpec(24, 24, style)
        yield RotarySpec(40, 16, style)


def _gates() -> Iterator[GateSpec]:
    for dtype in _DTYPES:
        for activation in ("silu", "gelu", "gelu_tanh"):
            yield GateSpec(44, dtype, activation)


def _activations() -> Iterator[ActivationSpec]:
    for spec in _gates():
        yield ActivationSpec(spec.n, spec.dtype, spec.activation)


def _soft_caps() -> Iterator[SoftCapSpec]:
    for dtype in _DTYPES:
        yield SoftCapSpec(40, dtype, cap=1.5)
        yield SoftCapSpec(40, dtype, scale=0.25)
        yield SoftCapSpec(40, dtype, cap=1.5, scale=2.0)


def _mlps() -> Iterator[MLPSpec]:
    for dtype in _DTYPES:
        yield MLPSpec(
            LinearSpec(44, 40, dtype, bias=True), ActivationSpec(44, dtype, "gelu"), LinearSpec(40, 44, dtype)
        )


def _gated_mlps() -> Iterator[GatedMLPSpec]:
    for dtype in _DTYPES:
        yield GatedMLPSpec(LinearSpec(88, 40, dtype), GateSpec(44, dtype), LinearSpec(40, 44, dtype))


def _routes() -> Iterator[RouteSpec]:
    yield RouteSpec(8, 2)
    yield RouteSpec(5, 3, renormalise=False)


def _experts() -> Iterator[ExpertsSpec]:
    for dtype in _DTYPES:
        yield ExpertsSpec(
            LinearSpec(88, 40, dtype, experts=5), GateSpec(44, dtype), LinearSpec(40, 44, dtype, experts=5), top_k=2
        )


def _moes() -> Iterator[MoESpec]:
    for spec in _experts():
        yield MoESpec(LinearSpec(5, 40, spec.gate.dtype), RouteSpec(5, 2), spec)


def _samples() -> Iterator[SampleSpec]:
    yield SampleSpec(97, greedy=True)
    for filters in (False, True):
        for logprobs in (-1, 0, 3):
            yield SampleSpec(97, filters=filters, logprobs=logprobs)


def _logits_samples() -> Iterator[LogitsSampleSpec]:
    for sample in _samples():
        yield LogitsSampleSpec(LinearSpec(97, 40, "float32"), sample)
    yield LogitsSampleSpec(LinearSpec(97, 40, "float32"), SampleSpec(97, logprobs=3), cap=1.5, scale=0.5)


REFERENCE = OpSet(
    embedding=Op("embedding", "core", core.embedding, sample_specs=_embeddings),
    linear=Op("linear", "core", core.linear, sample_specs=_linears),
    rms_norm=Op("rms_norm", "core", core.rms_norm, sample_specs=_norms),
    rotary=Op("rotary", "core", core.rotary, mutates=("q", "k"), sample_specs=_rotaries),
    gate=Op("gate", "core", core.gate, sample_specs=_gates),
    add_norm=Op(
        "add_norm", "core", compose=core.add_norm, parts=("rms_norm",), emits_by=lambda spec: ("rms_norm", spec.norm),
        sample_specs=_add_norms,
    ),
    norm_linear=Op(
        "norm_linear", "core", compose=core.norm_linear, parts=("add_norm", "linear"),
        sample_specs=lambda: (NormLinearSpec(AddNormSpec(NormSpec(s.k, s.dtype, 1e-6)), s) for s in _linears()),
    ),
    gated_mlp=Op(
        "gated_mlp", "core", compose=core.gated_mlp, parts=("linear", "gate"),
        takes_by=lambda spec: ("linear", spec.gate_up), sample_specs=_gated_mlps,
    ),
    layer_norm=Op("layer_norm", "core", core.layer_norm, sample_specs=_layer_norms),
    activation=Op("activation", "core", core.activation, sample_specs=_activations),
    add=Op("add", "core", core.add, sample_specs=lambda: (AddSpec(40, dtype) for dtype in _DTYPES)),
    add_layer_norm=Op(
        "add_layer_norm", "core", compose=core.add_layer_norm, parts=("layer_norm",),
        sample_specs=lambda: (AddLayerNormSpec(norm) for norm in _layer_norms()),
    ),
    norm_add=Op(
        "norm_add", "core", compose=core.norm_add, parts=("rms_norm",),
        sample_specs=lambda: (NormAddSpec(norm) for norm in _norms()),
    ),
    qk_norm=Op("qk_norm", "core", compose=core.qk_norm, mutates=("x",), sample_specs=_qk_norms),
    mlp=Op("mlp", "core", compose=core.mlp, parts=("linear", "activation"), sample_specs=_mlps),
    soft_cap=Op("soft_cap", "core", core.soft_cap, sample_specs=_soft_caps),
    packed_embedding=Op("packed_embedding", "core", core.packed_embedding, sample_specs=_packed_embeddings),
    quantize=Op(
        "quantize",
        "quant",
        quantized.quantize,
        sample_specs=lambda: (QuantizeSpec(40, d, emit) for d in _DTYPES for emit in (_INT8, _INT8_WITH_SUMS)),
    ),
    route=Op("route", "moe", moe.route, sample_specs=_routes),
    experts=Op("experts", "moe", moe.experts, oracle=moe.experts_oracle, sample_specs=_experts),
    moe=Op("moe", "moe", compose=moe.moe, parts=("linear", "route", "experts"), sample_specs=_moes),
    logprobs=Op(
        "logprobs", "sampling", sampling.logprobs, sample_specs=lambda: (LogprobsSpec(97, k) for k in (0, 1, 5, 97)),
    ),
    mask_logits=Op(
        "mask_logits", "sampling", logits.mask_logits, mutates=("logits",),
        sample_specs=lambda: (MaskLogitsSpec(vocab) for vocab in (96, 97)),
    ),
    edit_logits=Op(
        "edit_logits", "sampling", logits.edit_logits, mutates=("logits",),
        sample_specs=lambda: (EditLogitsSpec(97, prefix) for prefix in (0, 1, 4)),
    ),
    penalise=Op(
        "penalise", "sampling", logits.penalise, mutates=("logits",), sample_specs=lambda: iter([PenaliseSpec(97)]),
    ),
    sample=Op("sample", "sampling", sampling.sample, sample_specs=_samples),
    logits_sample=Op(
        "logits_sample", "sampling", compose=sampling.logits_sample, parts=("linear", "soft_cap", "sample"),
        sample_specs=_logits_samples,
    ),
)  # fmt: skip
