"""RecurrentGemma (Griffin): two of three layers are a real-gated linear recurrent unit, the others attention within a
window, whose heads are rotated in part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tessera.errors import ModelError
from tessera.layers.attention import AttentionShape, BlockShape
from tessera.layers.build import Build
from tessera.layers.rg_lru import RGLRUShape
from tessera.models.decoder import Decoder, DecoderNames, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.reading import read_attention, read_decoder, read_head_dim
from tessera.models.rope import RopeReader

RECURRENT, ATTENTION = "recurrent", "attention"
"""What block_types says of layers."""

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_RECURRENT_GEMMA: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_window_size": 2048,
    "conv1d_width": 4,
    "logits_soft_cap": 30.0,
    "partial_rotary_factor": 0.5,
    "block_types": [RECURRENT, RECURRENT, ATTENTION],
}
_TANH = "gelu_pytorch_tanh"
_NAMES = DecoderNames(
    attention_norm="temporal_pre_norm",
    mixer="temporal_block",
    mlp_norm="channel_pre_norm",
    mlp="mlp_block",
    norm="model.final_norm",
)


def recurrent_gemma(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _RECURRENT_GEMMA)
    attention = read_attention(
        fields,
        max_model_len,
        rope=RopeReader(fields, read_head_dim(fields), max_model_len, partial=True).read(),
        window=fields.count("attention_window_size"),
        bias=fields.flag("attention_bias"),
        output_bias=True,
        norm_offset=1.0,
    )
    activation = fields.activation("hidden_activation", _TANH)
    if activation != "gelu_tanh":
        raise ModelError(f"a hidden_activation other than {_TANH} is not supported for RecurrentGemma.")
    config = read_decoder(
        fields,
        _layers(fields, attention),
        inner=fields.count("intermediate_size", least=2) // 2,
        activation=activation,
        mlp_bias=True,
        names=_NAMES,
        # rounded as in training
        embedding_scale=float(torch.tensor(attention.hidden**0.5, dtype=torch.bfloat16)),
        logits_cap=fields.positive("logits_soft_cap"),
    )
    return build_decoder(build, config)


def _layers(fields: ConfigFields, attention: AttentionShape) -> Sequence[BlockShape]:
    said = fields.get("block_types")
    if not isinstance(said, list) or not said or not all(kind in (RECURRENT, ATTENTION) for kind in said):
        raise ModelError(f"block_types in config.json must be a list of {RECURRENT} and {ATTENTION}.")
    shapes: dict[str, BlockShape] = {RECURRENT: _recurrent(fields, attention), ATTENTION: attention}
    return [shapes[said[number % len(said)]] for number in range(fields.count("num_hidden_layers"))]


def _recurrent(fields: ConfigFields, attention: AttentionShape) -> RGLRUShape:
    channels, heads = fields.count("lru_width", attention.hidden), attention.heads
    if channels % heads:
        raise ModelError(f"lru_width ({channels}) is not a multiple of num_attention_heads ({heads}).")
    return RGLRUShape(
        hidden=attention.hidden,
        heads=heads,
        head_dim=channels // heads,
        kernel=fields.count("conv1d_width", least=2),
        eps=attention.eps,
        max_positions=attention.max_positions,
        norm_offset=attention.norm_offset,
    )
