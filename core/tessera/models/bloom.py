"""Bloom: linear biases instead of positions, a norm behind the embedding, and one tensor of queries, keys and values by
heads."""

from __future__ import annotations

from typing import Any

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.qkv import Grouped
from tessera.models.alibi import alibi_slopes
from tessera.models.decoder import Decoder, DecoderNames
from tessera.models.encoder import BlockNames
from tessera.models.fields import ACTIVATIONS, Checkpoint, ConfigFields, renamed
from tessera.models.reading import read_attention, read_decoder, repeated
from tessera.models.sequential import SequentialBlock, layer_norm_decoder

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_BLOOM: dict[str, Any] = {"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True}
_FIELDS = {"n_embed": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}
NAMES = BlockNames(
    "self_attention",
    Grouped(),
    "input_layernorm",
    "post_attention_layernorm",
    ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
)
"""Falcon's too."""
_WORDS = "word_embeddings"


def bloom(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Published files have the names of a model without its head."""
    fields = ConfigFields(renamed(checkpoint, _FIELDS), _BLOOM)
    name = "apply_residual_connection_post_layernorm"
    if fields.flag(name):
        raise ModelError(f"{name} is not supported; it must be false in config.json.")
    shape = read_attention(
        fields,
        max_model_len,
        rope=None,
        slopes=alibi_slopes(fields.count("num_attention_heads")),
        eps=fields.number("layer_norm_epsilon"),
        bias=True,
        output_bias=True,
        layout=NAMES.layout,
    )
    base = build.base(["transformer"], f"{_WORDS}.weight")
    config = read_decoder(
        fields,
        repeated(fields, shape),
        inner=4 * shape.hidden,
        activation=ACTIVATIONS["gelu_new"],
        mlp_bias=True,
        names=DecoderNames(embedding=f"{base}{_WORDS}", layers=f"{base}h", norm=f"{base}ln_f"),
    )
    return layer_norm_decoder(
        build,
        config,
        lambda number, tables: SequentialBlock(build, config, number, tables, NAMES, whole=number == 0),
        embedding_norm=f"{base}{_WORDS}_layernorm",
    )
