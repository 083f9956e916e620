"""A tiny model of each family, and of each kind of rotary embedding. Windows, and the training lengths of scaled rotary
embeddings, are shorter than most prompts."""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers import (
    AXK2Config,
    AXK2ForCausalLM,
    BambaConfig,
    BambaForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    Cohere2Config,
    Cohere2ForCausalLM,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DeepseekV32Config,
    DeepseekV32ForCausalLM,
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    FalconMambaConfig,
    FalconMambaForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    Glm4MoeLiteConfig,
    Glm4MoeLiteForCausalLM,
    GlmMoeDsaConfig,
    GlmMoeDsaForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    JambaConfig,
    JambaForCausalLM,
    KimiLinearConfig,
    KimiLinearForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Lfm2MoeConfig,
    Lfm2MoeForCausalLM,
    Lfm3Config,
    Lfm3ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MiniCPM3Config,
    MiniCPM3ForCausalLM,
    MiniMaxConfig,
    MiniMaxForCausalLM,
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    MptConfig,
    MptForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoHybridConfig,
    OlmoHybridForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    YoutuConfig,
    YoutuForCausalLM,
    Zamba2Config,
    Zamba2ForCausalLM,
    ZambaConfig,
    ZambaForCausalLM,
    xLSTMConfig,
    xLSTMForCausalLM,
)
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from tools.parity.family import MAX_POSITIONS, Family, maker
from tools.parity.published import as_bloom, as_kimi_linear, as_olmo_hybrid, as_zamba

SHORT = 24  # the training length of scaled rotary embeddings, in tokens

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": SHORT,
    "beta_fast": 1.5,  # with beta_slow a ramp from dimension 1.2 to 3.9 of 6
    "beta_slow": 0.2,
}
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.2, 1.5, 1.4],
    "long_factor": [1.0, 1.6, 2.9, 3.7, 5.5, 8.1],
}


_PHIMOE: dict[str, Any] = {
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "experts_implementation": "eager",
}


def _phimoe() -> Any:
    """With longrope for texts longer than in training, whose factors transformers never uses for this type."""
    scales = {"short_mscale": 1.15, "long_mscale": 1.15}
    model = maker(
        PhimoeConfig,
        PhimoeForCausalLM,
        **_PHIMOE,
        attention_bias=True,
        lm_head_bias=True,
        router_jitter_noise=0.4,
        rope_parameters={**_LONGROPE, **scales, "rope_theta": 1e4, "original_max_position_embeddings": SHORT},
    )()
    rotary = model.model.rotary_emb
    rotary.rope_init_fn = partial(rotary.rope_init_fn, seq_len=MAX_POSITIONS)
    return model


DELTA_NET: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 18,
    "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.34},
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 13,
}
SHARED_EXPERT: dict[str, Any] = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 44,
    "shared_expert_intermediate_size": 36,
    "experts_implementation": "eager",
}


_MAMBA2: dict[str, Any] = {
    "num_hidden_layers": 3,
    "mamba_expand": 3,
    "mamba_n_heads": 6,
    "mamba_d_head": 36,
    "mamba_n_groups": 2,
    "mamba_d_state": 9,
}
_NEMOTRON_3: dict[str, Any] = {
    "num_hidden_layers": None,
    "head_dim": 20,
    "mamba_num_heads": 6,
    "mamba_head_dim": 18,
    "n_groups": 2,
    "ssm_state_size": 11,
    "n_routed_experts": 9,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 44,
    "moe_shared_expert_intermediate_size": 36,
    "experts_implementation": "eager",
}
_ZAMBA2: dict[str, Any] = {
    "hidden_size": 60,
    "num_key_value_heads": 6,
    "mamba_d_state": 9,
    "mamba_expand": 3,
    "adapter_rank": 10,
}
_FALCON_H1 = {**_MAMBA2, "mamba_expand": 2, "mamba_d_ssm": 216, "num_hidden_layers": 2}
_JAMBA: dict[str, Any] = {"hidden_size": 68, "head_dim": 18, "mamba_expand": 3, "mamba_d_state": 9}


