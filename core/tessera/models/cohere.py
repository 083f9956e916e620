"""Cohere 2 (Command R7B, Command A, Aya): attention and a gated MLP beside each other, layer norms without biases, and
neighbours turned together, in layers with a window alone: the others, which see the whole text, turn nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.layers.build import Build
from tessera.models.decoder import Decoder, mlp_of
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.parallel import ParallelBlock
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
from tessera.models.sequential import layer_norm_decoder

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_COHERE2: dict[str, Any] = {
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
}


def cohere2(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _COHERE2)
    number, pattern = fields.count("num_hidden_layers"), fields.count("sliding_window_pattern")
    kinds = layer_kinds(fields, [SLIDING if (layer + 1) % pattern else FULL for layer in range(number)])
    eps = fields.number("layer_norm_eps")
    shape = read_attention(fields, max_model_len, eps=eps, style="pairs", **read_biases(fields))
    layers = windowed(shape, by_kind(fields, kinds))
    layers = [replace(layer, rope=None) if layer.window is None else layer for layer in layers]
    config = read_decoder(fields, layers, logits_scale=fields.positive("logit_scale"))
    return layer_norm_decoder(
        build,
        config,
        lambda number, tables: ParallelBlock(build, config, number, tables, mlp_of, norm_bias=False),
        norm_bias=False,
    )
