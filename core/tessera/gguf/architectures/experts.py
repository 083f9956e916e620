"""Models with experts that are built like no other: gpt-oss, GLM-4.5, MiniMax-M2, Ernie 4.5, OLMoE, Hunyuan and
DeepSeek."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tessera.errors import ModelError
from tessera.gguf.architectures.architecture import (
    ATTENTION,
    DENSE,
    HEAD_NORMS,
    MLP,
    GgufArchitecture,
    Join,
    Names,
    Settings,
    expert_names,
    shared_expert_names,
)
from tessera.gguf.architectures.llama import HUNYUAN_NORMS, has_biases
from tessera.gguf.architectures.windows import sliding_layers
from tessera.gguf.fields import GgufFields
from tessera.gguf.file import GgufFile
from tessera.gguf.rope import rope_settings
from tessera.gguf.tensors import ComputedTensor, Floats, NamedTensor

_SCORES = "e_score_correction_bias"
_ROUTED: Names = {
    **MLP,
    **expert_names("mlp.gate", "mlp.experts"),
    **shared_expert_names("mlp.shared_experts"),
    "exp_probs_b.bias": f"mlp.gate.{_SCORES}",
}
_LATENT: Names = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}
_SIGMOID = 2
"""Of expert_gating_func."""
_MSCALE = "rope.scaling.yarn_log_multiplier"
"""A tenth of YaRN's mscale, which multiplies the logarithm of the factor."""


def _gpt_oss(fields: GgufFields, file: GgufFile) -> Settings:
    scaling = rope_settings(fields, file).get("rope_scaling")
    return {
        "num_local_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "intermediate_size": fields.count("expert_feed_forward_length"),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        **sliding_layers(fields, every=2),
        "rope_scaling": None if scaling is None else {**scaling, "truncate": False},
    }


def _routed(fields: GgufFields) -> Settings:
    return {
        "n_routed_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "n_shared_experts": fields.count("expert_shared_count"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "first_k_dense_replace": fields.get("leading_dense_block_count") or 0,
        "routed_scaling_factor": fields.number("expert_weights_scale", 1.0),
        "norm_topk_prob": bool(fields.get("expert_weights_norm")),
        "n_group": fields.count("expert_group_count", 1),
        "topk_group": fields.count("expert_group_used_count", 1),
    }


def _glm4_moe(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        **_routed(fields),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
    }


def _dots1(fields: GgufFields, file: GgufFile) -> Settings:
    return {**_routed(fields), **has_biases(fields, file)}


def _minimax_m2(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        "num_local_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "intermediate_size": fields.count("expert_feed_forward_length"),
        "rotary_dim": fields.count("rope.dimension_count"),
    }


def _ernie_moe(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        "use_bias": "blk.0.attn_q.bias" in file.tensors,
        "moe_num_experts": fields.count("expert_count"),
        "moe_k": fields.count("expert_used_count"),
        "moe_intermediate_size": fields.count("expert_feed_forward_length"),
        "moe_num_shared_experts": fields.get("expert_shared_count") or 0,
        "moe_layer_start_index": fields.get("leading_dense_block_count") or 0,
        "moe_layer_interval": fields.count("interleave_moe_layer_step", 1),
        "moe_layer_end_index": fields.num_layers - 1,
    }


def _deepseek(fields: GgufFields, file: GgufFile) -> Settings:
    rotated, rank = fields.count("rope.dimension_count"), fields.count("attention.kv_lora_rank")
    key, value = fields.get("attention.key_length_mla"), fields.get("attention.value_length_mla")
    # Files of before keys and values were absorbed say it of the heads themselves.
    key = fields.count("attention.key_length" if key is None else "attention.key_length_mla")
    value = fields.count("attention.value_length" if value is None else "attention.value_length_mla")
    heads = fields.count("attention.head_count")
    rope = rope_settings(fields, file)
    if "rope_scaling" in rope and fields.get(_MSCALE) is not None:
        # Published models have both alike.
        mscale = 10 * fields.number(_MSCALE)
        rope["rope_scaling"] |= {"mscale": mscale, "mscale_all_dim": mscale}
    return {
        **_routed(fields),
        **rope,
        "num_key_value_heads": heads,
        "head_dim": rotated,
        "q_lora_rank": fields.get("attention.q_lora_rank"),
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": value,
        "partial_rotary_factor": 1.0,
        "attention_bias": False,
    }


