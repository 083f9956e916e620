"""Llama 4's text model."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.gguf.architectures.architecture import (
    ATTENTION,
    GgufArchitecture,
    Names,
    Settings,
    expert_names,
    shared_expert_names,
)
from tessera.gguf.architectures.llama import has_biases
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile

_MLP = "feed_forward"
_LLAMA4: Names = {
    **ATTENTION,
    "ffn_norm": "post_attention_layernorm",
    **{f"ffn_{part}": f"{_MLP}.{part}_proj" for part in ("gate", "up", "down")},
    **expert_names(f"{_MLP}.router", f"{_MLP}.experts"),
    **shared_expert_names(f"{_MLP}.shared_expert"),
}
_EXPERTS_OF_MAVERICK = 128


def _settings(fields: GgufFields, file: GgufFile) -> Settings:
    """What files do not say is what published models have: chunks, temperature of attention, the layers that know
    positions, and norms of queries and keys in all but Maverick."""
    experts = fields.count("expert_count")
    layers = range(fields.num_layers)
    return {
        "intermediate_size": fields.count("expert_feed_forward_length"),
        "intermediate_size_mlp": fields.count("feed_forward_length"),
        "num_local_experts": experts,
        "num_experts_per_tok": fields.count("expert_used_count"),
        "moe_layers": [layer for layer in layers if f"blk.{layer}.ffn_gate_inp.weight" in file.tensors],
        "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in layers],
        "attention_chunk_size": 8192,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "use_qk_norm": experts != _EXPERTS_OF_MAVERICK,
        **has_biases(fields, file),
    }


LLAMA4: Mapping[str, GgufArchitecture] = {
    "llama4": GgufArchitecture("Llama4ForCausalLM", "llama4_text", _LLAMA4, _settings),
}
"""By general.architecture."""
