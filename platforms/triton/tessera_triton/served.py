"""The places of a served model at which every kernel is compiled and measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tessera.platform import (
    KV_FP8,
    KV_INT8,
    ActivationSpec,
    ActSpec,
    AddLayerNormSpec,
    AddNormSpec,
    AddSpec,
    EditLogitsSpec,
    EmbeddingSpec,
    ExpertsSpec,
    FullAttentionSpec,
    GateSpec,
    LayerNormSpec,
    LayerSpec,
    LinearSpec,
    LogprobsSpec,
    LoraSpec,
    MaskLogitsSpec,
    NormSpec,
    PackedEmbeddingSpec,
    PenaliseSpec,
    QuantizeSpec,
    QuantSpec,
    RotarySpec,
    RouteSpec,
    SampleSpec,
    Scheme,
    SlidingWindowSpec,
    SoftCapSpec,
    TensorSpec,
)
from tessera_triton.facts import DeviceFacts

HIDDEN, WIDE, VOCAB = 4096, 14_336, 128_256
_INT8, _FP8 = ActSpec("int8", "token"), ActSpec("fp8_e4m3", "token")

_BLOCK = (128, 128)
_GROUPS = QuantSpec("int4", "group", 128, scale_dtype="bfloat16")
_IN_PAIRS = {"weight": TensorSpec("uint8", (1, 2)), "scale": TensorSpec("bfloat16", (1, 128))}


def _by_output(dtype: str, stored: str, activation: ActSpec | None) -> Scheme:
    parts = {"weight": TensorSpec(stored, (1, 1)), "scale": TensorSpec("float32", (1,))}
    return Scheme(QuantSpec(dtype, "channel"), activation, parts=parts)


_SCHEMES = (
    _by_output("int8", "int8", _INT8),
    _by_output("int8", "int8", None),
    Scheme(_GROUPS, parts=_IN_PAIRS),
    Scheme(_GROUPS, _INT8, parts=_IN_PAIRS),
    _by_output("fp8_e4m3", "float8_e4m3fn", _FP8),
    Scheme(
        QuantSpec("fp8_e4m3", "block", block=_BLOCK),
        ActSpec("fp8_e4m3", granularity="group", group=_BLOCK[1]),
        parts={"weight": TensorSpec("float8_e4m3fn", (1, 1)), "scale": TensorSpec("float32", _BLOCK)},
    ),
)
"""Of products: W8A8, W8A16, W4A16, W4A8, fp8 and fp8 in blocks."""

Place = tuple[str, Any, int, str]
"""An op, its spec, tokens, and the dtype of activations."""


def served(facts: DeviceFacts) -> Iterator[Place]:
    """Those of a model of the sizes that Llama 3.1 8B has, in bfloat16."""
    dtype = "bfloat16"
    norm = NormSpec(HIDDEN, dtype, 1e-6)
    for emit in (None, _INT8, _FP8):
        yield "rms_norm", replace(norm, emit=emit), 32, dtype
        yield "add_norm", AddNormSpec(replace(norm, emit=emit)), 32, dtype
    yield "layer_norm", LayerNormSpec(HIDDEN, dtype, 1e-6), 32, dtype
    yield "add_layer_norm", AddLayerNormSpec(LayerNormSpec(HIDDEN, dtype, 1e-6)), 32, dtype
    for emit in (_INT8, _FP8, _SCHEMES[-1].activation):
        assert emit is not None, "all of these schemes quantize activations"
        yield "quantize", QuantizeSpec(HIDDEN, dtype, emit), 32, dtype
    for scheme in _SCHEMES:
        for tokens in (16, 64, 2048):
            yield "linear", LinearSpec(HIDDEN, HIDDEN, dtype, scheme), tokens, dtype
        yield "packed_embedding", PackedEmbeddingSpec(LinearSpec(32000, HIDDEN, dtype, scheme)), 32, dtype
    yield "route", RouteSpec(128, 8), 32, dtype
    yield "route", RouteSpec(256, 8, True, "sigmoid", True, 8, 4, 2), 32, dtype
    experts = ExpertsSpec(
        LinearSpec(2 * 2048, HIDDEN, dtype, experts=8),
        GateSpec(2048, dtype),
        LinearSpec(HIDDEN, 2048, dtype, experts=8),
        2,
    )
    for tokens in (32, 2048):
        yield "experts", experts, tokens, dtype
    yield "lora", LoraSpec((HIDDEN, 1024, 1024), HIDDEN, 16, 8, dtype), 32, dtype
    for emit in (None, _INT8, _FP8):
        yield "gate", GateSpec(WIDE, dtype, emit=emit), 32, dtype
    for how in ("gelu", "gelu_tanh"):
        yield "activation", ActivationSpec(WIDE, dtype, how), 32, dtype
    yield "add", AddSpec(HIDDEN, dtype), 32, dtype
    yield "soft_cap", SoftCapSpec(VOCAB, dtype, cap=30.0), 32, dtype
    yield "rotary", RotarySpec(128, 128), 32, dtype
    yield "rotary", RotarySpec(128, 64, "pairs"), 32, dtype
    yield "embedding", EmbeddingSpec(VOCAB, HIDDEN, dtype), 32, dtype
    yield "embedding", EmbeddingSpec(VOCAB // 2, HIDDEN, dtype, VOCAB // 2, sharded=True, scale=64.0), 32, dtype
    yield from ((name, spec, 32, dtype) for name, spec in _of_logits())


def _of_logits() -> Iterator[tuple[str, Any]]:
    yield "logprobs", LogprobsSpec(VOCAB, 0)
    yield "logprobs", LogprobsSpec(VOCAB, 20)
    yield "mask_logits", MaskLogitsSpec(VOCAB)
    yield "edit_logits", EditLogitsSpec(VOCAB, 4)
    yield "penalise", PenaliseSpec(VOCAB)
    yield "sample", SampleSpec(VOCAB, greedy=True)
    yield "sample", SampleSpec(VOCAB)
    yield "sample", SampleSpec(VOCAB, filters=True)


@dataclass(frozen=True)
class AttentionPlace:
    """A layer of attention, and one launch of it. rows: tokens that each computes, and its tokens in the cache then."""

    name: str
    layer: LayerSpec
    rows: tuple[tuple[int, int], ...]


_SPLIT = ((1, 4100),)
_LAUNCHES = {"decode": ((1, 300),) * 64, "prefill": ((200, 200), (120, 300))}


def served_attention(facts: DeviceFacts) -> Iterator[AttentionPlace]:
    """As in Llama 3.1 8B with each kind of cache; with windows and sinks, as in gpt-oss; with soft caps, QK norms and
    heads of 256, as in Gemma."""
    dtype, rotary = "bfloat16", RotarySpec(128, 128)
    plain = LayerSpec(0, "attention", 32, 8, 128, 128**-0.5, dtype, FullAttentionSpec(8, 128, dtype), rotary)
    for how, rows in {**_LAUNCHES, "decode in splits": _SPLIT}.items():
        yield AttentionPlace(f"attention ({how})", plain, rows)
    for quant in (KV_INT8, KV_FP8):
        kept = replace(plain, cache=FullAttentionSpec(8, 128, quant.dtype, quant))
        for how, rows in _LAUNCHES.items():
            yield AttentionPlace(f"attention ({how}, {quant.dtype})", kept, rows)
    window = SlidingWindowSpec(8, 64, dtype, window=128)
    sinks = LayerSpec(
        0, "attention", 64, 8, 64, 64**-0.5, dtype, window, RotarySpec(64, 64), window=128, sinks=True
    )  # fmt: skip
    norm = NormSpec(256, dtype, 1e-6, 1.0)
    wide = LayerSpec(
        0, "attention", 8, 4, 256, 256**-0.5, dtype, FullAttentionSpec(4, 256, dtype), RotarySpec(256, 256), norm, norm,
        softcap=50.0,
    )  # fmt: skip
    for how in ("decode", "prefill"):
        yield AttentionPlace(f"attention ({how}, window and sinks)", sinks, _LAUNCHES[how])
        yield AttentionPlace(f"attention ({how}, heads of 256)", wide, _LAUNCHES[how])