def _keys_and_values(keys: NamedTensor, values: NamedTensor) -> ComputedTensor:
    """Of each head, transformers has rows that make its keys and then those that make its values; the file has the
    former by columns."""
    if len(keys.shape) != 3 or len(values.shape) != 3 or keys.shape[:2] != (values.shape[0], values.shape[2]):
        raise ModelError(f"'{keys.source[:80]}' of the GGUF file and what belongs to it have unlike shapes.")
    heads, rank, of_key = keys.shape

    def compute(by_columns: Floats, by_rows: Floats) -> Floats:
        return np.concatenate([by_columns.swapaxes(1, 2), by_rows], axis=1)

    return ComputedTensor((heads * (of_key + values.shape[1]), rank), (keys, values), compute)


def _latent_joins(fields: GgufFields) -> Mapping[str, Join]:
    return {"self_attn.kv_b_proj.weight": Join(("attn_k_b", "attn_v_b"), _keys_and_values)}


def _olmoe(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        "num_experts": fields.count("expert_count"),
        "num_experts_per_tok": fields.count("expert_used_count"),
        "norm_topk_prob": False,
        "clip_qkv": None,
        **has_biases(fields, file),
    }


def _hunyuan_moe(fields: GgufFields, file: GgufFile) -> Settings:
    return {
        "intermediate_size": fields.count("expert_feed_forward_length"),
        "num_experts": fields.count("expert_count"),
        "moe_topk": fields.count("expert_used_count"),
        **has_biases(fields, file),
    }


_DEEPSEEK_V2 = GgufArchitecture(
    "DeepseekV2ForCausalLM", "deepseek_v2", {**_LATENT, **_ROUTED}, _deepseek, joins=_latent_joins
)
_DEEPSEEK_V3 = GgufArchitecture(
    "DeepseekV3ForCausalLM", "deepseek_v3", {**_LATENT, **_ROUTED}, _deepseek, joins=_latent_joins
)


def deepseek(fields: GgufFields) -> GgufArchitecture:
    """V2 or V3, which differ in how they score experts."""
    return _DEEPSEEK_V3 if fields.get("expert_gating_func") == _SIGMOID else _DEEPSEEK_V2


EXPERTS: Mapping[str, GgufArchitecture] = {
    "gpt-oss": GgufArchitecture(
        "GptOssForCausalLM",
        "gpt_oss",
        {
            **ATTENTION,
            "attn_sinks.weight": "self_attn.sinks",
            "post_attention_norm": "post_attention_layernorm",
            **expert_names("mlp.router", "mlp.experts"),
        },
        _gpt_oss,
    ),
    "glm4moe": GgufArchitecture(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        {**ATTENTION, **HEAD_NORMS, "post_attention_norm": "post_attention_layernorm", **_ROUTED},
        _glm4_moe,
    ),
    "dots1": GgufArchitecture(
        "Dots1ForCausalLM",
        "dots1",
        {**DENSE, **HEAD_NORMS, **_ROUTED},
        _dots1,
    ),
    "minimax-m2": GgufArchitecture(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        {
            **ATTENTION,
            **HEAD_NORMS,
            "ffn_norm": "post_attention_layernorm",
            **expert_names("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"),
            "exp_probs_b.bias": f"block_sparse_moe.{_SCORES}",
        },
        _minimax_m2,
    ),
    "ernie4_5-moe": GgufArchitecture(
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5_moe",
        {**DENSE, **_ROUTED, "exp_probs_b.bias": f"mlp.moe_statics.{_SCORES}"},
        _ernie_moe,
    ),
    "olmoe": GgufArchitecture(
        "OlmoeForCausalLM",
        "olmoe",
        {
            **ATTENTION,
            **HEAD_NORMS,
            "ffn_norm": "post_attention_layernorm",
            **expert_names("mlp.gate", "mlp.experts"),
        },
        _olmoe,
    ),
    "hunyuan-moe": GgufArchitecture(
        "HunYuanMoEV1ForCausalLM",
        "hunyuan_v1_moe",
        {
            **ATTENTION,
            **HUNYUAN_NORMS,
            "ffn_norm": "post_attention_layernorm",
            **expert_names("mlp.gate.wg", "mlp.experts"),
            **shared_expert_names("mlp.shared_mlp"),
        },
        _hunyuan_moe,
    ),
    "deepseek2": _DEEPSEEK_V2,
}
"""By general.architecture. A file of `deepseek2` is what deepseek() says."""
