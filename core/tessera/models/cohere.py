"""Cohere 2 (Command R7B, Command A, Aya): attention and a gated MLP beside each other, layer norms without biases, and
neighbours turned together, in layers with a window alone: the others, which see the whole text, turn nothing. And the
text model of Cohere Compass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.errors import ModelError
from tessera.layers.attention import AttentionShape
from tessera.layers.build import Build
from tessera.models.decoder import Decoder, DecoderConfig, mlp_of
from tessera.models.deepstack import DeepstackDecoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.parallel import ParallelBlock
from tessera.models.reading import (
    FULL,
    SLIDING,
    by_kind,
    in_images,
    layer_kinds,
    read_attention,
    read_biases,
    read_decoder,
    windowed,
)
from tessera.models.rope import RopeReader, interleaved
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
    return _parallel(build, read_decoder(fields, layers, logits_scale=fields.positive("logit_scale")))


def cohere_compass(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """The text model of Cohere Compass, whose layers turn halves as rope_parameters says of their kind."""
    fields = ConfigFields(checkpoint, {**_COHERE2, "logit_scale": None})
    kinds = layer_kinds(fields, [FULL] * fields.count("num_hidden_layers"))
    eps = fields.number("layer_norm_eps")
    shape = read_attention(fields, max_model_len, eps=eps, rope=None, **read_biases(fields))
    turned = {kind: _turned(build, fields, shape, kind) for kind in dict.fromkeys(kinds)}
    layers = [replace(turned[kind], window=window) for kind, window in zip(kinds, by_kind(fields, kinds), strict=True)]
    scale = fields.positive_or_none("logit_scale") or 1.0
    return _parallel(build, read_decoder(fields, layers, logits_scale=scale), DeepstackDecoder)


def _turned(build: Build, fields: ConfigFields, shape: AttentionShape, kind: str) -> AttentionShape:
    """The shape of the layers of a kind, which turn nothing where rope_parameters has null. Raises ModelError."""
    said = fields.table("rope_parameters")
    if kind not in said.values:
        raise ModelError(f"rope_parameters in config.json does not say how layers of the kind {kind} turn positions.")
    if said.get(kind) is None:
        return shape
    rope = RopeReader(fields, shape.head_dim, shape.max_positions).read_rope(said.table(kind), 1e4)
    own = ConfigFields({"rope_parameters": said.get(kind)})
    return in_images(build, own, replace(shape, rope=rope), (24, 20, 20), interleaved)


def _parallel(build: Build, config: DecoderConfig, decoder: type[Decoder] = Decoder) -> Decoder:
    return layer_norm_decoder(
        build,
        config,
        lambda number, tables: ParallelBlock(build, config, number, tables, mlp_of, norm_bias=False),
        norm_bias=False,
        decoder=decoder,
    )
