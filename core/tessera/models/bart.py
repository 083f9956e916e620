"""The decoders of BART (arXiv:1910.13461) and its relatives, which write a text from one that their encoder has read:
they summarize and translate. A decoder's block has attention over its own tokens, cross attention over the encoder, and
an MLP, with a norm behind each of them or before each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.cross_attention import CrossShape
from tessera.layers.embedding import PositionEmbedding, SinusoidEmbedding, vocabulary_ends
from tessera.layers.norm import AddLayerNorm
from tessera.layers.qkv import Apart
from tessera.models.cross_decoder import CrossBlock, CrossDecoder, CrossNames, PostNormCrossBlock
from tessera.models.decoder import DecoderNames
from tessera.models.encoder import BlockNames
from tessera.models.fields import Checkpoint, ConfigFields, renamed
from tessera.models.reading import read_attention, read_decoder, repeated

_FIELDS = {
    "d_model": "hidden_size",
    "decoder_layers": "num_hidden_layers",
    "decoder_attention_heads": "num_attention_heads",
    "decoder_ffn_dim": "intermediate_size",
}
# transformers' defaults for fields that config.json omits. An explicit null stays null.
_BART: Mapping[str, Any] = {
    "vocab_size": 50265,
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "max_position_embeddings": 1024,
    "activation_function": "gelu",
    "scale_embedding": False,
    "tie_word_embeddings": True,
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "bart": _BART,
    "mbart": _BART,
    "marian": {**_BART, "vocab_size": 58101, "share_encoder_decoder_embeddings": True, "decoder_vocab_size": None},
    "m2m_100": {
        **_BART, "vocab_size": 128112, "activation_function": "relu", "scale_embedding": True, "pad_token_id": 1,
    },
    "pegasus": _BART,
    "plbart": {
        **_BART,
        "vocab_size": 50005,
        "hidden_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "scale_embedding": True,
    },
}  # fmt: skip
_EPS = 1e-5
_LAYOUT = Apart(output="out_proj")
_NAMES = BlockNames("self_attn", _LAYOUT, "self_attn_layer_norm", "final_layer_norm", ("fc1", "fc2"))
_CROSS = CrossNames("encoder_attn", "encoder_attn_layer_norm")
_DECODER = "model.decoder"
_LOGITS_BIAS = "final_logits_bias"
_ROWS_BEFORE = 2
"""Rows of a table of positions that come before the first token's, where positions once began behind padding."""


@dataclass(frozen=True)
class _Form:
    """What distinguishes the relatives."""

    # Whether norms come before attention and the MLP, and one behind the last block.
    pre_norm: bool
    # Whether a norm is behind the sum of a token's embedding and its position's.
    embedding_norm: bool = True
    # Whether positions have sines and cosines in place of a table that was learned.
    sinusoids: bool = False
    # Whether logits have a bias.
    logits_bias: bool = True


def bart(build: Build, checkpoint: Checkpoint, max_model_len: int) -> CrossDecoder:
    return _decoder(build, checkpoint, max_model_len, "bart", _Form(pre_norm=False))


def plbart(build: Build, checkpoint: Checkpoint, max_model_len: int) -> CrossDecoder:
    return _decoder(build, checkpoint, max_model_len, "plbart", _Form(pre_norm=False))


def mbart(build: Build, checkpoint: Checkpoint, max_model_len: int) -> CrossDecoder:
    return _decoder(build, checkpoint, max_model_len, "mbart", _Form(pre_norm=True))


def marian(build: Build, checkpoint: Checkpoint, max_model_len: int) -> CrossDecoder:
    """Marian, and the models of OPUS-MT."""
    form = _Form(pre_norm=False, embedding_norm=False, sinusoids=True)
    return _decoder(build, checkpoint, max_model_len, "marian", form)


def m2m_100(build: Build, checkpoint: Checkpoint, max_model_len: int) -> CrossDecoder:
    """M2M-100 (arXiv:2010.11125), NLLB (arXiv:2207.04672)."""
    form = _Form(pre_norm=True, embedding_norm=False, sinusoids=True, logits_bias=False)
    return _decoder(build, checkpoint, max_model_len, "m2m_100", form)


def pegasus(build: Build, checkpoint: Checkpoint, max_model_len: int) -> CrossDecoder:
    """arXiv:1912.08777"""
    form = _Form(pre_norm=True, embedding_norm=False, sinusoids=True)
    return _decoder(build, checkpoint, max_model_len, "pegasus", form)


def _decoder(build: Build, checkpoint: Checkpoint, max_model_len: int, family: str, form: _Form) -> CrossDecoder:
    said = {name: value for name, value in checkpoint.items() if name not in _FIELDS.values()}
    fields = ConfigFields(renamed(said, _FIELDS), _DEFAULTS[family])
    if fields.get("share_encoder_decoder_embeddings") is False:
        raise ModelError("share_encoder_decoder_embeddings: false in config.json is not supported.")
    shape = read_attention(fields, max_model_len, rope=None, eps=_EPS, bias=True, output_bias=True, layout=_LAYOUT)
    config = read_decoder(
        fields,
        repeated(fields, shape),
        activation=fields.activation("activation_function", "gelu", gated=False),
        mlp_bias=True,
        names=DecoderNames(embedding="model.shared", layers=f"{_DECODER}.layers", norm=f"{_DECODER}.layer_norm"),
    )
    crossed = CrossShape(
        shape.hidden, shape.heads, shape.head_dim, fields.count("max_position_embeddings"), layout=_LAYOUT, bias=True
    )
    # Where no norm comes first that would complete it.
    whole = not form.pre_norm and not form.embedding_norm
    embedding, head = vocabulary_ends(
        build,
        config.names.embedding,
        config.vocab,
        config.hidden,
        tied=config.tied,
        embedding_scale=config.hidden**0.5 if fields.flag("scale_embedding") else 1.0,
        whole=whole,
        head_name=config.names.head,
        logits_bias=_LOGITS_BIAS if form.logits_bias else "",
    )
    positions = _positions(build, fields, family, form, config.hidden)
    norm = AddLayerNorm(build, f"{_DECODER}.layernorm_embedding", config.hidden, _EPS) if form.embedding_norm else None
    block, tables = CrossBlock if form.pre_norm else PostNormCrossBlock, RotaryTable(build)
    blocks = [
        block(build, config, number, tables, _NAMES, crossed, _CROSS, whole=form.embedding_norm and number == 0)
        for number in range(len(config.layers))
    ]
    last = AddLayerNorm(build, config.names.norm, config.hidden, _EPS) if form.pre_norm else _complete
    return CrossDecoder(
        build, config, embedding=embedding, positions=positions, embedding_norm=norm, whole=whole, blocks=blocks,
        norm=last, head=head,
    )  # fmt: skip


def _complete(x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    """What blocks return that end with a norm."""
    return x, x


def _positions(
    build: Build, fields: ConfigFields, family: str, form: _Form, hidden: int
) -> PositionEmbedding | SinusoidEmbedding:
    rows = fields.count("max_position_embeddings")
    if family == "m2m_100":
        first = fields.count("pad_token_id", least=0) + 1
        return SinusoidEmbedding(build, rows, first, hidden, reaching=True)
    if form.sinusoids:
        return SinusoidEmbedding(build, rows, 0, hidden)
    return PositionEmbedding(build, f"{_DECODER}.embed_positions", rows + _ROWS_BEFORE, _ROWS_BEFORE, hidden)
