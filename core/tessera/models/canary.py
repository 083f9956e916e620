"""The decoders of Canary (arXiv:2509.14128) and Cohere ASR: positions added to the embedding of tokens and a norm
behind the sum, then blocks of attention, cross attention over the encoder and an MLP, each with a norm before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tessera.config.modalities import encoder_length
from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.cross_attention import CrossShape
from tessera.layers.embedding import PositionEmbedding, SinusoidEmbedding
from tessera.layers.norm import AddLayerNorm
from tessera.layers.qkv import APART, Apart
from tessera.models.cross_decoder import CrossBlock, CrossDecoder, CrossNames
from tessera.models.decoder import Decoder, DecoderNames
from tessera.models.encoder import BlockNames
from tessera.models.fields import Checkpoint, ConfigFields, RefusedTypeError
from tessera.models.reading import read_attention, read_biases, read_decoder, repeated
from tessera.models.sequential import layer_norm_decoder

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_CANARY: Mapping[str, Any] = {
    "vocab_size": 16384,
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
    "max_position_embeddings": 1024,
    "hidden_act": "relu",
    "head_dim": 128,
    "attention_bias": True,
    "tie_word_embeddings": True,
}
_COHERE: Mapping[str, Any] = {**_CANARY, "head_dim": None, "tie_word_embeddings": False}
_EPS = 1e-5
_DECODER = "decoder_config"


@dataclass(frozen=True)
class _Names:
    """What a checkpoint calls the parts."""

    decoder: DecoderNames
    block: BlockNames
    cross: CrossNames
    embedding_norm: str
    # The whole name of the table of positions that was learned.
    positions: str


def _current(outer: str) -> _Names:
    """transformers'. outer: in front of all."""
    return _Names(
        DecoderNames(f"{outer}embed_tokens", f"{outer}layers", norm=f"{outer}norm", head="proj_out"),
        BlockNames("self_attn", APART, "input_layernorm", "final_layernorm", ("mlp.fc1", "mlp.fc2")),
        CrossNames("encoder_attn", "post_attention_layernorm"),
        f"{outer}embedding_layernorm",
        f"{outer}pos_emb.weight",
    )


def _older(outer: str) -> _Names:
    """Those of the files that were published."""
    embedding, decoder = f"{outer}transf_decoder._embedding", f"{outer}transf_decoder._decoder"
    layout = Apart("out_projection", "query_net", "key_net", "value_net")
    mlp = "third_sub_layer.dense_in", "third_sub_layer.dense_out"
    return _Names(
        DecoderNames(
            f"{embedding}.token_embedding",
            f"{decoder}.layers",
            norm=f"{decoder}.final_layer_norm",
            head="log_softmax.mlp.layer0",
        ),
        BlockNames("first_sub_layer", layout, "layer_norm_1", "layer_norm_3", mlp),
        CrossNames("second_sub_layer", "layer_norm_2"),
        f"{embedding}.layer_norm",
        f"{embedding}.position_embedding.pos_enc",
    )


def canary(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Positions have sines and cosines."""
    nested = checkpoint.get(_DECODER) or {}
    if not isinstance(nested, Mapping):
        raise ModelError(f"{_DECODER} in config.json is not an object.")
    whole = {name: checkpoint[name] for name in ("architectures", "tie_word_embeddings") if name in checkpoint}
    fields = ConfigFields({**checkpoint, **nested, **whole}, _CANARY)
    rows, hidden = fields.count("max_position_embeddings"), fields.count("hidden_size")
    positions = SinusoidEmbedding(build, rows, 0, hidden, scale=hidden**-0.5)
    return _decoder(build, fields, max_model_len, _current("model.decoder."), positions)


def cohere_asr(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Positions were learned."""
    fields = ConfigFields(checkpoint, _COHERE)
    names = next((older for older in map(_older, ("", "model.")) if _holds(build, older)), _current("model.decoder."))
    sizes = fields.count("max_position_embeddings"), 0, fields.count("hidden_size")
    positions = PositionEmbedding(build, names.positions.removesuffix(".weight"), *sizes, stored=names.positions)
    return _decoder(build, fields, max_model_len, names, positions)


def _holds(build: Build, names: _Names) -> bool:
    return build.stored is not None and build.stored.holds(names.positions)


def _decoder(
    build: Build,
    fields: ConfigFields,
    max_model_len: int,
    names: _Names,
    positions: PositionEmbedding | SinusoidEmbedding,
) -> Decoder:
    shape = read_attention(fields, max_model_len, rope=None, eps=_EPS, layout=names.block.layout, **read_biases(fields))
    if shape.kv_heads != shape.heads:
        raise RefusedTypeError("several of its query heads share a key")
    config = read_decoder(
        fields,
        repeated(fields, shape),
        activation=fields.activation("hidden_act", "relu", gated=False),
        mlp_bias=True,
        head_bias=True,
        names=names.decoder,
    )
    assert isinstance(names.block.layout, Apart)
    crossed = CrossShape(
        shape.hidden,
        shape.heads,
        shape.head_dim,
        encoder_length(fields.values),
        layout=names.block.layout,
        bias=shape.bias,
    )
    norm = AddLayerNorm(build, names.embedding_norm, config.hidden, _EPS)
    return layer_norm_decoder(
        build,
        config,
        lambda number, tables: CrossBlock(
            build, config, number, tables, names.block, crossed, names.cross, whole=number == 0
        ),
        decoder=partial(CrossDecoder, positions=positions, embedding_norm=norm),
    )