def _llama(**differs: Any) -> Any:
    return maker(LlamaConfig, LlamaForCausalLM, **differs)


_LATENT: dict[str, Any] = {
    "num_key_value_heads": 6,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 6,
    "v_head_dim": 10,
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "moe_intermediate_size": 44,
    "n_routed_experts": 9,
    "num_experts_per_tok": 4,
    "experts_implementation": "eager",
}
# Fewer tokens than nearly all texts have, and so many heads that hardly a score is 0: of equal scores, transformers
# takes any. A selection is not continuous: where the last score that is selected and the next one are within 1e-6,
# rounding decides, and logits differ by 0.5. With 7 that is so in one of 50 texts of glm-moe-dsa; with 11 the nearest
# are 9e-6 apart, and with 8 those of axk2 3e-6.
_INDEXER: dict[str, Any] = {"index_topk": 7, "index_head_dim": 14, "index_n_heads": 20}


_KIMI: dict[str, Any] = {
    **{name: _LATENT[name] for name in _LATENT if "expert" not in name and "lora" not in name},
    "kv_lora_rank": 20,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "linear_num_heads": 4,
    "linear_head_dim": 15,
    "num_experts": 9,
    "num_experts_per_token": 4,
    "experts_implementation": "eager",
}


def _phi3(**differs: Any) -> Any:
    return maker(Phi3Config, Phi3ForCausalLM, **differs)


def _falcon(**differs: Any) -> Any:
    sizes = {"intermediate_size": None, "num_key_value_heads": None, "ffn_hidden_size": 84}
    return maker(FalconConfig, FalconForCausalLM, **{**sizes, **differs})


def _biased(config_class: Any, model_class: Any, **differs: Any) -> Any:
    """A family with linear biases, whose inner size is four times its width, and which has no field for that and for
    the number of key heads."""
    sizes = {"hidden_size": 66, "intermediate_size": None, "num_key_value_heads": None, "max_position_embeddings": None}
    return maker(config_class, model_class, **{**sizes, "seq_length": MAX_POSITIONS, **differs})


