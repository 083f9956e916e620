"""LFM3: as LFM2, with windows on every second layer of attention, a gate for each of its heads, and norms behind both
halves of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tessera.errors import ModelError
from tessera.layers.attention import AttentionShape, BlockShape
from tessera.layers.build import Build
from tessera.models.decoder import Decoder, PreNormBlock, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.lfm2 import CONVOLUTION, NAMES, read_convolution
from tessera.models.reading import FULL, SLIDING, read_attention, read_decoder, read_head_dim
from tessera.models.rope import RopeReader
from tessera.models.sandwich import SandwichBlock

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_LFM3: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 128,
    "norm_eps": 1e-5,
    "max_position_embeddings": 128000,
    "tie_word_embeddings": True,
    "conv_L_cache": 7,
    "sliding_window": 256,
    "use_sandwich_norm": True,
    "use_attention_gate": True,
}
_ROPES: dict[str, Any] = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
}
_THETA = 1e6
"""Of a rotary embedding that config.json has, but without its theta."""
_NAMES = replace(NAMES, after_attention="post_operator_norm", after_mlp="post_ffn_norm")


def lfm3(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _LFM3)
    config = read_decoder(fields, _layers(fields, max_model_len), activation="silu", names=_NAMES)
    sandwiched = fields.flag("use_sandwich_norm")
    return build_decoder(build, config, SandwichBlock if sandwiched else PreNormBlock, whole=sandwiched)


def _layers(fields: ConfigFields, max_model_len: int) -> Sequence[BlockShape]:
    number, known = fields.count("num_hidden_layers"), (CONVOLUTION, SLIDING, FULL)
    kinds = fields.by_layer("layer_types", number, lambda kind: kind in known, ", ".join(known))
    if kinds is None:
        kinds = [
            (SLIDING if layer else CONVOLUTION, CONVOLUTION, FULL, CONVOLUTION)[layer % 4] for layer in range(number)
        ]
    shapes: dict[str, BlockShape] = {kind: _attention(fields, max_model_len, kind) for kind in (SLIDING, FULL)}
    shapes[CONVOLUTION] = read_convolution(fields, _attention(fields, max_model_len, FULL))
    return [shapes[kind] for kind in kinds]


def _attention(fields: ConfigFields, max_model_len: int, kind: str) -> AttentionShape:
    bias, gated = fields.flag("attention_bias"), fields.flag("use_attention_gate")
    if bias and gated:
        raise ModelError("attention_bias is not supported together with use_attention_gate.")
    ropes = ConfigFields({"rope_parameters": fields.get("rope_parameters") or _ROPES}).table("rope_parameters")
    return read_attention(
        fields,
        max_model_len,
        rope=RopeReader(fields, read_head_dim(fields), max_model_len).read_rope(ropes.table(kind), _THETA),
        eps=fields.number("norm_eps"),
        window=fields.count("sliding_window") if kind == SLIDING else None,
        head_norm=True,
        head_gate="gate_proj" if gated else "",
        bias=bias,
        output_bias=bias,
    )
