"""The decoder of Whisper (arXiv:2212.04356): learned positions, and cross attention over the encoder in each block."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tessera.layers.build import Build
from tessera.layers.cross_attention import CrossShape
from tessera.layers.embedding import PositionEmbedding
from tessera.layers.qkv import Apart
from tessera.models.aligned_decoder import AlignedDecoder
from tessera.models.cross_decoder import CrossBlock, CrossDecoder, CrossNames
from tessera.models.decoder import Decoder, DecoderNames
from tessera.models.encoder import BlockNames
from tessera.models.fields import Checkpoint, ConfigFields, renamed
from tessera.models.reading import read_attention, read_decoder, repeated
from tessera.models.sequential import layer_norm_decoder

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_WHISPER: Mapping[str, Any] = {
    "vocab_size": 51865,
    "hidden_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "activation_function": "gelu",
    "tie_word_embeddings": True,
}
_FIELDS = {
    "d_model": "hidden_size",
    "decoder_layers": "num_hidden_layers",
    "decoder_attention_heads": "num_attention_heads",
    "decoder_ffn_dim": "intermediate_size",
}
_EPS = 1e-5
_LAYOUT = Apart(output="out_proj", key_bias=False)
_NAMES = BlockNames("self_attn", _LAYOUT, "self_attn_layer_norm", "final_layer_norm", ("fc1", "fc2"))
_DECODER = "model.decoder"


def whisper(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    heads = () if build.pooler is None else build.pooler.alignment_heads
    decoder = partial(AlignedDecoder, heads=heads) if heads else CrossDecoder
    said = {name: value for name, value in checkpoint.items() if name not in _FIELDS.values()}
    fields = ConfigFields(renamed(said, _FIELDS), _WHISPER)
    shape = read_attention(fields, max_model_len, rope=None, eps=_EPS, bias=True, output_bias=True, layout=_LAYOUT)
    config = read_decoder(
        fields,
        repeated(fields, shape),
        activation=fields.activation("activation_function", "gelu", gated=False),
        mlp_bias=True,
        names=DecoderNames(
            embedding=f"{_DECODER}.embed_tokens",
            layers=f"{_DECODER}.layers",
            norm=f"{_DECODER}.layer_norm",
            head="proj_out",
        ),
    )
    crossed = CrossShape(
        shape.hidden, shape.heads, shape.head_dim, fields.count("max_source_positions"), layout=_LAYOUT, bias=True
    )
    rows = fields.count("max_target_positions")
    positions = PositionEmbedding(build, f"{_DECODER}.embed_positions", rows, 0, shape.hidden)
    return layer_norm_decoder(
        build,
        config,
        lambda number, tables: CrossBlock(
            build, config, number, tables, _NAMES, crossed, CrossNames("encoder_attn", "encoder_attn_layer_norm")
        ),
        decoder=partial(decoder, positions=positions),
    )
