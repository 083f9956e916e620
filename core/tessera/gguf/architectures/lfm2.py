"""LFM2: short convolutions and attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tessera.gguf.architectures.architecture import ENDS, GgufArchitecture, Names, Settings, expert_names
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile
from tessera.gguf.tensors import NamedTensor, depthwise

_MLP = "feed_forward"
_LFM2: Names = {
    "attn_norm": "operator_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": f"{_MLP}.w1",
    "ffn_up": f"{_MLP}.w3",
    "ffn_down": f"{_MLP}.w2",
}
_EXPERTS: Names = {
    **expert_names(f"{_MLP}.gate", f"{_MLP}.experts", "w1", "w3", "w2"),
    "exp_probs_b.bias": f"{_MLP}.expert_bias",
}
_ENDS: Names = {**ENDS, "token_embd_norm.weight": "model.embedding_norm.weight"}


def _lfm2(fields: GgufFields, file: GgufFile) -> Settings:
    """Layers without key heads are convolutions."""
    heads = fields.per_layer("attention.head_count_kv") or [1] * fields.num_layers
    return {
        "conv_L_cache": fields.count("shortconv.l_cache"),
        "norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "layer_types": ["full_attention" if number else "conv" for number in heads],
        "conv_bias": "blk.0.shortconv.conv.bias" in file.tensors,
        "block_auto_adjust_ff_dim": False,
    }


def _lfm2_moe(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        **_lfm2(fields, file),
        "num_dense_layers": fields.get("leading_dense_block_count") or 0,
        "num_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "use_expert_bias": any(name.endswith("exp_probs_b.bias") for name in file.tensors),
        "routed_scaling_factor": fields.number("expert_weights_scale", 1.0),
        "norm_topk_prob": True,
    }


def _changes(fields: GgufFields) -> Mapping[str, Callable[[NamedTensor], NamedTensor]]:
    return {"shortconv.conv": depthwise}


LFM2: Mapping[str, GgufArchitecture] = {
    "lfm2": GgufArchitecture("Lfm2ForCausalLM", "lfm2", _LFM2, _lfm2, changes=_changes, ends=_ENDS),
    "lfm2moe": GgufArchitecture(
        "Lfm2MoeForCausalLM", "lfm2_moe", {**_LFM2, **_EXPERTS}, _lfm2_moe, changes=_changes, ends=_ENDS
    ),
}
"""By general.architecture."""
