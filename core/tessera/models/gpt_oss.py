"""gpt-oss: attention with sinks, within a window in every other layer; experts with biases and clamped gates, in every
layer. The gpt-oss model card, arXiv:2508.10925."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.layers.build import Build
from tessera.layers.mlp import ExpertNames
from tessera.models.decoder import Decoder, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.llama import read_experts
from tessera.models.reading import (
    FULL,
    SLIDING,
    by_kind,
    layer_kinds,
    read_attention,
    read_biases,
    read_decoder,
    windowed,
)

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_GPT_OSS: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "max_position_embeddings": 131072,
    "attention_bias": True,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "intermediate_size": 2880,
    "swiglu_limit": 7.0,
    "swiglu_alpha": 1.702,
}
_MLP = "model.layers.{layer}.mlp"
_NAMES = ExpertNames(f"{_MLP}.router", *(f"{_MLP}.experts.{{}}.{name}_proj" for name in ("gate", "up", "down")))


def gpt_oss(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _GPT_OSS)
    number = fields.count("num_hidden_layers")
    kinds = layer_kinds(fields, [FULL if layer % 2 else SLIDING for layer in range(number)])
    shape = read_attention(fields, max_model_len, sinks=True, **read_biases(fields))
    experts = replace(
        read_experts(fields, "num_local_experts", _NAMES, fields.count("intermediate_size")),
        bias=True,
        clamp=(fields.positive("swiglu_limit"), fields.positive("swiglu_alpha")),
    )
    return build_decoder(build, read_decoder(fields, windowed(shape, by_kind(fields, kinds)), experts=experts))
