"""Each architecture from a GGUF file answers as transformers does from the weights that the file was written from."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Ernie4_5_MoeConfig,
    Ernie4_5_MoeForCausalLM,
    Exaone4Config,
    Exaone4ForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    FalconMambaConfig,
    FalconMambaForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Lfm2MoeConfig,
    Lfm2MoeForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    Mamba2Config,
    Mamba2ForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from tests.models.answers import answers_of
from tests.models.gguf.writer import write_gguf
from tools.parity.compare import Cell
from tools.parity.families import DELTA_NET, FAMILIES, SHARED_EXPERT
from tools.parity.family import Family, maker, save_model
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.through_transformers import THROUGH_TRANSFORMERS

SAME = ("llama2", "llama3", "llama-linear", "llama-yarn", "smollm", "qwen2", "qwen3", "mixtral", "phi3", "phi4-mini")
SAME += ("granite", "gemma", "olmo2", "ernie4.5", "minimax-m2", "qwen3.5", "qwen3.5-moe", "lfm2", "deepseek-v2-lite")
SAME += ("granite4-h", "nemotron-3", "mamba", "jamba", "jamba-dense", "olmo3")
THROUGH = ("gemma3n_text", "gemma4_text", "ministral3", "glm4", "seed_oss", "olmoe", "qwen2_moe", "exaone4")
THROUGH += ("hunyuan_v1_dense", "hunyuan_v1_moe", "cohere", "granitemoe", "granitemoeshared", "dots1", "arcee")
THROUGH += ("nemotron",)
OWN = (
    Family(
        "gemma4-large",
        maker(
            Gemma4TextConfig, Gemma4ForCausalLM, num_hidden_layers=3, sliding_window=7,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"], head_dim=18,
            global_head_dim=24, num_key_value_heads=3, num_global_key_value_heads=2, attention_k_eq_v=True,
            hidden_size_per_layer_input=0, tie_word_embeddings=True,
        ),
    ),
    Family(
        "gemma4-small",
        maker(
            Gemma4TextConfig, Gemma4ForCausalLM, num_hidden_layers=4, num_kv_shared_layers=2, sliding_window=7,
            layer_types=["sliding_attention", "full_attention"] * 2, head_dim=18, global_head_dim=24,
            hidden_size_per_layer_input=10, vocab_size_per_layer_input=101, use_double_wide_mlp=True,
            final_logit_softcapping=3.0, tie_word_embeddings=True,
        ),
    ),
    Family(
        "gemma2",
        maker(
            Gemma2Config, Gemma2ForCausalLM, num_hidden_layers=3, head_dim=18, query_pre_attn_scalar=18,
            sliding_window=9, attn_logit_softcapping=5.0, final_logit_softcapping=6.0, tie_word_embeddings=True,
        ),
    ),
    Family(
        "gemma3",
        maker(
            Gemma3TextConfig, Gemma3ForCausalLM, num_hidden_layers=7, head_dim=18, query_pre_attn_scalar=18,
            sliding_window=9, sliding_window_pattern=6, tie_word_embeddings=True,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 9000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        ),
    ),
    Family(
        "qwen3-moe",
        maker(
            Qwen3MoeConfig, Qwen3MoeForCausalLM, head_dim=18, num_experts=5, num_experts_per_tok=2,
            moe_intermediate_size=44, norm_topk_prob=True, experts_implementation="eager",
        ),
    ),
    Family(
        "nemotron-h",
        maker(
            NemotronHConfig, NemotronHForCausalLM, num_hidden_layers=None, head_dim=20, mamba_num_heads=6,
            mamba_head_dim=18, n_groups=2, ssm_state_size=11, mlp_bias=True, use_bias=True,
            layers_block_type=["mlp", "linear_attention", "full_attention", "linear_attention", "mlp"],
        ),
    ),
    Family(
        "nemotron-3-latent",
        maker(
            NemotronHConfig, NemotronHForCausalLM, num_hidden_layers=None, head_dim=20, mamba_num_heads=6,
            mamba_head_dim=18, n_groups=2, ssm_state_size=11, n_routed_experts=9, num_experts_per_tok=4,
            moe_intermediate_size=44, moe_shared_expert_intermediate_size=36, moe_latent_size=30,
            norm_topk_prob=False, layers_block_type=["linear_attention", "moe", "full_attention"],
            experts_implementation="eager",
        ),
    ),
    Family(
        "falcon-h1",
        maker(
            FalconH1Config, FalconH1ForCausalLM, mamba_d_ssm=108, mamba_n_heads=6, mamba_d_head=18, mamba_n_groups=2,
            mamba_d_state=9, mamba_rms_norm=True, mamba_norm_before_gate=False, embedding_multiplier=1.7,
            lm_head_multiplier=0.6, mlp_multipliers=[0.7, 1.3], key_multiplier=0.6, attention_in_multiplier=1.2,
            attention_out_multiplier=0.8, ssm_multipliers=[0.8, 1.3, 0.7, 1.1, 1.4], ssm_in_multiplier=0.9,
            ssm_out_multiplier=0.6,
        ),
    ),
    Family(
        "falcon-mamba",
        maker(FalconMambaConfig, FalconMambaForCausalLM, state_size=9, time_step_rank=7, tie_word_embeddings=True),
    ),
    Family(
        "mamba2",
        maker(Mamba2Config, Mamba2ForCausalLM, expand=3, num_heads=6, head_dim=36, n_groups=2, state_size=9),
    ),
    Family(
        "exaone4-whole",
        maker(Exaone4Config, Exaone4ForCausalLM, sliding_window=None, layer_types=["full_attention"] * 2),
    ),
    Family("cohere-norms", maker(CohereConfig, CohereForCausalLM, use_qk_norm=True, tie_word_embeddings=True)),
    Family(
        "llama4",
        maker(
            Llama4TextConfig, Llama4ForCausalLM, num_hidden_layers=5, head_dim=18, intermediate_size=44,
            intermediate_size_mlp=84, num_local_experts=5, interleave_moe_layer_step=2,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": 5e5, "factor": 4.0, "low_freq_factor": 1.0,
                "high_freq_factor": 1.0, "original_max_position_embeddings": 32,
            },
        ),
    ),
    Family("starcoder2", maker(Starcoder2Config, Starcoder2ForCausalLM, sliding_window=4096)),
    Family("smollm3", maker(SmolLM3Config, SmolLM3ForCausalLM, num_hidden_layers=5)),
    Family("qwen3-next", maker(Qwen3NextConfig, Qwen3NextForCausalLM, **DELTA_NET, **SHARED_EXPERT)),
    Family(
        "cohere2",
        maker(
            Cohere2Config, Cohere2ForCausalLM, num_hidden_layers=4, head_dim=18, sliding_window=7, logit_scale=0.3,
            tie_word_embeddings=True,
        ),
    ),
    Family(
        "glm4-moe",
        maker(
            Glm4MoeConfig, Glm4MoeForCausalLM, num_hidden_layers=3, head_dim=20, use_qk_norm=True, attention_bias=True,
            n_routed_experts=9, num_experts_per_tok=4, moe_intermediate_size=44, n_shared_experts=2,
            routed_scaling_factor=2.5, first_k_dense_replace=1, experts_implementation="eager",
        ),
    ),
    Family(
        "ernie4.5-moe",
        maker(
            Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM, num_hidden_layers=4, moe_intermediate_size=44,
            moe_num_experts=6, moe_k=2, moe_num_shared_experts=2, moe_layer_start_index=1,
            tie_word_embeddings=True, experts_implementation="eager",
        ),
    ),
    Family(
        "lfm2-moe",
        maker(
            Lfm2MoeConfig, Lfm2MoeForCausalLM, num_hidden_layers=3, layer_types=["conv", "conv", "full_attention"],
            num_dense_layers=1, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=44,
            tie_word_embeddings=True, experts_implementation="eager",
        ),
    ),
    Family(
        "gpt-oss",
        maker(
            GptOssConfig, GptOssForCausalLM, sliding_window=7, layer_types=["sliding_attention", "full_attention"],
            head_dim=18, num_local_experts=5, num_experts_per_tok=2, experts_implementation="eager",
            rope_parameters={
                "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 24,
                "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            },
        ),
    ),
    Family(
        "deepseek-v3",
        maker(
            DeepseekV3Config, DeepseekV3ForCausalLM, num_hidden_layers=3, num_key_value_heads=6, qk_nope_head_dim=12,
            qk_rope_head_dim=6, v_head_dim=10, kv_lora_rank=20, q_lora_rank=28, moe_intermediate_size=44,
            n_routed_experts=9, num_experts_per_tok=4, first_k_dense_replace=1, n_group=3, topk_group=2,
            experts_implementation="eager",
            rope_parameters={
                "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 24,
                "beta_fast": 1.5, "beta_slow": 0.2, "mscale": 0.7, "mscale_all_dim": 0.7,
            },
        ),
    ),
)  # fmt: skip
ALL: dict[str, Family] = {
    **{name: FAMILIES[name] for name in SAME},
    **{name: THROUGH_TRANSFORMERS[name] for name in THROUGH},
    **{family.name: family for family in OWN},
}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    return answers_of(ALL, tmp_path_factory, 6)


@pytest.mark.parametrize("family", ALL)
def test_a_file_answers_as_its_weights_do(oracle, family, tmp_path):
    _, answers = oracle(family)
    model: Any = save_model(ALL[family], tmp_path)
    path = write_gguf(model, tmp_path / "model.gguf")
    subject = Subject(path, PLATFORMS["strict"], answers, ALL[family].max_model_len)
    compared, evidence = MODES["mixed batch"](subject)
    found = Cell.from_answers(("strict", family, "mixed batch"), compared, evidence)
    assert found.ok, found
