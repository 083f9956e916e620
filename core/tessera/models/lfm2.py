"""LFM2, dense and with experts: most layers are a gated short convolution, the others attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.layers.attention import AttentionShape, BlockShape
from tessera.layers.build import Build
from tessera.layers.mlp import ExpertNames, Experts, GatedNames
from tessera.layers.qkv import Apart
from tessera.layers.short_convolution import ShortConvolutionShape
from tessera.models.decoder import Decoder, DecoderNames, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields, renamed
from tessera.models.llama import read_experts
from tessera.models.reading import FULL, read_attention, read_decoder

CONVOLUTION = "conv"

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_SHARED: dict[str, Any] = {
    "num_key_value_heads": 8,
    "norm_eps": 1e-5,
    "rope_theta": 1e6,
    "max_position_embeddings": 128000,
    "tie_word_embeddings": True,
    "conv_L_cache": 3,
}
_LFM2: dict[str, Any] = {
    **_SHARED,
    "block_auto_adjust_ff_dim": True,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
}
_LFM2_MOE: dict[str, Any] = {
    **_SHARED,
    "moe_intermediate_size": 1792,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "use_expert_bias": True,
    "norm_topk_prob": True,
}
_OWN_NAMES = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}
_MLP = "feed_forward"
NAMES = DecoderNames(
    attention_norm="operator_norm",
    mlp_norm="ffn_norm",
    mlp=_MLP,
    gated=GatedNames("w1", "w3", "w2"),
    norm="model.embedding_norm",
)


def lfm2(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(renamed(checkpoint, _OWN_NAMES), _LFM2)
    config = read_decoder(fields, _layers(fields, max_model_len), inner=_inner(fields), activation="silu", names=NAMES)
    return build_decoder(build, config)


def lfm2_moe(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(renamed(checkpoint, _OWN_NAMES), _LFM2_MOE)
    layers, dense = _layers(fields, max_model_len), range(fields.count("num_dense_layers", least=0))
    config = read_decoder(
        fields,
        layers,
        activation="silu",
        names=NAMES,
        experts=_experts(fields),
        dense_layers=frozenset(dense),
    )
    return build_decoder(build, config)


def _layers(fields: ConfigFields, max_model_len: int) -> list[BlockShape]:
    attention = _attention(fields, max_model_len)
    number = fields.count("num_hidden_layers")
    kinds = fields.by_layer("layer_types", number, lambda kind: kind in (CONVOLUTION, FULL), f"{CONVOLUTION} or {FULL}")
    if kinds is None:
        full = range(number) if fields.get("full_attn_idxs") is None else fields.numbers("full_attn_idxs")
        kinds = [FULL if layer in full else CONVOLUTION for layer in range(number)]
    shapes: dict[str, BlockShape] = {FULL: attention, CONVOLUTION: read_convolution(fields, attention)}
    return [shapes[kind] for kind in kinds]


def read_convolution(fields: ConfigFields, attention: AttentionShape) -> ShortConvolutionShape:
    """attention: of other layers of the model."""
    return ShortConvolutionShape(
        hidden=attention.hidden,
        kernel=fields.count("conv_L_cache", least=2),
        bias=fields.flag("conv_bias"),
        eps=attention.eps,
        max_positions=attention.max_positions,
    )


def _attention(fields: ConfigFields, max_model_len: int) -> AttentionShape:
    return read_attention(
        fields,
        max_model_len,
        eps=fields.number("norm_eps"),
        head_norm=True,
        norm_names=("q_layernorm", "k_layernorm"),
        layout=Apart(output="out_proj"),
    )


def _inner(fields: ConfigFields) -> int:
    """The inner size of an MLP, for which config.json may have the one of a form without gate."""
    inner = fields.count("intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim"):
        return inner
    multiple = fields.count("block_multiple_of")
    return -(-int(fields.positive("block_ffn_dim_multiplier") * (2 * inner // 3)) // multiple) * multiple


def _experts(fields: ConfigFields) -> Experts:
    moe = f"model.layers.{{layer}}.{_MLP}"
    names = ExpertNames(f"{moe}.gate", *(f"{moe}.experts.{{}}.{name}" for name in ("w1", "w3", "w2")))
    biased = fields.flag("use_expert_bias")
    return read_experts(
        fields,
        "num_experts",
        replace(names, bias=f"{moe}.expert_bias") if biased else names,
        fields.count("moe_intermediate_size"),
        scoring="sigmoid",
        bias=biased,
        renormalise=fields.flag("norm_topk_prob"),
        scale=fields.number("routed_scaling_factor", 1.0),
    )
