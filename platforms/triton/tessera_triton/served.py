"""The places of a served model at which every kernel is compiled and measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

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
    Encoding,
    ExpertsSpec,
    FullAttentionSpec,
    GateSpec,
    LatentLayerSpec,
    LatentSpec,
    LayerNormSpec,
    LayerSpec,
    LinearSpec,
    LogprobsSpec,
    LoraSpec,
    MaskLogitsSpec,
    NormSpec,
    Packed,
    PackedEmbeddingSpec,
    PenaliseSpec,
    QuantizeSpec,
    QuantSpec,
    RotarySpec,
    RouteSpec,
    SampleSpec,
    Scheme,
    SegmentEmbeddingSpec,
    SlidingWindowSpec,
    SoftCapSpec,
    SparseLatentLayerSpec,
    StateSpec,
    TakeLogitsSpec,
    TensorSpec,
)
from tessera_triton.blocks import BLOCKS
from tessera_triton.facts import DeviceFacts
from tessera_triton.fp8 import on_device

HIDDEN, WIDE, VOCAB, DTYPE = 4096, 14_336, 128_256, "bfloat16"
_INT8, _FP8 = ActSpec("int8", "token"), ActSpec("fp8_e4m3", "token")

_BLOCK = (128, 128)
_GROUPS = QuantSpec("int4", "group", 128, scale_dtype=DTYPE)
_IN_PAIRS = {"weight": TensorSpec("uint8", (1, 2)), "scale": TensorSpec(DTYPE, (1, 128))}
_ZEROS = {"zero_point": TensorSpec("int8", (1, 128))}


def _blocks(name: str) -> Scheme:
    """Blocks of GGUF files. Nothing is decoded, so what they mean is left out."""
    block = BLOCKS[name]
    encoding = Encoding(block.elements, block.bytes, _without_meaning)
    parts = {"weight": TensorSpec("uint8", (1, block.elements), (block.bytes,))}
    return Scheme(QuantSpec(name, "encoding", encoding=encoding), parts=parts)


def _without_meaning(parts: Packed) -> Any:
    raise NotImplementedError("a place has no numbers")


def _by_output(dtype: str, stored: str, activation: ActSpec | None) -> Scheme:
    parts = {"weight": TensorSpec(stored, (1, 1)), "scale": TensorSpec("float32", (1,))}
    return Scheme(QuantSpec(dtype, "channel"), activation, parts=parts)


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "W8A8": _by_output("int8", "int8", _INT8),
        "W8A16": _by_output("int8", "int8", None),
        "W4A16": Scheme(_GROUPS, parts=_IN_PAIRS),
        "W4A16 with zero points": Scheme(replace(_GROUPS, symmetric=False), parts={**_IN_PAIRS, **_ZEROS}),
        "W4A8": Scheme(_GROUPS, _INT8, parts=_IN_PAIRS),
        "fp8": _by_output("fp8_e4m3", "float8_e4m3fn", _FP8),
        "fp8 in blocks": Scheme(
            QuantSpec("fp8_e4m3", "block", block=_BLOCK),
            ActSpec("fp8_e4m3", granularity="group", group=_BLOCK[1]),
            parts={"weight": TensorSpec("float8_e4m3fn", (1, 1)), "scale": TensorSpec("float32", _BLOCK)},
        ),
        **{name.upper(): _blocks(name) for name in ("q8_0", "q4_k", "q5_k", "q6_k", "mxfp4")},
    }
)
"""How weights and activations of products are quantized."""


class Place(NamedTuple):
    """An op with its spec, and the tokens of a launch. what: distinguishes it from the op's other places."""

    op: str
    what: str
    spec: Any
    tokens: int = 32

    @property
    def name(self) -> str:
        return f"{self.op} {self.what}".strip()


