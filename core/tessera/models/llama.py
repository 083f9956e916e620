"""Llama, and families with the same structure: Mistral and Mixtral (windows, experts), Granite (multipliers), SmolLM3
(layers without rotary embedding), Phi-3 (joined projections, partial rotary embedding), EuroBERT and LlamaBidirectional
(encoders)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.classification import HeadConfig
from tessera.layers.mlp import ExpertNames, Experts, GatedNames
from tessera.layers.qkv import Joined
from tessera.models.decoder import SCORE, Decoder, DecoderNames, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.reading import (
    FULL,
    SLIDING,
    by_kind,
    everywhere,
    layer_kinds,
    read_attention,
    read_biases,
    read_decoder,
    read_head_dim,
    repeated,
    turned_layers,
    windowed,
)
from tessera.models.rope import RopeReader
from tessera.ops import RouteSpec

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_EUROBERT: dict[str, Any] = {"rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "classifier_pooling": "late"}
_EUROBERT_POOLINGS = {"bos": "cls", "mean": "mean", "late": "mean"}
_MISTRAL = {"num_key_value_heads": 8, "sliding_window": 4096}
_MIXTRAL = {"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 1e6}
_GRANITE = {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048}
_SMOLLM3: dict[str, Any] = {
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 2e6,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
_PHI3 = {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096}

SPARSE = "model.layers.{layer}.block_sparse_moe"
MIXTRAL_NAMES = ExpertNames(f"{SPARSE}.gate", *(f"{SPARSE}.experts.{{}}.{w}" for w in ("w1", "w3", "w2")))


def llama(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint)
    shape = read_attention(fields, max_model_len, **read_biases(fields))
    return build_decoder(build, read_decoder(fields, repeated(fields, shape), mlp_bias=fields.flag("mlp_bias")))


def eurobert(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _EUROBERT)
    shape = read_attention(fields, max_model_len, causal=False, **read_biases(fields))
    pooling = str(fields.get("classifier_pooling"))
    if pooling not in _EUROBERT_POOLINGS:
        raise ModelError(f"classifier_pooling must be one of {', '.join(_EUROBERT_POOLINGS)} in config.json.")
    head = HeadConfig(dense="dense", activation="gelu", pooling=_EUROBERT_POOLINGS[pooling], late=pooling == "late")
    config = read_decoder(
        fields,
        repeated(fields, shape),
        mlp_bias=fields.flag("mlp_bias"),
        text_head=head,
        token_head=HeadConfig(),
    )
    return build_decoder(build, config)


def llama_bidirectional(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """A Llama whose tokens see the whole text, which transformers has no class of (llama-nemoretriever)."""
    fields = ConfigFields(checkpoint)
    shape = read_attention(fields, max_model_len, causal=False, **read_biases(fields))
    pooling = SCORE.pooling if build.pooler is None else build.pooler.pooling
    head = replace(SCORE, pooling=pooling, temperature=fields.positive("temperature", 1.0))
    config = read_decoder(fields, repeated(fields, shape), mlp_bias=fields.flag("mlp_bias"), text_head=head)
    return build_decoder(build, config)


def mistral(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _MISTRAL)
    shape = read_attention(fields, max_model_len)
    return build_decoder(build, read_decoder(fields, windowed(shape, everywhere(fields))))


def mixtral(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _MIXTRAL)
    layers = windowed(read_attention(fields, max_model_len), everywhere(fields))
    experts = read_experts(fields, "num_local_experts", MIXTRAL_NAMES, fields.count("intermediate_size"))
    return build_decoder(build, read_decoder(fields, layers, experts=experts))


def read_experts(fields: ConfigFields, number_name: str, names: ExpertNames, inner: int, **routing: Any) -> Experts:
    """routing: fields of RouteSpec that differ from its defaults. Raises ModelError if a token would use more experts
    than there are."""
    number, top_k = fields.count(number_name), fields.count("num_experts_per_tok")
    if top_k > number:
        raise ModelError(f"num_experts_per_tok ({top_k}) is more than {number_name} ({number}).")
    return Experts(RouteSpec(number, top_k, **routing), inner, names)


def granite(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _GRANITE)
    shape = read_attention(
        fields, max_model_len, scale=fields.number("attention_multiplier", 1.0), **read_biases(fields)
    )
    config = read_decoder(
        fields,
        repeated(fields, shape),
        mlp_bias=fields.flag("mlp_bias"),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        residual_multiplier=fields.number("residual_multiplier", 1.0),
        logits_scale=1.0 / fields.positive("logits_scaling", 1.0),
    )
    return build_decoder(build, config)


def smollm3(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _SMOLLM3)
    turned = turned_layers(fields, interval=4)
    slides = fields.flag("use_sliding_window") and fields.get("sliding_window") is not None
    kinds = layer_kinds(fields, [SLIDING if slides and not rotary else FULL for rotary in turned])
    shape = read_attention(fields, max_model_len, **read_biases(fields))
    layers = [
        layer if rotary else replace(layer, rope=None)
        for layer, rotary in zip(windowed(shape, by_kind(fields, kinds)), turned, strict=True)
    ]
    return build_decoder(build, read_decoder(fields, layers, mlp_bias=fields.flag("mlp_bias")))


def phi3(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _PHI3)
    called = {"su": "longrope", "yarn": "longrope"}
    rope = RopeReader(fields, read_head_dim(fields), max_model_len, partial=True, renamed=called).read()
    layers = windowed(read_attention(fields, max_model_len, rope=rope, layout=Joined()), everywhere(fields))
    names = DecoderNames(gated=GatedNames(joined="gate_up_proj"))
    return build_decoder(build, read_decoder(fields, layers, names=names))
