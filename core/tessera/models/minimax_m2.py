"""MiniMax M2: queries and keys normalized over all heads, a part of each of which is turned, and experts that biased
sigmoid scores choose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.layers.build import Build
from tessera.models.decoder import Decoder, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.llama import MIXTRAL_NAMES, SPARSE, read_experts
from tessera.models.minimax import read_turned_part
from tessera.models.reading import read_attention, read_decoder, repeated

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_MINIMAX_M2: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 196608,
    "rope_theta": 5e6,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
}


def minimax_m2(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Experts are scored in float32 whatever the model's dtype, as their router is published. Modules that predict
    further tokens are not read."""
    fields = ConfigFields(checkpoint, _MINIMAX_M2)
    shape = read_attention(fields, max_model_len, rope=read_turned_part(fields, max_model_len), whole_norm=True)
    names = replace(MIXTRAL_NAMES, bias=f"{SPARSE}.e_score_correction_bias")
    inner = fields.count("intermediate_size")
    experts = read_experts(fields, "num_local_experts", names, inner, scoring="sigmoid", bias=True)
    experts = replace(experts, router_dtype="float32")
    return build_decoder(build, read_decoder(fields, repeated(fields, shape), experts=experts))
