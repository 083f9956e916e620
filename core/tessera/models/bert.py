"""BERT and what differs from it in names, positions or heads: RoBERTa, ELECTRA, DistilBERT, MPNet (a bias of scores by
distance) and ALBERT (layers that share their weights)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.classification import HeadConfig, classification_heads
from tessera.layers.linear import Linear, WeightShard
from tessera.layers.qkv import Apart
from tessera.layers.weights import Parameter
from tessera.models.encoder import (
    BertBlock,
    BlockNames,
    Embeddings,
    Encoder,
    EncoderConfig,
    bert_blocks,
    read_encoder,
)
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.platform.model import PoolingHead
from tessera.platform.ops import Packed
from tessera.platform.quantization import Part

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
_MPNET = {**BERT, "vocab_size": 30527, "pad_token_id": 1, "type_vocab_size": 0, "relative_attention_num_buckets": 32}
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
_DISTILBERT = {"vocab_size": 30522, "max_position_embeddings": 512, "n_layers": 6, "n_heads": 12, "dim": 768}
_DISTILBERT_NAMES = {
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
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
    return _encoder(build, read_encoder(fields, max_model_len), base, pooler_head(base))


def roberta(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Encoder:
    """Also XLM-RoBERTa and CamemBERT. The table of positions begins with rows of padding."""
    fields = encoder_fields(checkpoint, ROBERTA)
    first = fields.count("pad_token_id", least=0) + 1
    base = build.base(["roberta", "camembert"], WORD)
    return _encoder(build, read_encoder(fields, max_model_len, first_position=first), base, DENSE_THEN_OUT)


def electra(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Encoder:
    fields = encoder_fields(checkpoint, _ELECTRA)
    config = read_encoder(fields, max_model_len, embedded=fields.count("embedding_size"))
    base = build.base(["electra"], WORD)
    return _encoder(build, config, base, replace(DENSE_THEN_OUT, activation="gelu"), "embeddings_project")


def distilbert(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Encoder:
    fields = encoder_fields({"layer_norm_eps": 1e-12, **_DISTILBERT, "hidden_dim": 3072, **checkpoint})
    fields = ConfigFields({**fields.values, **{name: fields.get(own) for name, own in _DISTILBERT_NAMES.items()}})
    layout = Apart("out_lin", "q_lin", "k_lin", "v_lin")
    names = BlockNames("attention", layout, "sa_layer_norm", "output_layer_norm", ("ffn.lin1", "ffn.lin2"))
    base = build.base(["distilbert"], WORD)
    head = HeadConfig(dense="pre_classifier", activation="relu")
    config = read_encoder(fields, max_model_len)
    blocks = bert_blocks(build, config, f"{base}transformer.layer.{{}}", names)
    return _encoder(build, config, base, head, blocks=blocks)


def mpnet(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Encoder:
    fields = encoder_fields(checkpoint, _MPNET)
    buckets, first = fields.count("relative_attention_num_buckets"), 2
    if buckets != BUCKETS:
        raise ModelError(f"relative_attention_num_buckets must be {BUCKETS} in config.json, as MPNet counts distances.")
    config = read_encoder(fields, max_model_len, first_position=first, attention={"relative_reach": REACH})
    base = build.base(["mpnet"], WORD)
    bias = relative_bias(build, f"{base}encoder.relative_attention_bias", config.layers[0].heads)
    names = BlockNames("attention.attn", Apart("o", "q", "k", "v"), "attention.LayerNorm", "output.LayerNorm")
    blocks = bert_blocks(build, config, f"{base}encoder.layer.{{}}", names, bias)
    return _encoder(build, config, base, DENSE_THEN_OUT, blocks=blocks)


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
    tables = RotaryTable(build)
    made = [
        [
            BertBlock(
                build,
                config,
                config.layers[0],
                f"{base}encoder.albert_layer_groups.{group}.albert_layers.{place}",
                names,
                tables,
            )
            for place in range(inner)
        ]
        for group in range(groups)
    ]
    blocks = [block for layer in range(number) for block in made[layer * groups // number]]
    head = HeadConfig(dense=f"{base}pooler")
    return _encoder(build, config, base, head, "encoder.embedding_hidden_mapping_in", blocks=blocks)


def encoder_fields(checkpoint: Checkpoint, defaults: Checkpoint | None = None) -> ConfigFields:
    """Raises ModelError for a decoder of these families, and for positions that are no table of absolute ones."""
    fields = ConfigFields(checkpoint, defaults)
    if fields.flag("is_decoder"):
        raise ModelError("is_decoder is not supported for this architecture: it is served as an encoder.")
    if fields.get("position_embedding_type") not in (None, "absolute"):
        raise ModelError("position_embedding_type must be absolute in config.json for this architecture.")
    return fields


def bert_heads(build: Build, config: EncoderConfig, text: HeadConfig) -> Mapping[str, PoolingHead]:
    return classification_heads(build, config.hidden, text, TOKENS)


def _encoder(
    build: Build,
    config: EncoderConfig,
    base: str,
    head: HeadConfig,
    project: str = "",
    *,
    blocks: Sequence[BertBlock] | None = None,
) -> Encoder:
    """project: the product that maps embeddings to hidden states; blocks: other than BERT's."""
    embeddings = Embeddings(build, config, f"{base}embeddings", f"{base}embeddings.LayerNorm")
    mapped = None
    if project and (config.embedded != config.hidden or project.startswith("encoder.")):
        mapped = Linear(build, [WeightShard(f"{base}{project}", config.hidden, config.embedded)], bias=True)
    if blocks is None:
        blocks = bert_blocks(build, config, f"{base}encoder.layer.{{}}", NAMES)
    heads = bert_heads(build, config, head)
    return Encoder(build, config, embeddings=embeddings, blocks=blocks, heads=heads, project=mapped)


# ---- MPNet's bias by distance

BUCKETS = 32
_EXACT, _FARTHEST = 8, 128
REACH = _FARTHEST + 1
"""Distances that differ: all from _FARTHEST on are in the last bucket."""


def relative_bias(build: Build, name: str, heads: int) -> Parameter:
    """[heads of this rank, 2 REACH - 1] float32, by key - query, from the checkpoint's [BUCKETS, heads]."""
    part = Part(f"{name}.weight", (BUCKETS, heads), columns=build.shard(heads, "the number of attention heads"))
    build.weights.skip(name, "a table by distance, which is no product")

    def prepare(raw: dict[str, Tensor], into: Packed | None) -> Packed:
        weight = raw["weight"]
        table = weight[distance_buckets().to(weight.device)].T.float().contiguous()
        if into is None:
            return {"weight": table}
        into["weight"].copy_(table)
        return into

    return build.register_parameter(Parameter({"weight": [part]}, prepare))


def distance_buckets() -> Tensor:
    """[2 REACH - 1] int64: the bucket of each key - query. Half of the buckets are for keys behind the query. Of each
    half, one half has one distance each, the other ever wider ranges. T5, arXiv:1910.10683."""
    distance = torch.arange(1 - REACH, REACH)
    far = distance.abs().clamp(min=1).float()
    each = BUCKETS // 2
    wide = _EXACT + (torch.log(far / _EXACT) / math.log(_FARTHEST / _EXACT) * (each - _EXACT)).long()
    place = torch.where(distance.abs() < _EXACT, distance.abs(), wide.clamp(max=each - 1))
    return place + (distance > 0) * each
