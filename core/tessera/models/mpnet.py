"""MPNet: BERT with a bias of scores by the distance between query and key, which all layers share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.qkv import Apart
from tessera.layers.weights import Parameter
from tessera.models.bert import BERT, DENSE_THEN_OUT, WORD, bert_encoder, encoder_fields
from tessera.models.encoder import BlockNames, Encoder, bert_blocks, read_encoder
from tessera.models.fields import Checkpoint
from tessera.platform.ops import Packed
from tessera.platform.quantization import Part

BUCKETS = 32
_EXACT, _FARTHEST = 8, 128
REACH = _FARTHEST + 1
"""Distances that differ: all from _FARTHEST on are in the last bucket."""
_FIRST_POSITION = 2
"""The rows before it are of padding."""

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_MPNET = {**BERT, "vocab_size": 30527, "type_vocab_size": 0, "relative_attention_num_buckets": BUCKETS}


def mpnet(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Encoder:
    fields = encoder_fields(checkpoint, _MPNET)
    if fields.get("relative_attention_num_buckets") != BUCKETS:
        raise ModelError(f"relative_attention_num_buckets must be {BUCKETS} in config.json, as MPNet counts distances.")
    config = read_encoder(fields, max_model_len, first_position=_FIRST_POSITION, attention={"relative_reach": REACH})
    base = build.base(["mpnet"], WORD)
    bias = relative_bias(build, f"{base}encoder.relative_attention_bias", config.layers[0].heads)
    names = BlockNames("attention.attn", Apart("o", "q", "k", "v"), "attention.LayerNorm", "output.LayerNorm")
    blocks = bert_blocks(build, config, f"{base}encoder.layer.{{}}", names, bias)
    return bert_encoder(build, config, base, DENSE_THEN_OUT, blocks=blocks)


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
