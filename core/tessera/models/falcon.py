"""Falcon: layer norms, an ungated MLP in parallel with attention rather than after it, and one tensor of queries, keys
and values by groups of heads. Some have linear biases instead of a rotary embedding, and blocks as Bloom's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.models.alibi import alibi_slopes
from tessera.models.bloom import NAMES
from tessera.models.decoder import Block, Decoder, DecoderConfig, DecoderNames
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.parallel import ParallelBlock
from tessera.models.reading import read_attention, read_decoder, repeated
from tessera.models.sequential import SequentialBlock, layer_norm_decoder, plain_mlp

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_FALCON: dict[str, Any] = {
    "layer_norm_epsilon": 1e-5,
    "multi_query": True,
    "parallel_attn": True,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


def falcon(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _FALCON)
    config = _config(fields, max_model_len)
    make = _block(fields)
    return layer_norm_decoder(build, config, lambda number, tables: make(build, config, number, tables))


def _config(fields: ConfigFields, max_model_len: int) -> DecoderConfig:
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_kv_heads", heads)
    if not fields.flag("new_decoder_architecture"):
        kv_heads = 1 if fields.flag("multi_query") else heads
    bias = fields.flag("bias")
    eps = fields.number("layer_norm_epsilon")
    sized = ConfigFields({**fields.values, "num_key_value_heads": kv_heads, "head_dim": None})
    shape = read_attention(
        sized, max_model_len, eps=eps, bias=bias, output_bias=bias, layout=NAMES.layout, **_positions(fields)
    )
    return read_decoder(
        fields,
        repeated(fields, shape),
        inner=fields.count("ffn_hidden_size", 4 * shape.hidden),
        activation=fields.activation("activation", "gelu"),
        mlp_bias=bias,
        names=DecoderNames(
            embedding="transformer.word_embeddings",
            layers="transformer.h",
            norm="transformer.ln_f",
            attention_norm="ln_attn" if _two_norms(fields) else NAMES.attention_norm,
            mixer=NAMES.attention,
        ),
    )


def _positions(fields: ConfigFields) -> dict[str, Any]:
    """What differs from a rotary embedding. Biases are scaled as scores are. transformers rounds them to bfloat16
    whatever the model's dtype; here they are exact."""
    if not fields.flag("alibi"):
        return {}
    heads = fields.count("num_attention_heads")
    scale = (fields.count("hidden_size") // heads) ** -0.5
    return {"rope": None, "slopes": tuple(scale * slope for slope in alibi_slopes(heads))}


def _block(fields: ConfigFields) -> Callable[[Build, DecoderConfig, int, RotaryTable], Block]:
    new = fields.flag("new_decoder_architecture")
    if not new and not fields.flag("parallel_attn"):
        return partial(SequentialBlock, names=NAMES)
    mlp, own_norm = partial(plain_mlp, names=NAMES), "ln_mlp" if _two_norms(fields) else ""

    def parallel(build: Build, config: DecoderConfig, number: int, tables: RotaryTable) -> Block:
        return ParallelBlock(build, config, number, tables, mlp, own_norm=own_norm)

    return parallel


def _two_norms(fields: ConfigFields) -> bool:
    """Whether attention and the MLP have norms of their own."""
    return fields.flag("new_decoder_architecture") and fields.count("num_ln_in_parallel_attn", 2) == 2