def _mpt(**differs: Any) -> Any:
    """transformers has a function of alibi_bias_max, but its model takes 8 whatever config.json says."""
    as_it_is = _biased(MptConfig, MptForCausalLM, max_seq_len=MAX_POSITIONS, **differs)

    def make() -> Any:
        model = as_it_is()
        most = model.config.attn_config.alibi_bias_max
        model.transformer.build_mpt_alibi_tensor = partial(build_mpt_alibi_tensor, alibi_bias_max=most)
        return model

    return make


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "llama2",
            _llama(hidden_size=60, num_attention_heads=5, num_key_value_heads=5, rms_norm_eps=1e-5),
            shard_bytes=40_000,
        ),
        Family("llama3", _llama(rope_parameters=_LLAMA3_ROPE, tie_word_embeddings=True, rms_norm_eps=1e-5)),
        Family("llama-linear", _llama(rope_parameters={"rope_type": "linear", "factor": 3.0})),
        Family("llama-yarn", _llama(rope_parameters=_YARN)),
        Family(
            "llama-yarn-mscale",
            _llama(rope_parameters={**_YARN, "mscale": 1.2, "mscale_all_dim": 0.7, "truncate": False}),
        ),
        Family(
            "llama-dynamic",
            _llama(
                rope_parameters={"rope_type": "dynamic", "factor": 4.0},
                max_position_embeddings=SHORT,
                fixed_at=MAX_POSITIONS,
            ),
            max_model_len=MAX_POSITIONS,
        ),
        Family("mistral", maker(MistralConfig, MistralForCausalLM, sliding_window=7)),
        Family("qwen2", maker(Qwen2Config, Qwen2ForCausalLM, tie_word_embeddings=True)),
        Family(
            "qwen2-window",
            maker(
                Qwen2Config,
                Qwen2ForCausalLM,
                num_hidden_layers=3,
                use_sliding_window=True,
                sliding_window=9,
                max_window_layers=1,
            ),
        ),
        Family("qwen3", maker(Qwen3Config, Qwen3ForCausalLM, num_key_value_heads=3, head_dim=18)),
        Family(
            "qwen3-moe",
            maker(
                Qwen3MoeConfig,
                Qwen3MoeForCausalLM,
                num_hidden_layers=4,
                head_dim=18,
                num_experts=5,
                num_experts_per_tok=2,
                moe_intermediate_size=44,
                norm_topk_prob=True,
                mlp_only_layers=[1],
                decoder_sparse_step=2,
                experts_implementation="eager",
            ),
        ),
        Family(
            "qwen3-moe-shares",
            maker(
                Qwen3MoeConfig,
                Qwen3MoeForCausalLM,
                num_experts=5,
                num_experts_per_tok=3,
                moe_intermediate_size=44,
                attention_bias=True,
                use_sliding_window=True,
                sliding_window=9,
                experts_implementation="eager",
            ),
        ),
        Family(
            "mixtral",
            maker(
                MixtralConfig,
                MixtralForCausalLM,
                num_local_experts=5,
                num_experts_per_tok=2,
                experts_implementation="eager",
            ),
        ),
        Family(
            "gpt-oss",
            maker(
                GptOssConfig,
                GptOssForCausalLM,
                sliding_window=7,
                layer_types=["sliding_attention", "full_attention"],
                head_dim=18,
                num_local_experts=5,
                num_experts_per_tok=2,
                swiglu_limit=1.0,  # small enough for numbers to reach it
                rope_parameters={
                    "rope_type": "yarn",
                    "rope_theta": 1e6,
                    "factor": 4.0,
                    "original_max_position_embeddings": MAX_POSITIONS // 4,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "truncate": False,
                },
                experts_implementation="eager",
            ),
        ),
        Family(
            "phi3",
            _phi3(rope_parameters=_LONGROPE, original_max_position_embeddings=SHORT, fixed_at=MAX_POSITIONS),
        ),
        Family(
            "phi3-short",
            _phi3(
                rope_parameters=_LONGROPE,
                original_max_position_embeddings=MAX_POSITIONS,
                max_position_embeddings=4 * MAX_POSITIONS,
                sliding_window=9,
            ),
            max_model_len=MAX_POSITIONS,
        ),
        Family(
            "phi4-mini",
            _phi3(
                rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.67},
                tie_word_embeddings=True,
            ),
        ),
        Family(
            "smollm", _llama(hidden_size=54, num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True)
        ),
        Family("smollm3", maker(SmolLM3Config, SmolLM3ForCausalLM, num_hidden_layers=3, no_rope_layer_interval=2)),
        Family(
            "smollm3-window",
            maker(
                SmolLM3Config,
                SmolLM3ForCausalLM,
                num_hidden_layers=3,
                no_rope_layers=[0, 1, 0],
                use_sliding_window=True,
                sliding_window=9,
                attention_bias=True,
                mlp_bias=True,
            ),
        ),
        Family(
            "granite",
            maker(
                GraniteConfig,
                GraniteForCausalLM,
                attention_multiplier=0.11,
                embedding_multiplier=12.0,
                residual_multiplier=0.22,
                logits_scaling=1.5,
                tie_word_embeddings=True,
            ),
        ),
        Family("gemma", maker(GemmaConfig, GemmaForCausalLM, head_dim=18, tie_word_embeddings=True)),
        Family(
            "gemma2",
            maker(
                Gemma2Config,
                Gemma2ForCausalLM,
                num_hidden_layers=3,
                head_dim=18,
                query_pre_attn_scalar=20,
                sliding_window=9,
                attn_logit_softcapping=5.0,
                final_logit_softcapping=6.0,
                tie_word_embeddings=True,
            ),
        ),
        Family(
            "gemma3",
            maker(
                Gemma3TextConfig,
                Gemma3ForCausalLM,
                num_hidden_layers=4,
                head_dim=18,
                query_pre_attn_scalar=20,
                sliding_window=9,
                sliding_window_pattern=3,
                rope_parameters={
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                },
                tie_word_embeddings=True,
            ),
        ),
        Family(
            "llama4",
            maker(
                Llama4TextConfig,
                Llama4ForCausalLM,
                num_hidden_layers=5,
                head_dim=18,
                intermediate_size=44,
                intermediate_size_mlp=84,
                num_local_experts=5,
                interleave_moe_layer_step=2,
                no_rope_layer_interval=3,
                attention_chunk_size=13,
                floor_scale=5,
                attn_scale=0.4,
                rope_parameters={
                    "rope_type": "llama3",
                    "rope_theta": 5e5,
                    "factor": 4.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 1.0,
                    "original_max_position_embeddings": 32,
                },
            ),
        ),
        Family(
            "llama4-plain",
            maker(
                Llama4TextConfig,
                Llama4ForCausalLM,
                num_hidden_layers=3,
                head_dim=18,
                intermediate_size=44,
                intermediate_size_mlp=84,
                num_local_experts=5,
                num_experts_per_tok=2,
                moe_layers=[1, 2],
                no_rope_layers=[1, 0, 1],
                layer_types=["chunked_attention", "chunked_attention", "full_attention"],
                attention_chunk_size=16,
                use_qk_norm=False,
                attn_temperature_tuning=False,
                attention_bias=True,
                tie_word_embeddings=True,
            ),
        ),
        Family(
            "glm4-moe",
            maker(
                Glm4MoeConfig,
                Glm4MoeForCausalLM,
                num_hidden_layers=3,
                head_dim=20,
                use_qk_norm=True,
                attention_bias=True,
                n_routed_experts=9,
                n_group=3,
                topk_group=2,
                num_experts_per_tok=4,
                moe_intermediate_size=44,
                n_shared_experts=2,
                routed_scaling_factor=2.5,
                experts_implementation="eager",
            ),
        ),
        Family(
            "glm4-moe-shares",
            maker(
                Glm4MoeConfig,
                Glm4MoeForCausalLM,
                head_dim=18,
                rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.67},
                first_k_dense_replace=0,
                n_routed_experts=7,
                num_experts_per_tok=5,
                moe_intermediate_size=44,
                norm_topk_prob=False,
                routed_scaling_factor=0.3,
                tie_word_embeddings=True,
                experts_implementation="eager",
            ),
        ),
        Family(
            "qwen3-next",
            maker(Qwen3NextConfig, Qwen3NextForCausalLM, **DELTA_NET, **SHARED_EXPERT, mlp_only_layers=[1]),
        ),
        Family(
            "qwen3.5",
            maker(Qwen3_5TextConfig, Qwen3_5ForCausalLM, **DELTA_NET, attention_bias=True, tie_word_embeddings=True),
        ),
        Family("qwen3.5-moe", maker(Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM, **DELTA_NET, **SHARED_EXPERT)),
        Family(
            "granite4-h",
            maker(
                GraniteMoeHybridConfig,
                GraniteMoeHybridForCausalLM,
                **_MAMBA2,
                layer_types=["linear_attention", "full_attention", "linear_attention"],
                intermediate_size=44,
                shared_intermediate_size=36,
                num_local_experts=5,
                attention_multiplier=0.11,
                embedding_multiplier=12.0,
                residual_multiplier=0.22,
                logits_scaling=1.5,
                experts_implementation="eager",
            ),
        ),
        Family(
            "granite4-h-dense",
            maker(
                GraniteMoeHybridConfig,
                GraniteMoeHybridForCausalLM,
                **{**_MAMBA2, "mamba_n_groups": 1},
                layer_types=["linear_attention", "linear_attention", "full_attention"],
                shared_intermediate_size=84,
                num_local_experts=0,
                position_embedding_type="rope",
                mamba_proj_bias=True,
                time_step_limit=[0.2, 0.9],
                tie_word_embeddings=True,
            ),
        ),
        Family(
            "bamba",
            maker(
                BambaConfig,
                BambaForCausalLM,
                **_MAMBA2,
                attn_layer_indices=[1],
                mamba_conv_bias=False,
                attention_bias=True,
                mlp_bias=True,
            ),
        ),
        Family(
            "falcon-h1",
            maker(
                FalconH1Config,
                FalconH1ForCausalLM,
                **_FALCON_H1,
                num_key_value_heads=2,
                embedding_multiplier=1.7,
                lm_head_multiplier=0.6,
                mlp_multipliers=[0.7, 1.3],
                key_multiplier=0.6,
                attention_in_multiplier=1.2,
                attention_out_multiplier=0.8,
                ssm_multipliers=[0.8, 1.3, 0.7, 1.1, 1.4],
                ssm_in_multiplier=0.9,
                ssm_out_multiplier=0.6,
                time_step_limit=[0.2, 0.9],
                tie_word_embeddings=True,
            ),
        ),
        Family(
            "falcon-h1-biases",
            maker(
                FalconH1Config,
                FalconH1ForCausalLM,
                **_FALCON_H1,
                mamba_rms_norm=True,
                mamba_conv_bias=False,
                mamba_proj_bias=True,
                projectors_bias=True,
                attention_bias=True,
                mlp_bias=True,
                mlp_multipliers=[1.0, 1.3],
                key_multiplier=0.6,
                attention_out_multiplier=0.8,
                ssm_multipliers=[0.8, 1.3, 0.7, 1.1, 1.4],
                ssm_out_multiplier=0.6,
            ),
        ),
        Family(
            "zamba",
            maker(
                ZambaConfig,
                ZambaForCausalLM,
                hidden_size=68,
                num_hidden_layers=6,
                attn_layer_period=2,
                attn_layer_offset=1,
                n_mamba_heads=2,
                mamba_expand=3,
                mamba_d_state=9,
                mamba_dt_rank=7,
                mamba_proj_bias=True,
                tie_word_embeddings=True,
            ),
            publish=as_zamba,
        ),
        Family(
            "zamba2",
            maker(
                Zamba2Config,
                Zamba2ForCausalLM,
                **_ZAMBA2,
                num_hidden_layers=6,
                layers_block_type=["linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid", "hybrid"],
                num_mem_blocks=2,
                n_mamba_heads=6,
                mamba_ngroups=2,
                time_step_min=0.5,
                add_bias_linear=True,
                tie_word_embeddings=True,
            ),
        ),
        Family(
            "zamba2-adapters",
            maker(
                Zamba2Config,
                Zamba2ForCausalLM,
                **_ZAMBA2,
                num_hidden_layers=3,
                layers_block_type=["hybrid", "linear_attention", "hybrid"],
                n_mamba_heads=4,
                use_shared_attention_adapter=True,
                use_mem_rope=True,
                tie_word_embeddings=True,
            ),
        ),
        Family(
            "nemotron-h",
            maker(
                NemotronHConfig,
                NemotronHForCausalLM,
                layers_block_type=["mlp", "linear_attention", "full_attention", "linear_attention", "mlp"],
                num_hidden_layers=None,
                head_dim=20,
                mamba_num_heads=6,
                mamba_head_dim=18,
                n_groups=2,
                ssm_state_size=11,
                time_step_min=0.5,
                mlp_bias=True,
                use_bias=True,
            ),
        ),
        Family(
            "nemotron-3",
            maker(
                NemotronHConfig,
                NemotronHForCausalLM,
                **_NEMOTRON_3,
                layers_block_type=["linear_attention", "moe", "full_attention", "moe"],
                n_group=3,
                topk_group=2,
                routed_scaling_factor=2.5,
                mlp_bias=True,
            ),
        ),
        Family(
            "nemotron-3-latent",
            maker(
                NemotronHConfig,
                NemotronHForCausalLM,
                **_NEMOTRON_3,
                layers_block_type=["linear_attention", "moe", "mlp", "moe"],
                moe_latent_size=30,
                norm_topk_prob=False,
            ),
        ),
        Family(
            "mamba2",
            maker(
                Mamba2Config,
                Mamba2ForCausalLM,
                expand=3,
                num_heads=6,
                head_dim=36,
                n_groups=2,
                state_size=9,
                time_step_limit=(0.0, 0.9),
                tie_word_embeddings=True,
            ),
        ),
        Family(
            "mamba",
            maker(
                MambaConfig,
                MambaForCausalLM,
                state_size=9,
                time_step_rank=7,
                conv_kernel=3,
                use_bias=True,
                use_conv_bias=False,
                tie_word_embeddings=True,
            ),
        ),
        Family(
            "falcon-mamba",
            maker(FalconMambaConfig, FalconMambaForCausalLM, num_hidden_layers=3, state_size=9, mixer_rms_eps=1e-3),
        ),
        Family(
            "jamba",
            maker(
                JambaConfig,
                JambaForCausalLM,
                **_JAMBA,
                num_hidden_layers=4,
                attn_layer_period=3,
                attn_layer_offset=1,
                num_experts=5,
                mamba_dt_rank=7,
                mamba_proj_bias=True,
                rms_norm_eps=1e-3,
                experts_implementation="eager",
            ),
        ),
        Family(
            "jamba-dense",
            maker(
                JambaConfig,
                JambaForCausalLM,
                **_JAMBA,
                num_hidden_layers=3,
                attn_layer_period=2,
                attn_layer_offset=0,
                num_experts=1,
                num_experts_per_tok=1,
                mamba_conv_bias=False,
                tie_word_embeddings=True,
            ),
        ),
        Family(
            "recurrent-gemma",
            maker(
                RecurrentGemmaConfig,
                RecurrentGemmaForCausalLM,
                num_hidden_layers=3,
                block_types=["recurrent", "attention"],
                lru_width=84,
                attention_window_size=20,
                attention_bias=True,
                conv1d_width=3,
                logits_soft_cap=2.0,
                tie_word_embeddings=True,
            ),
        ),
        Family(
            "rwkv",
            maker(
                RwkvConfig,
                RwkvForCausalLM,
                num_hidden_layers=3,
                attention_hidden_size=60,
                rescale_every=1,
                layer_norm_epsilon=1e-2,
            ),
        ),
        Family(
            "xlstm",
            maker(
                xLSTMConfig,
                xLSTMForCausalLM,
                num_hidden_layers=3,
                num_heads=6,
                v_dim_factor=1.5,
                ffn_proj_factor=1.2,
                ffn_round_up_to_multiple_of=9,
                gate_soft_cap=4.0,
                output_logit_soft_cap=3.0,
                norm_eps=1e-3,
                eps=1e-2,
                chunk_size=128,  # longer than texts: transformers' own chunks fail
            ),
        ),
        Family(
            "deepseek-v2",
            maker(
                DeepseekV2Config,
                DeepseekV2ForCausalLM,
                **_LATENT,
                first_k_dense_replace=1,
                topk_method="group_limited_greedy",
                n_group=3,
                topk_group=2,
                routed_scaling_factor=4.0,
                attention_bias=True,
            ),
        ),
        Family(
            "deepseek-v2-lite",
            maker(
                DeepseekV2Config,
                DeepseekV2ForCausalLM,
                **{**_LATENT, "q_lora_rank": None},
                rope_parameters={**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
                tie_word_embeddings=True,
            ),
        ),
        Family(
            "deepseek-v3",
            maker(
                DeepseekV3Config,
                DeepseekV3ForCausalLM,
                **_LATENT,
                first_k_dense_replace=1,
                n_group=3,
                topk_group=2,
                rope_parameters={**_YARN, "mscale": 1.2, "mscale_all_dim": 0.7},
            ),
        ),
        Family(
            "glm4-moe-lite",
            maker(
                Glm4MoeLiteConfig,
                Glm4MoeLiteForCausalLM,
                **_LATENT,
                mlp_layer_types=["sparse", "dense"],
                n_shared_experts=2,
                rope_interleave=False,
            ),
        ),
        Family(
            "deepseek-v3.2",
            maker(
                DeepseekV32Config,
                DeepseekV32ForCausalLM,
                **_LATENT,
                **_INDEXER,
                first_k_dense_replace=1,
                n_group=3,
                topk_group=2,
                rope_parameters={**_YARN, "mscale": 1.2, "mscale_all_dim": 0.7},
            ),
        ),
        Family(
            "axk2",
            maker(
                AXK2Config,
                AXK2ForCausalLM,
                **_LATENT,
                **{**_INDEXER, "index_topk": 8},
                num_hidden_layers=3,
                mlp_layer_types=["sparse", "dense", "sparse"],
                gated_norm_rank=10,
                attention_bias=True,
                rope_parameters={**_YARN, "mscale": 1.2, "mscale_all_dim": 0.7},
            ),
        ),
        Family(
            "glm-moe-dsa",
            maker(
                GlmMoeDsaConfig,
                GlmMoeDsaForCausalLM,
                **_LATENT,
                **{**_INDEXER, "index_topk": 11},
                num_hidden_layers=4,
                indexer_types=["full", "shared", "full", "shared"],
                mlp_layer_types=["dense", "sparse", "dense", "sparse"],
            ),
        ),
        Family(
            "minicpm3",
            maker(
                MiniCPM3Config,
                MiniCPM3ForCausalLM,
                **{name: _LATENT[name] for name in _LATENT if "expert" not in name and "moe" not in name},
                scale_emb=3.0,
                scale_depth=1.1,
                dim_model_base=50,
            ),
        ),
        Family(
            "minimax",
            maker(
                MiniMaxConfig,
                MiniMaxForCausalLM,
                num_hidden_layers=4,
                layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
                head_dim=14,
                block_size=16,
                num_local_experts=5,
                full_attn_alpha_factor=3.5,
                full_attn_beta_factor=0.9,
                linear_attn_alpha_factor=2.5,
                linear_attn_beta_factor=1.2,
                mlp_alpha_factor=1.7,
                mlp_beta_factor=0.8,
                rms_norm_eps=1e-2,
                experts_implementation="eager",
            ),
        ),
        Family(
            "minimax-m2",
            maker(
                MiniMaxM2Config,
                MiniMaxM2ForCausalLM,
                head_dim=18,
                rotary_dim=6,
                num_local_experts=5,
                num_experts_per_tok=2,
                experts_implementation="eager",
            ),
        ),
        Family(
            "kimi-linear",
            maker(
                KimiLinearConfig,
                KimiLinearForCausalLM,
                **{**_KIMI, "layer_types": ["linear_attention", "full_attention"] * 2},
                num_hidden_layers=4,
                num_expert_group=3,
                topk_group=2,
                num_shared_experts=2,
            ),
        ),
        Family(
            "kimi-linear-published",
            maker(
                KimiLinearConfig,
                KimiLinearForCausalLM,
                **_KIMI,
                num_hidden_layers=3,
                q_lora_rank=28,
                attention_bias=True,
                moe_renormalize=False,
            ),
            publish=as_kimi_linear,
        ),
        Family(
            "lfm2",
            maker(
                Lfm2Config,
                Lfm2ForCausalLM,
                num_hidden_layers=4,
                full_attn_idxs=[1, 3],
                intermediate_size=130,
                block_multiple_of=22,
                tie_word_embeddings=True,
            ),
        ),
        Family(
            "lfm2-bias",
            maker(
                Lfm2Config,
                Lfm2ForCausalLM,
                num_hidden_layers=3,
                layer_types=["conv", "full_attention", "conv"],
                conv_L_cache=5,
                conv_bias=True,
                block_auto_adjust_ff_dim=False,
            ),
        ),
        Family(
            "lfm2-moe",
            maker(
                Lfm2MoeConfig,
                Lfm2MoeForCausalLM,
                num_hidden_layers=3,
                layer_types=["conv", "conv", "full_attention"],
                num_dense_layers=1,
                num_experts=7,
                num_experts_per_tok=3,
                moe_intermediate_size=44,
                routed_scaling_factor=1.3,
                tie_word_embeddings=True,
                experts_implementation="eager",
            ),
        ),
        Family(
            "lfm3",
            maker(
                Lfm3Config,
                Lfm3ForCausalLM,
                num_hidden_layers=4,
                layer_types=["conv", "sliding_attention", "full_attention", "conv"],
                head_dim=20,
                sliding_window=20,
                conv_L_cache=5,
                tie_word_embeddings=True,
            ),
        ),
        Family(
            "lfm3-plain",
            maker(
                Lfm3Config,
                Lfm3ForCausalLM,
                num_hidden_layers=3,
                layer_types=["full_attention", "conv", "sliding_attention"],
                head_dim=12,
                conv_bias=True,
                attention_bias=True,
                use_sandwich_norm=False,
                use_attention_gate=False,
                norm_eps=1e-3,
            ),
        ),
        Family(
            "youtu",
            maker(
                YoutuConfig,
                YoutuForCausalLM,
                **{name: _LATENT[name] for name in _LATENT if "expert" not in name and "moe" not in name},
                attention_bias=True,
                tie_word_embeddings=True,
            ),
        ),
        Family("olmo2", maker(Olmo2Config, Olmo2ForCausalLM, attention_bias=True)),
        Family(
            "olmo3",
            maker(
                Olmo3Config,
                Olmo3ForCausalLM,
                num_hidden_layers=3,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                sliding_window=9,
                rope_parameters={
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                    "full_attention": _YARN,
                },
            ),
        ),
        Family(
            "olmo-hybrid",
            maker(
                OlmoHybridConfig,
                OlmoHybridForCausalLM,
                num_hidden_layers=4,
                layer_types=["linear_attention", "full_attention"] * 2,
                linear_num_key_heads=2,
                linear_num_value_heads=6,
                linear_key_head_dim=10,
                linear_value_head_dim=13,
                attention_bias=True,
            ),
            publish=as_olmo_hybrid,
        ),
        Family(
            "olmo-hybrid-unturned",
            maker(
                OlmoHybridConfig,
                OlmoHybridForCausalLM,
                num_hidden_layers=3,
                rope_parameters={"rope_type": "default", "rope_theta": None},
                linear_value_head_dim=9,
                linear_allow_neg_eigval=False,
            ),
        ),
        Family(
            "cohere2",
            maker(
                Cohere2Config,
                Cohere2ForCausalLM,
                num_hidden_layers=3,
                head_dim=18,
                sliding_window=7,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                attention_bias=True,
                logit_scale=0.3,
                tie_word_embeddings=True,
            ),
        ),
        Family("ernie4.5", maker(Ernie4_5Config, Ernie4_5ForCausalLM, head_dim=18, use_bias=True)),
        Family(
            "ernie4.5-moe",
            maker(
                Ernie4_5_MoeConfig,
                Ernie4_5_MoeForCausalLM,
                num_hidden_layers=5,
                moe_intermediate_size=44,
                moe_num_experts=6,
                moe_k=2,
                moe_num_shared_experts=2,
                moe_layer_start_index=1,
                moe_layer_end_index=3,
                moe_layer_interval=2,
                tie_word_embeddings=True,
                experts_implementation="eager",
            ),
        ),
        Family("phimoe", _phimoe),
        Family(
            "phimoe-window",
            maker(PhimoeConfig, PhimoeForCausalLM, **_PHIMOE, sliding_window=9, router_jitter_noise=0.05),
        ),
        Family("falcon-7b", _falcon(num_attention_heads=4, multi_query=True)),
        Family("falcon-40b", _falcon(new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=True)),
        Family(
            "falcon-11b",
            _falcon(new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, bias=True),
        ),
        Family("falcon-rotary", _falcon(multi_query=False, parallel_attn=False, bias=True)),
        Family(
            "falcon-rw",
            _falcon(
                num_attention_heads=4,  # whose slopes are exact in bfloat16, to which transformers rounds all biases
                multi_query=False,
                parallel_attn=False,
                bias=True,
                alibi=True,
                attn_implementation="sdpa",  # eager attention adds the biases twice
            ),
        ),
        Family("bloom", _biased(BloomConfig, BloomForCausalLM, tie_word_embeddings=True), publish=as_bloom),
        Family("bloom-untied", _biased(BloomConfig, BloomForCausalLM, num_attention_heads=2)),
        Family(
            "mpt",
            _mpt(attn_config={"clip_qkv": 0.9, "softmax_scale": 0.4, "alibi_bias_max": 5}, tie_word_embeddings=True),
        ),
        Family("mpt-untied", _mpt(num_attention_heads=2)),
    )
}