def served(facts: DeviceFacts) -> Iterator[Place]:
    """Those of a model of the sizes that Llama 3.1 8B has, in bfloat16, quantized as the device multiplies it."""
    taken = {what: on_device(scheme, facts) for what, scheme in SCHEMES.items()}
    schemes = {what: scheme for what, scheme in taken.items() if isinstance(scheme, Scheme)}
    norm, centred = NormSpec(HIDDEN, DTYPE, 1e-6), LayerNormSpec(HIDDEN, DTYPE, 1e-6)
    emissions = {"": None, "to int8": _INT8} | ({"to fp8": schemes["fp8"].activation} if "fp8" in schemes else {})
    for what, emit in emissions.items():
        yield Place("rms_norm", what, replace(norm, emit=emit))
        yield Place("add_norm", what, AddNormSpec(replace(norm, emit=emit)))
        yield Place("gate", what, GateSpec(WIDE, DTYPE, emit=emit))
    yield Place("layer_norm", "", centred)
    yield Place("add_layer_norm", "", AddLayerNormSpec(centred))
    for what in [what for what in ("W8A8", "fp8", "fp8 in blocks") if what in schemes]:
        emit = schemes[what].activation
        assert emit is not None, "all of these schemes quantize activations"
        yield Place("quantize", f"for {what}", QuantizeSpec(HIDDEN, DTYPE, emit))
    for what, scheme in schemes.items():
        for tokens in (16, 64, 2048):
            spec = LinearSpec(HIDDEN, HIDDEN, DTYPE, scheme)
            yield Place("linear", f"{what}, {tokens} tokens", spec, tokens)
        yield Place("packed_embedding", what, PackedEmbeddingSpec(LinearSpec(32_000, HIDDEN, DTYPE, scheme)))
    yield Place("route", "to 8 of 128", RouteSpec(128, 8))
    yield Place("route", "to 8 of 256 in groups", RouteSpec(256, 8, True, "sigmoid", True, 8, 4, 2))
    experts = ExpertsSpec(
        LinearSpec(2 * 2048, HIDDEN, DTYPE, experts=8),
        GateSpec(2048, DTYPE),
        LinearSpec(HIDDEN, 2048, DTYPE, experts=8),
        2,
    )
    for tokens in (32, 2048):
        yield Place("experts", f"{tokens} tokens", experts, tokens)
    yield Place("lora", "of rank 16", LoraSpec((HIDDEN, 1024, 1024), HIDDEN, 16, 8, DTYPE))
    for how in ("gelu", "gelu_tanh"):
        yield Place("activation", how, ActivationSpec(WIDE, DTYPE, how))
    yield Place("add", "", AddSpec(HIDDEN, DTYPE))
    yield Place("soft_cap", "", SoftCapSpec(VOCAB, DTYPE, cap=30.0))
    yield Place("rotary", "in halves", RotarySpec(128, 128))
    yield Place("rotary", "in pairs", RotarySpec(128, 64, "pairs"))
    yield Place("embedding", "", EmbeddingSpec(VOCAB, HIDDEN, DTYPE))
    sharded = EmbeddingSpec(VOCAB // 2, HIDDEN, DTYPE, VOCAB // 2, sharded=True, scale=64.0)
    yield Place("embedding", "sharded", sharded)
    yield Place("segment_embedding", "", SegmentEmbeddingSpec(2, HIDDEN, DTYPE))
    yield Place("logprobs", "", LogprobsSpec(VOCAB, 0))
    yield Place("logprobs", "with the 20 most likely", LogprobsSpec(VOCAB, 20))
    yield Place("take_logits", "", TakeLogitsSpec(VOCAB))
    yield Place("mask_logits", "", MaskLogitsSpec(VOCAB))
    yield Place("edit_logits", "", EditLogitsSpec(VOCAB, 4))
    yield Place("penalise", "", PenaliseSpec(VOCAB))
    yield Place("sample", "greedily", SampleSpec(VOCAB, greedy=True))
    yield Place("sample", "", SampleSpec(VOCAB))
    yield Place("sample", "with filters", SampleSpec(VOCAB, filters=True))


class AttentionPlace(NamedTuple):
    """A layer of attention, and one launch of it. rows: tokens that each computes, and its tokens in the cache then."""

    name: str
    layer: LayerSpec
    rows: tuple[tuple[int, int], ...]


_LAUNCHES = {"decode": ((1, 300),) * 4, "prefill": ((70, 200), (20, 300)), "prefill of many": ((4096, 4096),)}


def served_attention() -> Iterator[AttentionPlace]:
    """As in Llama 3.1 8B with each kind of cache; with windows and sinks, as in gpt-oss; with soft caps, QK norms and
    heads of 256, as in Gemma."""
    rotary = RotarySpec(128, 128)
    plain = LayerSpec(0, "attention", 32, 8, 128, 128**-0.5, DTYPE, FullAttentionSpec(8, 128, DTYPE), rotary)
    window = SlidingWindowSpec(8, 64, DTYPE, window=128)
    sinks = LayerSpec(
        0, "attention", 64, 8, 64, 64**-0.5, DTYPE, window, RotarySpec(64, 64), window=128, sinks=True
    )  # fmt: skip
    norm = NormSpec(256, DTYPE, 1e-6, 1.0)
    wide = LayerSpec(
        0, "attention", 8, 4, 256, 256**-0.5, DTYPE, FullAttentionSpec(4, 256, DTYPE), RotarySpec(256, 256), norm, norm,
        softcap=50.0,
    )  # fmt: skip
    layers = {
        "": plain,
        ", int8": replace(plain, cache=FullAttentionSpec(8, 128, KV_INT8.dtype, KV_INT8)),
        ", fp8": replace(plain, cache=FullAttentionSpec(8, 128, KV_FP8.dtype, KV_FP8)),
        ", window and sinks": sinks,
        ", heads of 256": wide,
    }
    for what, layer in layers.items():
        for how, rows in _LAUNCHES.items():
            yield AttentionPlace(f"attention, {how}{what}", layer, rows)


def served_encoders() -> Iterator[AttentionPlace]:
    """As in BERT, for short texts too; with windows, as in ModernBERT; with a bias by distance, as in MPNet; with heads
    of 96; with grouped heads of 256 and a window, as in EmbeddingGemma; in float32, as in MiniLM."""
    bert = LayerSpec(0, "encoder_attention", 12, 12, 64, 64**-0.5, DTYPE, None)
    long, short = ((512, 512), (70, 70)), ((20, 20),) * 8
    layers = {
        "": bert,
        ", window": replace(bert, window=65),
        ", bias": replace(bert, relative_reach=129),
        ", heads of 96": replace(bert, head_dim=96),
        ", heads of 256 and window": replace(bert, num_heads=3, num_kv_heads=1, head_dim=256, window=257),
        ", float32": replace(bert, head_dim=32, dtype="float32"),
    }
    yield AttentionPlace("encoder, short texts", bert, short)
    for what, layer in layers.items():
        yield AttentionPlace(f"encoder, long texts{what}", layer, long)


class LatentPlace(NamedTuple):
    """As AttentionPlace, of latent attention."""

    name: str
    layer: LatentLayerSpec | SparseLatentLayerSpec
    rows: tuple[tuple[int, int], ...]


def served_latents() -> Iterator[LatentPlace]:
    """As in DeepSeek V3 on one device, and on eight or in DeepSeek V2 Lite, whose devices have 16 heads; over selected
    tokens, as in DeepSeek V3.2."""
    layer = LatentLayerSpec(
        0, 128, 128, 128, 192**-0.5, DTYPE, LatentSpec(512, 64, DTYPE), NormSpec(512, DTYPE, 1e-6),
        RotarySpec(64, 64, "pairs"),
    )  # fmt: skip
    for heads in (128, 16):
        for how in ("decode", "prefill"):
            place = f"latent attention, {how}, {heads} heads"
            yield LatentPlace(place, replace(layer, num_heads=heads), _LAUNCHES[how])
    many = (128, 128)  # tokens whose keys and values are computed
    yield LatentPlace("latent attention, prefill of many", replace(layer, num_heads=16), (many,))
    yield LatentPlace("sparse latent attention", SparseLatentLayerSpec(**vars(layer), limit=2048), _LAUNCHES["decode"])


class StatePlace(NamedTuple):
    """A layer that keeps a state, and one launch of it. rows: as of AttentionPlace."""

    name: str
    layer: LayerSpec
    # elements of a token's input
    inputs: int
    # of the layer: shapes by name
    weights: Mapping[str, tuple[int, ...]]
    rows: tuple[tuple[int, int], ...]


def _mamba2(heads: int, groups: int, state_dim: int) -> tuple[LayerSpec, int, Any]:
    """With heads of 64."""
    inner = heads * 64
    channels = inner + 2 * groups * state_dim
    state = StateSpec((("conv", (channels, 3)), ("state", (heads, 64, state_dim))), "float32")
    options = ("state_dim", float(state_dim)), ("kernel", 4.0), ("eps", 1e-5)
    layer = LayerSpec(0, "mamba2", heads, groups, 64, 1.0, DTYPE, state, options=options)
    of_heads = dict.fromkeys(("a_log", "d", "dt_bias"), (heads,))
    weights = {"conv": (channels, 4), "conv_bias": (channels,), "norm": (inner,), **of_heads}
    return layer, inner + channels + heads, weights


def served_states() -> Iterator[StatePlace]:
    """As in Qwen3-Next, Granite 4 H and LFM2."""
    channels = 2 * 16 * 128 + 32 * 128
    state = StateSpec((("conv", (channels, 3)), ("state", (32, 128, 128))), "float32")
    options = (("key_dim", 128.0), ("kernel", 4.0), ("eps", 1e-6), ("beta_scale", 1.0))
    delta = LayerSpec(0, "gated_delta_net", 32, 16, 128, 128**-0.5, DTYPE, state, options=options)
    of_delta = {"conv": (channels, 4), "a_log": (32,), "dt_bias": (32,), "norm": (128,)}
    short_state = StateSpec((("conv", (2048, 2)),), "float32")
    short = LayerSpec(
        0, "short_convolution", 1, 1, 2048, 1.0, DTYPE, short_state, options=(("kernel", 3.0), ("bias", 0.0))
    )
    layers = {
        "gated delta net": (delta, channels + 32 * 128 + 2 * 32, of_delta),
        "mamba2": _mamba2(128, 1, 128),
        "short convolution": (short, 3 * 2048, {"conv": (2048, 3)}),
    }
    for what, (layer, inputs, weights) in layers.items():
        for how, rows in {"decode": ((1, 300),) * 4, "prompts": ((70, 200), (20, 300))}.items():
            yield StatePlace(f"{what}, {how}", layer, inputs, weights, rows)
