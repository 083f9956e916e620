"""Gemma: norm weights offset by 1, and a scaled embedding. Gemma 2 adds norms after each half of a block, windows on
some layers and soft caps; Gemma 3 adds per-head norms and a rotary embedding for each kind of layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tessera.errors import ModelError
from tessera.layers.attention import AttentionShape
from tessera.layers.build import Build
from tessera.models.decoder import Decoder, DecoderNames, build_decoder
from tessera.models.fields import ACTIVATIONS, Checkpoint, ConfigFields
from tessera.models.reading import (
    FULL,
    SLIDING,
    by_kind,
    layer_kinds,
    read_attention,
    read_biases,
    read_decoder,
    read_ropes,
    repeated,
    windowed,
)
from tessera.models.sandwich import SandwichBlock
from tessera.ops.tensors import torch_dtype

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_ALIKE: dict[str, Any] = {
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}
_GEMMA = {**_ALIKE, "num_key_value_heads": 16}
_GEMMA2 = {
    **_ALIKE,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
_GEMMA3 = {
    **_ALIKE,
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "max_position_embeddings": 131072,
    "sliding_window_pattern": 6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
}
_TANH = "gelu_pytorch_tanh"
_SANDWICHED = DecoderNames(
    after_attention="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)


def gemma(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = _causal(build, ConfigFields(checkpoint, _GEMMA))
    shape = read_attention(fields, max_model_len, norm_offset=1.0, lookahead=build.prefix, **read_biases(fields))
    # Early checkpoints say "gelu" but use its tanh approximation.
    activation = ACTIVATIONS[_TANH] if fields.get("hidden_act") == "gelu" else fields.activation("hidden_act", _TANH)
    scale = _embedding_scale(build, shape)
    return build_decoder(
        build, read_decoder(fields, repeated(fields, shape), activation=activation, embedding_scale=scale)
    )


def gemma2(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = _causal(build, ConfigFields(checkpoint, _GEMMA2))
    kinds = layer_kinds(fields, [FULL if layer % 2 else SLIDING for layer in range(fields.count("num_hidden_layers"))])
    softcap = fields.positive_or_none("attn_logit_softcapping")
    shape = _shape(fields, max_model_len, softcap=softcap, lookahead=build.prefix)
    return _sandwich(build, fields, windowed(shape, by_kind(fields, kinds)))


def gemma3(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Ignores attn_logit_softcapping, as transformers does for this model. Also EmbeddingGemma, whose tokens see the
    whole text, or half a window before and behind them."""
    fields = ConfigFields(checkpoint, _GEMMA3)
    number, pattern = fields.count("num_hidden_layers"), fields.count("sliding_window_pattern")
    kinds = layer_kinds(fields, [SLIDING if (layer + 1) % pattern else FULL for layer in range(number)])
    ropes = read_ropes(fields, max_model_len, fields.positive("rope_theta"), fields.positive("rope_local_base_freq"))
    causal = not fields.flag("use_bidirectional_attention")
    lookahead = "image" in build.modalities  # an image's tokens see each other
    shape = _shape(fields, max_model_len, rope=ropes[FULL], head_norm=True, causal=causal, lookahead=lookahead)
    windows = by_kind(fields, kinds)
    if not causal:
        windows = [None if window is None else window // 2 + 1 for window in windows]
    layers = [replace(layer, rope=ropes[kind]) for layer, kind in zip(windowed(shape, windows), kinds, strict=True)]
    return _sandwich(build, fields, layers)


def _shape(fields: ConfigFields, max_model_len: int, **differs: Any) -> AttentionShape:
    scale = fields.positive("query_pre_attn_scalar") ** -0.5
    return read_attention(fields, max_model_len, scale=scale, norm_offset=1.0, **read_biases(fields), **differs)


def _sandwich(build: Build, fields: ConfigFields, layers: Any) -> Decoder:
    config = read_decoder(
        fields,
        layers,
        activation=fields.activation("hidden_activation", _TANH),
        embedding_scale=_embedding_scale(build, layers[0]),
        logits_cap=fields.positive_or_none("final_logit_softcapping") or 0.0,
        names=_SANDWICHED,
    )
    return build_decoder(build, config, SandwichBlock, whole=True)


def _embedding_scale(build: Build, shape: AttentionShape) -> float:
    """The square root of the hidden size, rounded to the weights' dtype as in training."""
    return float(torch.tensor(shape.hidden**0.5).to(torch_dtype(build.dtype)))


def _causal(build: Build, fields: ConfigFields) -> ConfigFields:
    """PaliGemma's prompts alone may see themselves."""
    if fields.flag("use_bidirectional_attention") and not build.prefix:
        raise ModelError("use_bidirectional_attention is not supported: attention is causal.")
    return fields
