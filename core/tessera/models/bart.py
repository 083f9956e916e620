"""The decoders of BART (arXiv:1910.13461) and its relatives, which write a text from one that their encoder has read:
they summarize and translate; or, of two of them, from speech. A decoder's block has attention over its own tokens,
cross attention over the encoder, and an MLP, with a norm behind each of them or before each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from torch import Tensor

from tessera.config.modalities import encoder_length
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

_LAYERS = {
    "decoder_layers": "num_hidden_layers",
    "decoder_attention_heads": "num_attention_heads",
    "decoder_ffn_dim": "intermediate_size",
}
_FIELDS = MappingProxyType({"d_model": "hidden_size", **_LAYERS})
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
    "speech_to_text": {
        **_BART,
        "vocab_size": 10000,
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "intermediate_size": 2048,
        "max_target_positions": 1024,
        "activation_function": "relu",
        "scale_embedding": True,
        "pad_token_id": 1,
    },
    "speecht5": {
        **_BART,
        "vocab_size": 81,
        "hidden_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_text_positions": 450,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
    },
}  # fmt: skip
_EPS = 1e-5
_LAYOUT = Apart(output="out_proj")
_NAMES = BlockNames("self_attn", _LAYOUT, "self_attn_layer_norm", "final_layer_norm", ("fc1", "fc2"))
_CROSS = CrossNames("encoder_attn", "encoder_attn_layer_norm")
_DECODER = "model.decoder"
_DECODER_NAMES = DecoderNames("model.shared", f"{_DECODER}.layers", norm=f"{_DECODER}.layer_norm")
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
    # Whether that table begins behind the number of the padding token, and its last frequency is 1 / 10000.
    behind_padding: bool = False
    # Whether logits have a bias.
    logits_bias: bool = True
    # The field of config.json that says how many positions texts have.
    positions: str = "max_position_embeddings"
    # And the one that says the epsilon of norms; "": it is 1e-5.
    eps: str = ""
    # Whether its encoder hears.
    hears: bool = False
    # The checkpoint's names.
    names: DecoderNames = _DECODER_NAMES
    block: BlockNames = _NAMES
    # config.json's names of fields to the common ones.
    fields: Mapping[str, str] = field(default_factory=lambda: _FIELDS)


_M2M = _Form(pre_norm=True, embedding_norm=False, sinusoids=True, behind_padding=True, logits_bias=False)


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
    return _decoder(build, checkpoint, max_model_len, "m2m_100", _M2M)


def pegasus(build: Build, checkpoint: Checkpoint, max_model_len: int) -> CrossDecoder:
    """arXiv:1912.08777"""
    form = _Form(pre_norm=True, embedding_norm=False, sinusoids=True)
    return _decoder(build, checkpoint, max_model_len, "pegasus", form)


def speech_to_text(build: Build, checkpoint: Checkpoint, max_model_len: int) -> CrossDecoder:
    """arXiv:2010.05171"""
    names = replace(_M2M.names, embedding=f"{_DECODER}.embed_tokens")
    form = replace(_M2M, names=names, positions="max_target_positions", hears=True)
    return _decoder(build, checkpoint, max_model_len, "speech_to_text", form)


def speecht5(build: Build, checkpoint: Checkpoint, max_model_len: int) -> CrossDecoder:
    """arXiv:2110.07205, which writes characters."""
    outer = "speecht5.decoder"
    form = replace(
        _M2M,
        pre_norm=False,
        names=DecoderNames(
            f"{outer}.prenet.embed_tokens", f"{outer}.wrapped_decoder.layers", head="text_decoder_postnet.lm_head"
        ),
        block=replace(_NAMES, mlp=("feed_forward.intermediate_dense", "feed_forward.output_dense")),
        positions="max_text_positions",
        eps="layer_norm_eps",
        hears=True,
        fields={**_LAYERS, "hidden_act": "activation_function"},
    )
    return _decoder(build, checkpoint, max_model_len, "speecht5", form)


def _decoder(build: Build, checkpoint: Checkpoint, max_model_len: int, family: str, form: _Form) -> CrossDecoder:
    said = {name: value for name, value in checkpoint.items() if name not in form.fields.values()}
    fields = ConfigFields(renamed(said, form.fields), _DEFAULTS[family])
    if fields.get("share_encoder_decoder_embeddings") is False:
        raise ModelError("share_encoder_decoder_embeddings: false in config.json is not supported.")
    eps = fields.number(form.eps) if form.eps else _EPS
    shape = read_attention(fields, max_model_len, rope=None, eps=eps, bias=True, output_bias=True, layout=_LAYOUT)
    config = read_decoder(
        fields,
        repeated(fields, shape),
        activation=fields.activation("activation_function", "gelu", gated=False),
        mlp_bias=True,
        names=form.names,
    )
    length = encoder_length(fields.values) if form.hears else fields.count(form.positions)
    crossed = CrossShape(shape.hidden, shape.heads, shape.head_dim, length, layout=_LAYOUT, bias=True)
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
    positions = _positions(build, fields, form, config.hidden)
    norm = AddLayerNorm(build, f"{_DECODER}.layernorm_embedding", config.hidden, eps) if form.embedding_norm else None
    block, tables = CrossBlock if form.pre_norm else PostNormCrossBlock, RotaryTable(build)
    blocks = [
        block(build, config, number, tables, form.block, crossed, _CROSS, whole=form.embedding_norm and number == 0)
        for number in range(len(config.layers))
    ]
    last = AddLayerNorm(build, config.names.norm, config.hidden, eps) if form.pre_norm else _complete
    return CrossDecoder(
        build, config, embedding=embedding, positions=positions, embedding_norm=norm, whole=whole, blocks=blocks,
        norm=last, head=head,
    )  # fmt: skip


def _complete(x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    """What blocks return that end with a norm."""
    return x, x


def _positions(build: Build, fields: ConfigFields, form: _Form, hidden: int) -> PositionEmbedding | SinusoidEmbedding:
    rows = fields.count(form.positions)
    if form.behind_padding:
        first = fields.count("pad_token_id", least=0) + 1
        return SinusoidEmbedding(build, rows, first, hidden, reaching=True)
    if form.sinusoids:
        return SinusoidEmbedding(build, rows, 0, hidden)
    return PositionEmbedding(build, f"{_DECODER}.embed_positions", rows + _ROWS_BEFORE, _ROWS_BEFORE, hidden)
