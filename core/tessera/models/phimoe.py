"""Phi-3.5-MoE: layer norms, biases everywhere but in experts, and two experts that are chosen one after the other, each
weighted among those whose scores come near its own (SparseMixer, GRIN, arXiv:2409.12136)."""

from __future__ import annotations

from typing import Any

from tessera.errors import ModelError
from tessera.layers.build import Build
from tessera.layers.qkv import APART
from tessera.models.decoder import Decoder, mlp_of
from tessera.models.encoder import BlockNames
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.llama import MIXTRAL_NAMES, read_experts
from tessera.models.reading import everywhere, read_attention, read_biases, read_decoder, windowed
from tessera.models.sequential import SequentialBlock, layer_norm_decoder

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_PHIMOE: dict[str, Any] = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "num_local_experts": 16,
    "num_experts_per_tok": 2,
    "router_jitter_noise": 0.01,
}
_NAMES = BlockNames("self_attn", APART, "input_layernorm", "post_attention_layernorm")


def phimoe(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _PHIMOE)
    if fields.flag("tie_word_embeddings") and fields.flag("lm_head_bias"):
        raise ModelError("lm_head_bias is not supported together with tie_word_embeddings.")
    if fields.count("num_experts_per_tok") != 2:
        raise ModelError("num_experts_per_tok must be 2 in config.json: SparseMixer chooses two experts.")
    routing = {"scoring": "sparsemixer", "margin": 2 * fields.number("router_jitter_noise"), "renormalise": False}
    inner = fields.count("intermediate_size")
    config = read_decoder(
        fields,
        windowed(read_attention(fields, max_model_len, **read_biases(fields)), everywhere(fields)),
        experts=read_experts(fields, "num_local_experts", MIXTRAL_NAMES, inner, **routing),
        head_bias=fields.flag("lm_head_bias"),
    )
    return layer_norm_decoder(
        build, config, lambda number, tables: SequentialBlock(build, config, number, tables, _NAMES, mlp=mlp_of)
    )
