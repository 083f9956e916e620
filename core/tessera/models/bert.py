"""BERT and what differs from it in names, positions or heads: RoBERTa, ELECTRA, DistilBERT, and ALBERT, whose layers
share their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.classification import HeadConfig, classification_heads
from tessera.layers.linear import Linear, WeightShard
from tessera.layers.masked_lm import MaskedHeadConfig, sparse_heads
from tessera.layers.qkv import Apart
from tessera.models.encoder import (
    BertBlock,
    BlockNames,
    Embeddings,
    Encoder,
    EncoderConfig,
    bert_blocks,
    read_encoder,
)
from tessera.models.fields import Checkpoint, ConfigFields, renamed

# transformers' defaults for fields that config.json omits. An explicit null stays null.
BERT: Mapping[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
ROBERTA: Mapping[str, Any] = {**BERT, "vocab_size": 50265, "pad_token_id": 1}
_ELECTRA = {**BERT, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "embedding_size": 128}
_ALBERT: Mapping[str, Any] = {
    **BERT,
    "vocab_size": 30000,
    "embedding_size": 128,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "hidden_act": "gelu_new",
    "num_hidden_groups": 1,
    "inner_group_num": 1,
}
_DISTILBERT = {**BERT, "num_hidden_layers": 6, "type_vocab_size": 0}
_DISTILBERT_NAMES = {
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
}

WORD = "embeddings.word_embeddings.weight"
"""A weight that all of these models have, behind the name of the model without its head."""

_SELF = Apart("output.dense", "self.query", "self.key", "self.value")
NAMES = BlockNames("attention", _SELF, "attention.output.LayerNorm", "output.LayerNorm")
TOKENS = HeadConfig()
"""The head of *ForTokenClassification: one layer."""
DENSE_THEN_OUT = HeadConfig("classifier.out_proj", dense="classifier.dense")


def pooler_head(base: str) -> HeadConfig:
    """BERT's: the pooler, which is part of the model without a head, then a layer. base: as Build.base() returns it."""
    return HeadConfig(dense=f"{base}pooler.dense")


def bert(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Encoder:
    fields = encoder_fields(checkpoint, BERT)
    base = build.base(["bert"], WORD)
    config, head = read_encoder(fields, max_model_len), "cls.predictions"
    masked = MaskedHeadConfig(
        dense=f"{head}.transform.dense",
        norm=f"{head}.transform.LayerNorm",
        weight=(f"{head}.decoder.weight", f"{base}{WORD}"),
        bias=(f"{head}.bias", f"{head}.decoder.bias"),
        activation=config.activation,
    )
    return bert_encoder(build, config, base, pooler_head(base), masked=masked)


def roberta(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Encoder:
    """Also XLM-RoBERTa and CamemBERT. The table of positions begins with rows of padding."""
    fields = encoder_fields(checkpoint, ROBERTA)
    first = fields.count("pad_token_id", least=0) + 1
    base = build.base(["roberta", "camembert"], WORD)
    config = read_encoder(fields, max_model_len, first_position=first)
    masked = MaskedHeadConfig(
        dense="lm_head.dense",
        norm="lm_head.layer_norm",
        weight=("lm_head.decoder.weight", f"{base}{WORD}"),
        bias=("lm_head.bias", "lm_head.decoder.bias"),
    )
    return bert_encoder(build, config, base, DENSE_THEN_OUT, masked=masked)


def electra(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Encoder:
    fields = encoder_fields(checkpoint, _ELECTRA)
    config = read_encoder(fields, max_model_len, embedded=fields.count("embedding_size"))
    base = build.base(["electra"], WORD)
    head = replace(DENSE_THEN_OUT, activation="gelu")
    project = "embeddings_project" if config.embedded != config.hidden else None
    return bert_encoder(build, config, base, head, project=project)


def distilbert(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Encoder:
    fields = encoder_fields(renamed(checkpoint, _DISTILBERT_NAMES), _DISTILBERT)
    layout = Apart("out_lin", "q_lin", "k_lin", "v_lin")
    names = BlockNames("attention", layout, "sa_layer_norm", "output_layer_norm", ("ffn.lin1", "ffn.lin2"))
    base = build.base(["distilbert"], WORD)
    head = HeadConfig(dense="pre_classifier", activation="relu")
    config = read_encoder(fields, max_model_len)
    blocks = bert_blocks(build, config, f"{base}transformer.layer.{{}}", names)
    masked = MaskedHeadConfig(
        dense="vocab_transform",
        norm="vocab_layer_norm",
        weight=("vocab_projector.weight", f"{base}{WORD}"),
        bias=("vocab_projector.bias", "vocab_projector.bias"),
        activation=config.activation,
    )
    return bert_encoder(build, config, base, head, blocks=blocks, masked=masked)


def albert(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Encoder:
    """Layers of a group are the same objects, so that their weights are held once."""
    fields = encoder_fields(checkpoint, _ALBERT)
    groups, number, inner = (
        fields.count(name) for name in ("num_hidden_groups", "num_hidden_layers", "inner_group_num")
    )
    config = read_encoder(fields, max_model_len, embedded=fields.count("embedding_size"))
    base = build.base(["albert"], WORD)
    layout = Apart("dense", "query", "key", "value")
    names = BlockNames("attention", layout, "attention.LayerNorm", "full_layer_layer_norm", ("ffn", "ffn_output"))
    made = [
        bert_blocks(build, replace(config, layers=config.layers[:1] * inner), _albert_layer(base, group), names)
        for group in range(groups)
    ]
    blocks = [block for layer in range(number) for block in made[layer * groups // number]]
    head = HeadConfig(dense=f"{base}pooler")
    return bert_encoder(build, config, base, head, project="encoder.embedding_hidden_mapping_in", blocks=blocks)


def _albert_layer(base: str, group: int) -> str:
    return f"{base}encoder.albert_layer_groups.{group}.albert_layers.{{}}"


def encoder_fields(checkpoint: Checkpoint, defaults: Checkpoint | None = None) -> ConfigFields:
    """Raises ModelError for a decoder of these families, and for positions that are no table of absolute ones."""
    fields = ConfigFields(checkpoint, defaults)
    if fields.flag("is_decoder"):
        raise ModelError("is_decoder is not supported for this architecture: it is served as an encoder.")
    if fields.get("position_embedding_type") not in (None, "absolute"):
        raise ModelError("position_embedding_type must be absolute in config.json for this architecture.")
    return fields


def bert_encoder(
    build: Build,
    config: EncoderConfig,
    base: str,
    head: HeadConfig,
    *,
    blocks: Sequence[BertBlock] | None = None,
    norm: str = "embeddings.LayerNorm",
    project: str | None = None,
    masked: MaskedHeadConfig | None = None,
) -> Encoder:
    """base: as Build.base() returns it. head: of texts. blocks: if they are not named as BERT's. norm: of embeddings.
    project: the product that maps embeddings to hidden states, if there is one. masked: the head over the vocabulary,
    if sparse vectors are served."""
    embeddings = Embeddings(build, config, f"{base}embeddings", f"{base}{norm}")
    mapped = None
    if project is not None:
        mapped = Linear(build, [WeightShard(f"{base}{project}", config.hidden, config.embedded)], bias=True)
    if blocks is None:
        blocks = bert_blocks(build, config, f"{base}encoder.layer.{{}}", NAMES)
    heads = classification_heads(build, config.hidden, head, TOKENS)
    heads |= sparse_heads(build, masked, config.vocab, config.hidden, config.eps)
    return Encoder(build, config, embeddings=embeddings, blocks=blocks, heads=heads, project=mapped)
