"""Gemma, whose norms multiply by one more than their weights, and have others behind the halves of a block."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.gguf.architectures.architecture import ATTENTION, DENSE, HEAD_NORMS, MLP, GgufArchitecture, Names, Settings
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile

SANDWICH: Names = {
    **ATTENTION,
    **MLP,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _gemma2(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        "sliding_window": fields.count("attention.sliding_window", 4096),
        "attn_logit_softcapping": fields.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": fields.number("final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": _query_scalar(fields, largest=46),
    }


def _gemma3(fields: GgufFields, file: GgufFile) -> Settings:
    pattern = fields.get("attention.sliding_window_pattern")
    kinds: Settings = {"sliding_window_pattern": 6}
    if isinstance(pattern, list):
        kinds = {"layer_types": ["sliding_attention" if slides else "full_attention" for slides in pattern]}
    elif pattern is not None:
        kinds = {"sliding_window_pattern": fields.count("attention.sliding_window_pattern")}
    return {
        **kinds,
        "sliding_window": fields.count("attention.sliding_window", 1024),
        "rope_local_base_freq": fields.number("rope.freq_base_swa", 10000.0),
        "final_logit_softcapping": fields.get("final_logit_softcapping"),
        "query_pre_attn_scalar": _query_scalar(fields, largest=62),
    }


def _query_scalar(fields: GgufFields, largest: int) -> int:
    """What queries are divided by the root of. The file does not say: in the largest model of the family, by its number
    of layers, it is the width of a head as hidden_size has room for it; in the others that of a head."""
    if fields.count("block_count") == largest:
        return fields.count("embedding_length") // fields.count("attention.head_count")
    return fields.count("attention.key_length")


GEMMA: Mapping[str, GgufArchitecture] = {
    "gemma": GgufArchitecture("GemmaForCausalLM", "gemma", DENSE, norm_offset=1.0),
    "gemma2": GgufArchitecture("Gemma2ForCausalLM", "gemma2", SANDWICH, _gemma2, norm_offset=1.0),
    "gemma3": GgufArchitecture(
        "Gemma3ForCausalLM", "gemma3_text", {**SANDWICH, **HEAD_NORMS}, _gemma3, norm_offset=1.0
    ),
}
"""By general.architecture."""
