"""The decoders of Moonshine (arXiv:2410.15608) and Moonshine Streaming: rotary attention, cross attention over the
encoder, and a gated MLP, each with a norm without a bias before it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tessera.config.modalities import encoder_length
from tessera.layers.build import Build
from tessera.layers.cross_attention import CrossShape
from tessera.layers.mlp import GatedNames
from tessera.layers.qkv import APART
from tessera.models.cross_decoder import CrossBlock, CrossDecoder, CrossNames
from tessera.models.decoder import Decoder, DecoderNames, mlp_of
from tessera.models.encoder import BlockNames
from tessera.models.fields import Checkpoint, ConfigFields, RefusedTypeError, renamed
from tessera.models.reading import read_attention, read_decoder, read_head_dim, repeated
from tessera.models.rope import RopeReader
from tessera.models.sequential import layer_norm_decoder

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_MOONSHINE: Mapping[str, Any] = {
    "vocab_size": 32768,
    "hidden_size": 288,
    "intermediate_size": 1152,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "encoder_num_attention_heads": 8,
    "max_position_embeddings": 512,
    "partial_rotary_factor": 0.9,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
_STREAMING: Mapping[str, Any] = {
    **_MOONSHINE,
    "hidden_size": 320,
    "intermediate_size": 1280,
    "max_position_embeddings": 4096,
    "partial_rotary_factor": 1.0,
    "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.8},
    "tie_word_embeddings": False,
}
_FIELDS = {
    "decoder_num_hidden_layers": "num_hidden_layers",
    "decoder_num_attention_heads": "num_attention_heads",
    "decoder_num_key_value_heads": "num_key_value_heads",
    "decoder_hidden_act": "hidden_act",
}
_EPS = 1e-5
_NAMES = BlockNames("self_attn", APART, "input_layernorm", "final_layernorm")
_CROSS = CrossNames("encoder_attn", "post_attention_layernorm")
_DECODER = DecoderNames(
    embedding="model.decoder.embed_tokens",
    layers="model.decoder.layers",
    gated=GatedNames(down="fc2", joined="fc1", up_first=True),
    norm="model.decoder.norm",
    head="proj_out",
)


def moonshine(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Raises RefusedTypeError for numbers of heads with which transformers' code is wrong."""
    fields = ConfigFields(renamed(checkpoint, _FIELDS), _MOONSHINE)
    heads = fields.count("num_attention_heads")
    beside = (fields.count(f"encoder_num_{kind}_heads", heads) for kind in ("attention", "key_value"))
    if any(number != heads for number in beside):
        raise RefusedTypeError("its encoder and its decoder have unlike numbers of heads")
    return _decoder(build, fields, max_model_len)


def moonshine_streaming(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Its encoder sees windows of frames."""
    return _decoder(build, ConfigFields(checkpoint, _STREAMING), max_model_len)


def _decoder(build: Build, fields: ConfigFields, max_model_len: int) -> Decoder:
    biased = fields.flag("attention_bias")
    rope = RopeReader(fields, read_head_dim(fields), max_model_len, partial=True).read()
    shape = read_attention(fields, max_model_len, rope=rope, eps=_EPS, style="pairs", bias=biased)
    if shape.kv_heads != shape.heads:
        raise RefusedTypeError("several of its query heads share a key")
    config = read_decoder(fields, repeated(fields, shape), mlp_bias=True, names=_DECODER)
    length = encoder_length(fields.values)
    crossed = CrossShape(
        shape.hidden, shape.heads, shape.head_dim, length, layout=APART, bias=biased, output_bias=False
    )
    return layer_norm_decoder(
        build,
        config,
        lambda number, tables: CrossBlock(
            build, config, number, tables, _NAMES, crossed, _CROSS, norm_bias=False, mlp=mlp_of
        ),
        norm_bias=False,
        decoder=partial(CrossDecoder, positions=None),
    )
