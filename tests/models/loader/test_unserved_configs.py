"""Configurations that are not served are refused by name, in one line, before any weight is read."""

from __future__ import annotations

import pytest

from tessera.engine.engine import Engine
from tessera.errors import ModelError
from tessera.plugins.builtin import NATIVE_MODELS
from tests.models.loader.folders import config_only, dummy_config

MISTRAL, QWEN3, MIXTRAL = ({"architectures": [f"{name}ForCausalLM"]} for name in ("Mistral", "Qwen3", "Mixtral"))
FALCON, GEMMA3, PHI3, SMOLLM3, QWEN3_MOE = (
    {"architectures": [f"{name}ForCausalLM"]} for name in ("Falcon", "Gemma3", "Phi3", "SmolLM3", "Qwen3Moe")
)
MINIMAX = {"architectures": ["MiniMaxForCausalLM"], "num_key_value_heads": 1}
BLOOM, MPT = ({"architectures": [f"{name}ForCausalLM"]} for name in ("Bloom", "Mpt"))
LFM2, LFM2_MOE = ({"architectures": [f"{name}ForCausalLM"]} for name in ("Lfm2", "Lfm2Moe"))
QWEN3_5 = {"architectures": ["Qwen3_5ForCausalLM"], "head_dim": 8}
DELTA_NET = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 6,
}
LLAMA4 = {"architectures": ["Llama4ForCausalLM"], "head_dim": 8, "num_key_value_heads": 2}
GPT_OSS = {"architectures": ["GptOssForCausalLM"], "head_dim": 8, "num_key_value_heads": 2}
MAMBA2 = {"mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 6}
BAMBA = {"architectures": ["BambaForCausalLM"], **MAMBA2, "num_key_value_heads": 1, "partial_rotary_factor": 1.0}
GRANITE_HYBRID = {"architectures": ["GraniteMoeHybridForCausalLM"], **MAMBA2}
FALCON_H1 = {**MAMBA2, "mamba_d_ssm": 24, "num_key_value_heads": 1}
HYBRID = {"architectures": ["FalconH1ForCausalLM"], **FALCON_H1}
NEMOTRON_H = {
    "layers_block_type": ["mamba", "mlp"],
    "mamba_num_heads": 4,
    "mamba_head_dim": 6,
    "n_groups": 2,
    "ssm_state_size": 6,
}
ZAMBA2 = {
    "layers_block_type": ["mamba", "hybrid"],
    "n_mamba_heads": 4,
    "mamba_d_state": 6,
    "adapter_rank": 3,
    "tie_word_embeddings": True,
}
ZAMBA = {"architectures": ["Zamba2ForCausalLM"], **ZAMBA2}
ZAMBA1_ALONE = {"num_key_value_heads": 2, "mamba_dt_rank": 3}
ZAMBA1 = {"architectures": ["ZambaForCausalLM"], **ZAMBA1_ALONE}
MAMBA2_ALONE = {"num_heads": 4, "head_dim": 10, "n_groups": 2, "state_size": 6}
NEMOTRON = {"architectures": ["NemotronHForCausalLM"], **NEMOTRON_H}
CODESTRAL = {"architectures": ["Mamba2ForCausalLM"], **MAMBA2_ALONE}
MAMBA = {"architectures": ["MambaForCausalLM"]}
JAMBA = {
    "architectures": ["JambaForCausalLM"],
    "num_key_value_heads": 1,
    "num_experts": 3,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
}
XLSTM = {"architectures": ["xLSTMForCausalLM"], "num_heads": 2}
RWKV = {"architectures": ["RwkvForCausalLM"]}
LFM3 = {"architectures": ["Lfm3ForCausalLM"]}
GRIFFIN = {"architectures": ["RecurrentGemmaForCausalLM"], "head_dim": 8}
GLM4_MOE = {"architectures": ["Glm4MoeForCausalLM"], "head_dim": 8, "n_routed_experts": 9, "num_experts_per_tok": 4}
LATENT = {
    "kv_lora_rank": 12,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 2,
    "v_head_dim": 6,
    "n_routed_experts": 9,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "n_group": 1,
    "topk_group": 1,
}
DEEPSEEK2, DEEPSEEK3, GLM4_MOE_LITE = (
    {"architectures": [f"{name}ForCausalLM"], **LATENT} for name in ("DeepseekV2", "DeepseekV3", "Glm4MoeLite")
)
INDEXED = {**LATENT, "index_topk": 4, "index_head_dim": 6, "index_n_heads": 2}
DEEPSEEK32, GLM_DSA, AXK2 = (
    {"architectures": [f"{name}ForCausalLM"], **INDEXED} for name in ("DeepseekV32", "GlmMoeDsa", "AXK2")
)
KIMI_LINEAR = {
    "architectures": ["KimiLinearForCausalLM"],
    **LATENT,
    "linear_attn_config": {"full_attn_layers": [2], "num_heads": 2, "head_dim": 6},
}
WINDOWS = {**QWEN3, "use_sliding_window": True, "sliding_window": 8}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

KINDS = "default, mrope, linear, llama3, yarn, longrope, dynamic, proportional"
FACTORS = {"short_factor": [1.0, 1.0, 1.0], "long_factor": [1.0, 2.0, 3.0]}

REFUSED = [
    ({"rope_scaling": {"rope_type": kind}}, f"rotary scaling '{kind}' is not supported; supported are {KINDS}.")
    for kind in ("su", "ntk")
] + [
    ({"rope_parameters": {"rope_type": "axial"}}, "rotary scaling 'axial' is not supported"),
    ({"rope_scaling": {**LLAMA3, "factor": None}}, "factor of the rotary embedding is missing in config.json."),
    ({"rope_scaling": {"type": "yarn", "factor": 0}}, "factor of the rotary embedding is not a positive number"),
    ({"rope_scaling": {"type": "yarn", "truncate": "no"}}, "truncate must be true or false in config.json."),
    ({"rope_scaling": {"type": "yarn", "mscale": "1"}}, "mscale has an invalid value in config.json."),
    ({"rope_scaling": {"type": "dynamic"}}, "factor of the rotary embedding is missing in config.json."),
    ({"rope_scaling": {"type": "longrope"}}, "short_factor of the rotary embedding in config.json is not a list of 3"),
    (
        {"rope_scaling": {"type": "longrope", **FACTORS, "original_max_position_embeddings": 8, "long_factor": [1.0]}},
        "long_factor of the rotary embedding in config.json is not a list of 3 positive numbers.",
    ),
    ({"rope_scaling": {"type": "linear"}}, "factor of the rotary embedding is missing"),
    ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor of the rotary embedding is not a positive number"),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor of the rotary embedding is not a positive number"),
    ({"rope_theta": 1}, "rope_theta of the rotary embedding is not a positive number that it can have"),
    ({"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 1e308}}, "beta_fast of the rotary embedding is not a"),
    (
        {"rope_scaling": {"type": "yarn", "factor": 2, "beta_slow": 1e-308}},
        "beta_slow of the rotary embedding is not a",
    ),
    (
        {"rope_scaling": {"type": "longrope", **FACTORS, "original_max_position_embeddings": 1}},
        "original_max_position_embeddings of the rotary embedding is not a positive number that it can have",
    ),
    (
        {**PHI3, "partial_rotary_factor": 1e308},
        "partial_rotary_factor of the rotary embedding is not a positive number",
    ),
    ({"rope_theta": -1.0}, "rope_theta of the rotary embedding is not a positive number"),
    ({"rope_scaling": [2.0]}, "rope_scaling in config.json is not an object."),
    ({"partial_rotary_factor": 0.5}, "a partial_rotary_factor below 1 is not supported"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "a partial_rotary_factor below 1 is not supported"),
    (
        {"hidden_act": "relu2"},
        "activation 'relu2' is not supported; supported are silu, swish, gelu, gelu_python, gelu_new, gelu_fast, ",
    ),
    ({"quantization_config": {"quant_method": "exl2"}}, "quantization format 'exl2' is not supported; there is"),
    (
        {"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}},
        'quantization_config.fmt in config.json is "e5m2"',
    ),
    ({"architectures": ["LlamaForCausaLM"]}, "'LlamaForCausaLM' is not supported; there is LlamaForCausalLM"),
    ({"architectures": ["Qwen2MoForCausalLM"]}, "'Qwen2MoForCausalLM' is not supported; there is Qwen2ForCausalLM"),
    ({"architectures": ["T5"]}, "'T5' is not supported; there is AXK2ForCausalLM, AlbertForMaskedLM, "),
    ({"hidden_size": None}, "hidden_size is missing in config.json."),
    ({"hidden_size": "20"}, "hidden_size has an invalid value in config.json."),
    ({"num_attention_heads": 0}, "num_attention_heads has an invalid value"),
    ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
    ({**MISTRAL, "num_hidden_layers": None}, "num_hidden_layers is missing"),
    ({**MISTRAL, "num_hidden_layers": 2.0}, "num_hidden_layers has an invalid value"),
    ({**MISTRAL, "sliding_window": 0}, "sliding_window has an invalid value"),
    ({"intermediate_size": True}, "intermediate_size has an invalid value"),
    ({"rms_norm_eps": None}, "rms_norm_eps is missing"),
    ({"rms_norm_eps": "1e-6"}, "rms_norm_eps has an invalid value"),
    (
        {"num_attention_heads": 4, "num_key_value_heads": 3},
        "num_attention_heads (4) is not a multiple of num_key_value",
    ),
    ({"head_dim": 5}, "heads of 5 elements cannot be rotated: head_dim must be even"),
    ({**PHI3, "partial_rotary_factor": 0.5}, "3 of 6 elements of a head cannot be rotated"),
    ({**PHI3, "partial_rotary_factor": 2}, "12 of 6 elements of a head cannot be rotated"),
    ({"attention_bias": "no"}, "attention_bias must be true or false in config.json."),
    ({**FALCON, "alibi": 1}, "alibi must be true or false in config.json."),
    ({**BLOOM, "apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm is not"),
    ({**MPT, "attn_config": {"alibi": False}}, "attn_config.alibi must be true in config.json; no other is supported"),
    ({**MPT, "attn_config": {"qk_ln": True}}, "attn_config.qk_ln must be false in config.json; no other is supported"),
    ({**MPT, "attn_config": {"prefix_lm": True}}, "attn_config.prefix_lm must be false in config.json"),
    (
        {**MPT, "attn_config": {"attn_type": "multiquery_attention"}},
        "attn_config.attn_type must be multihead_attention in config.json",
    ),
    ({**MPT, "attn_config": {"clip_qkv": -1}}, "clip_qkv has an invalid value"),
    ({**MPT, "attn_config": {"alibi_bias_max": 0}}, "alibi_bias_max has an invalid value"),
    ({**MPT, "no_bias": False}, "no_bias must be true in config.json; no other is supported for MPT."),
    ({**MPT, "norm_type": "rmsnorm"}, "norm_type must be low_precision_layernorm or layernorm in config.json"),
    ({**MPT, "logit_scale": "inv_sqrt_d_model"}, "logit_scale must be null in config.json"),
    (
        {"architectures": ["Gemma2ForCausalLM"], "use_bidirectional_attention": True},
        "use_bidirectional_attention is not supported",
    ),
    ({**GEMMA3, "query_pre_attn_scalar": 0}, "query_pre_attn_scalar has an invalid value"),
    ({**GEMMA3, "rope_parameters": {"full_attention": {"rope_type": "su"}}}, "rotary scaling 'su' is not supported"),
    ({**GEMMA3, "rope_parameters": {"full_attention": 1}}, "full_attention in config.json is not an object."),
    ({**SMOLLM3, "no_rope_layers": [1]}, "no_rope_layers in config.json must say 0 or 1 for each of 2 layers."),
    ({**QWEN3_MOE, "num_experts": 4}, "num_experts_per_tok (8) is more than num_experts (4)"),
    ({**QWEN3_MOE, "num_experts": 9, "mlp_only_layers": ["1"]}, "mlp_only_layers in config.json is not a list of"),
    ({**QWEN3_MOE, "num_experts": 9, "decoder_sparse_step": 0}, "decoder_sparse_step has an invalid value"),
    ({**GPT_OSS, "swiglu_limit": 0}, "swiglu_limit has an invalid value in config.json."),
    ({**MIXTRAL, "num_local_experts": 2, "num_experts_per_tok": 3}, "num_experts_per_tok (3) is more than num_local"),
    ({**LLAMA4, "layer_types": ["sliding_attention"] * 2}, "must say chunked_attention or full_attention for each of"),
    ({**LLAMA4, "attention_chunk_size": 0}, "attention_chunk_size has an invalid value"),
    ({**LLAMA4, "attn_temperature_tuning": "yes"}, "attn_temperature_tuning must be true or false in config.json."),
    ({**LLAMA4, "moe_layers": ["1"]}, "moe_layers in config.json is not a list of whole numbers"),
    ({**GLM4_MOE, "num_experts_per_tok": 10}, "num_experts_per_tok (10) is more than n_routed_experts (9)"),
    ({**GLM4_MOE, "topk_group": 2}, "topk_group (2) is more than n_group (1)."),
    ({**GLM4_MOE, "n_group": 2}, "n_routed_experts (9) cannot be divided into n_group (2) equal groups of at least 2"),
    ({**GLM4_MOE, "n_group": 9}, "n_routed_experts (9) cannot be divided into n_group (9) equal groups of at least 2"),
    ({**GLM4_MOE, "n_group": 3}, "num_experts_per_tok (4) is more than the 3 experts of topk_group groups."),
    ({**GLM4_MOE, "n_shared_experts": -1}, "n_shared_experts has an invalid value"),
    ({**GLM4_MOE, "first_k_dense_replace": "1"}, "first_k_dense_replace has an invalid value"),
    ({**GLM4_MOE, "use_qk_norm": 1}, "use_qk_norm must be true or false in config.json."),
    ({**GLM4_MOE, "head_dim": 6}, "3 of 6 elements of a head cannot be rotated"),
    ({**DEEPSEEK2, "topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported; supported are greedy, group_"),
    ({**DEEPSEEK2, "norm_topk_prob": True}, "norm_topk_prob is not supported for DeepSeek V2."),
    ({**DEEPSEEK3, "q_lora_rank": 0}, "q_lora_rank has an invalid value"),
    ({**DEEPSEEK3, "qk_rope_head_dim": 3}, "heads of 3 elements cannot be rotated"),
    ({**GLM4_MOE_LITE, "mlp_layer_types": ["dense", "?"]}, "mlp_layer_types in config.json must say dense or sparse"),
    (
        {**QWEN3_5, "linear_num_value_heads": 20},
        "linear_num_value_heads (20) is not a multiple of linear_num_",
    ),
    ({**QWEN3_5, "linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim has an invalid value"),
    ({**QWEN3_5, "layer_types": ["linear_attention", "?"]}, "layer_types in config.json must say linear_attention or"),
    (
        {**LFM2, "layer_types": ["conv", "linear_attention"]},
        "layer_types in config.json must say conv or full_",
    ),
    ({**LFM2, "conv_L_cache": 1}, "conv_L_cache has an invalid value"),
    ({**LFM2, "num_key_value_heads": 2, "full_attn_idxs": "1"}, "full_attn_idxs in config.json is not a list of whole"),
    ({**LFM2, "block_multiple_of": 0}, "block_multiple_of has an invalid value"),
    ({**LFM2_MOE, "num_experts": 3}, "num_experts_per_tok (4) is more than num_experts (3)"),
    ({**DEEPSEEK32, "index_head_dim": 1}, "index_head_dim (1) is less than qk_rope_head_dim (2)."),
    ({**DEEPSEEK32, "index_topk": 0}, "index_topk has an invalid value"),
    ({**AXK2, "n_group": 3, "topk_group": 2}, "n_group is not supported for A.X-K2"),
    ({**GLM_DSA, "indexer_types": ["full", "?"]}, "indexer_types in config.json must say full or shared"),
    ({**GLM_DSA, "indexer_types": ["shared", "full"]}, "the first layer must have an indexer"),
    ({**GLM_DSA, "index_topk_pattern": "F?"}, "index_topk_pattern in config.json must say F or S"),
    ({**GLM_DSA, "index_topk_pattern": 3}, "index_topk_pattern in config.json must say F or S"),
    ({**KIMI_LINEAR, "linear_attn_config": [2]}, "linear_attn_config in config.json is not an object."),
    ({**KIMI_LINEAR, "linear_attn_config": {"full_attn_layers": "2"}}, "full_attn_layers in config.json is not a list"),
    ({**KIMI_LINEAR, "linear_attn_config": {"num_heads": 0}}, "linear_num_heads has an invalid value"),
    (
        {"architectures": ["Ernie4_5_MoeForCausalLM"], "use_bias": True},
        "use_bias is not supported together with experts; it must be false in config.json.",
    ),
    (
        {"architectures": ["PhimoeForCausalLM"], "num_key_value_heads": 1, "num_experts_per_tok": 3},
        "num_experts_per_tok must be 2 in config.json: SparseMixer chooses two experts.",
    ),
    (
        {"architectures": ["OlmoHybridForCausalLM"], "linear_num_key_heads": 3},
        "linear_num_value_heads (4) is not a multiple of linear_num_",
    ),
    ({**BAMBA, "mamba_n_groups": 3}, "mamba_n_heads (4) is not a multiple of mamba_n_groups (3)."),
    ({**BAMBA, "mamba_d_head": 7}, "mamba_n_heads (4) heads are not mamba_expand times hidden_size (40) elements."),
    ({**BAMBA, "mamba_d_conv": 1}, "mamba_d_conv has an invalid value"),
    ({**BAMBA, "hidden_act": "gelu"}, "a hidden_act other than silu is not supported with mamba."),
    ({**BAMBA, "time_step_limit": [0.0]}, "time_step_limit in config.json is not a list of two numbers."),
    ({**GRANITE_HYBRID, "layer_types": ["mamba", "?"]}, "layer_types in config.json must say mamba or attention"),
    ({**HYBRID, "mamba_d_head": 7}, "mamba_n_heads (4) heads are not mamba_d_ssm (24) elements."),
    ({**HYBRID, "key_multiplier": 0}, "key_multiplier has an invalid value"),
    ({**HYBRID, "ssm_multipliers": [1.0] * 4}, "ssm_multipliers in config.json is not a list of 5 numbers."),
    (
        {**HYBRID, "attention_in_multiplier": 0.5, "attention_bias": True},
        "attention_bias is not supported with attention_in_multiplier in config.json.",
    ),
    ({**ZAMBA, "layers_block_type": ["hybrid", "?"]}, "layers_block_type in config.json must say mamba or hybrid"),
    ({**ZAMBA, "n_mamba_heads": 3}, "mamba_expand times hidden_size (40) is not a multiple of n_mamba_heads (3)"),
    ({**ZAMBA, "tie_word_embeddings": False}, "tie_word_embeddings must be true in config.json: without it, no"),
    ({**ZAMBA, "use_long_context": True}, "use_long_context is not supported."),
    ({**ZAMBA1, "n_mamba_heads": 3}, "mamba_expand times hidden_size (40) is not a multiple of n_mamba_heads (3)."),
    ({**ZAMBA1, "hidden_mamba_act": "gelu"}, "a hidden_mamba_act other than silu is not supported."),
    ({**ZAMBA1, "attention_hidden_size": 30}, "an attention_hidden_size other than twice hidden_size is not"),
    ({**MINIMAX, "layer_types": ["full_attention", "?"]}, "layer_types in config.json must say linear_attention or"),
    ({**MINIMAX, "mlp_alpha_factor": 1e-200}, "mlp_alpha_factor has an invalid value"),
    ({**MINIMAX, "hidden_act": "gelu"}, "a hidden_act other than silu is not supported with lightning attention."),
    ({**NEMOTRON, "layers_block_type": ["mamba", "?"]}, "layers_block_type in config.json must say mamba, attention"),
    (
        {**NEMOTRON, "layers_block_type": None, "hybrid_override_pattern": "M?"},
        "layers_block_type in config.json must say mamba, attention",
    ),
    (
        {**NEMOTRON, "layers_block_type": ["moe"], "moe_latent_size": 8, "mlp_bias": True},
        "mlp_bias is not supported with moe_latent_size in config.json.",
    ),
    ({**NEMOTRON, "layers_block_type": 3}, "layers_block_type in config.json must say mamba, attention"),
    ({**NEMOTRON, "n_groups": 3}, "the number of mamba's heads (4) is not a multiple of n_groups (3)."),
    ({**NEMOTRON, "mlp_hidden_act": "silu"}, "an mlp_hidden_act other than relu2 is not supported."),
    ({**NEMOTRON, "mamba_hidden_act": "gelu"}, "mamba_hidden_act other than silu is not supported with mamba."),
    ({**CODESTRAL, "head_dim": 9}, "num_heads (4) heads are not expand times hidden_size (40) elements."),
    ({**MAMBA, "hidden_act": "gelu"}, "a hidden_act other than silu is not supported with mamba."),
    ({**MAMBA, "conv_kernel": 1}, "conv_kernel has an invalid value"),
    ({**MAMBA, "time_step_rank": "many"}, "time_step_rank has an invalid value"),
    ({**JAMBA, "hidden_act": "gelu"}, "a hidden_act other than silu is not supported with mamba."),
    ({**JAMBA, "attn_layer_offset": 2}, "attn_layer_offset (2) is not below attn_layer_period (2)."),
    ({**JAMBA, "expert_layer_period": 0}, "expert_layer_period has an invalid value"),
    ({**JAMBA, "num_experts_per_tok": 4}, "num_experts_per_tok (4) is more than num_experts (3)."),
    ({**GRIFFIN, "hidden_activation": "silu"}, "a hidden_activation other than gelu_pytorch_tanh is not supported for"),
    ({**GRIFFIN, "block_types": ["conv"]}, "block_types in config.json must be a list of recurrent and attention."),
    ({**GRIFFIN, "lru_width": 21}, "lru_width (21) is not a multiple of num_attention_heads (4)."),
    ({**XLSTM, "use_bias": True}, "use_bias is not supported for xLSTM: its norms would have biases."),
    ({**XLSTM, "weight_mode": "fused"}, "a weight_mode other than single is not supported."),
    ({**XLSTM, "num_heads": 3}, "qk_dim_factor of hidden_size is 10 elements, which num_heads (3) does not divide."),
    ({**RWKV, "rescale_every": 2.5}, "rescale_every in config.json is not a whole number."),
    ({**LFM3, "attention_bias": True}, "attention_bias is not supported together with use_attention_gate."),
    (
        {**LFM3, "layer_types": ["conv"]},
        "layer_types in config.json must say conv, sliding_attention, full_attention for",
    ),
    ({**LFM3, "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 2}}}, "par"),
    ({**WINDOWS, "layer_types": ["sliding_attention"]}, "layer_types in config.json must say sliding_attention or"),
    ({**WINDOWS, "layer_types": ["sliding_attention", "chunked_attention"]}, "layer_types in config.json must say"),
    ({**WINDOWS, "layer_types": 3}, "layer_types in config.json must say"),
    ({**WINDOWS, "max_window_layers": "1"}, "max_window_layers has an invalid value"),
]


@pytest.mark.parametrize(("differs", "message"), REFUSED)
def test_refused_by_name(tmp_path, differs, message):
    folder = config_only(tmp_path, **differs)
    with pytest.raises(ModelError) as raised:
        Engine(dummy_config(folder))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


NEEDED = {
    "AXK2ForCausalLM": INDEXED,
    "BambaForCausalLM": {**MAMBA2, "num_key_value_heads": 1, "partial_rotary_factor": 1.0},
    "DeepseekV2ForCausalLM": LATENT,
    "DeepseekV3ForCausalLM": LATENT,
    "DeepseekV32ForCausalLM": INDEXED,
    "Ernie4_5ForCausalLM": {"head_dim": 8, "num_key_value_heads": 1},
    "Ernie4_5_MoeForCausalLM": {"num_key_value_heads": 1, "moe_intermediate_size": 12},
    "FalconForCausalLM": {"hidden_size": 24},
    "FalconH1ForCausalLM": FALCON_H1,
    "Glm4MoeForCausalLM": {"head_dim": 8},
    "Glm4MoeLiteForCausalLM": LATENT,
    "GlmMoeDsaForCausalLM": INDEXED,
    "JambaForCausalLM": JAMBA,
    "KimiLinearForCausalLM": KIMI_LINEAR,
    "Lfm2ForCausalLM": {"layer_types": ["conv", "full_attention"]},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "GraniteMoeHybridForCausalLM": MAMBA2,
    "Llama4ForCausalLM": LLAMA4,
    "Mamba2ForCausalLM": MAMBA2_ALONE,
    "MiniMaxForCausalLM": MINIMAX,
    "MiniMaxM2ForCausalLM": {"num_key_value_heads": 1, "head_dim": 8, "num_local_experts": 9},
    "NemotronHForCausalLM": NEMOTRON_H,
    "PhimoeForCausalLM": {"num_key_value_heads": 1},
    "Qwen3MoeForCausalLM": {"num_experts": 9},
    "Qwen3NextForCausalLM": {**DELTA_NET, "num_experts": 12},
    "Qwen3_5ForCausalLM": DELTA_NET,
    "Qwen3_5MoeForCausalLM": {**DELTA_NET, "num_experts": 12},
    "RecurrentGemmaForCausalLM": GRIFFIN,
    "YoutuForCausalLM": LATENT,
    "Zamba2ForCausalLM": ZAMBA2,
    "ZambaForCausalLM": ZAMBA1_ALONE,
    "xLSTMForCausalLM": XLSTM,
}


@pytest.mark.parametrize("architecture", NATIVE_MODELS)
def test_the_same_without_the_fault_is_served(tmp_path, architecture):
    folder = config_only(tmp_path, **{**NEEDED.get(architecture, {}), "architectures": [architecture]})
    engine = Engine(dummy_config(folder))
    engine.close()
    assert engine.info.weight_bytes > 0
