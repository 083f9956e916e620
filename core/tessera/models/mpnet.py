"""MPNet: BERT with a bias of scores by the distance between query and key, which all layers share."""

from __future__ import annotations

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.qkv import Apart
from tessera.models.bert import BERT, DENSE_THEN_OUT, WORD, bert_encoder, encoder_fields
from tessera.models.encoder import BlockNames, Encoder, bert_blocks, read_encoder
from tessera.models.fields import Checkpoint
from tessera.models.relative_bias import DistanceBuckets, relative_bias

BUCKETS = DistanceBuckets(32, farthest=128, causal=False)
_FIRST_POSITION = 2
"""The rows before it are of padding."""

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_MPNET = {**BERT, "vocab_size": 30527, "type_vocab_size": 0, "relative_attention_num_buckets": BUCKETS.count}


def mpnet(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Encoder:
    fields = encoder_fields(checkpoint, _MPNET)
    if fields.get("relative_attention_num_buckets") != BUCKETS.count:
        raise ModelError(
            f"relative_attention_num_buckets must be {BUCKETS.count} in config.json, as MPNet counts distances."
        )
    attention = {"relative_reach": BUCKETS.reach}
    config = read_encoder(fields, max_model_len, first_position=_FIRST_POSITION, attention=attention)
    base = build.base(["mpnet"], WORD)
    bias = relative_bias(build, f"{base}encoder.relative_attention_bias", config.layers[0].heads, BUCKETS)
    names = BlockNames("attention.attn", Apart("o", "q", "k", "v"), "attention.LayerNorm", "output.LayerNorm")
    blocks = bert_blocks(build, config, f"{base}encoder.layer.{{}}", names, bias)
    return bert_encoder(build, config, base, DENSE_THEN_OUT, blocks=blocks)
