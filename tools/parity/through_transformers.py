"""Tiny random models of the types that run through transformers' code, as varied as those types are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tools.parity.family import MAX_POSITIONS, SIZES, Family
from tools.parity.published import as_longcat_flash

_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 44}
_ROUTED = {"n_routed_experts": 6, "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}
_WINDOWS = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}

_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": MAX_POSITIONS // 4,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}


_DECODER = {"is_decoder": True}
_PADDED = {
    "is_decoder": True,
    "pad_token_id": SIZES["vocab_size"],
    "vocab_size": SIZES["vocab_size"] + 1,
    "max_position_embeddings": SIZES["vocab_size"] + 1 + MAX_POSITIONS,
}
"""Of RoBERTa and its relatives, whose tables of positions begin behind as many rows as the padding token says: it is
the last token here, so that no prompt has it."""
_BART = {
    "d_model": 72,
    "decoder_layers": 2,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 84,
    "is_decoder": True,
    "is_encoder_decoder": False,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
}
"""Of decoders that BART's relatives are trained with an encoder for, alone."""

_GEMMA = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 10,
    "vocab_size_per_layer_input": 101,
}
"""With an embedding of tokens for each layer, and layers that share keys and values."""

_TEXT = {**SIZES, **_WINDOWS, "head_dim": 18, "global_head_dim": 24, "pad_token_id": 0}
_SIGHT = {
    "hidden_size": 24,
    "intermediate_size": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
"""Of what sees images, which texts do not reach."""
_HEARING = {
    "hidden_size": 24,
    "intermediate_size": 28,
    "num_attention_heads": 2,
    "num_blocks": 1,
    "ext_pw_out_channel": 24,
    "depthwise_separable_out_channel": 24,
    "nemo_conv_channels": 8,
    "input_size": 16,
}

TYPES: dict[str, dict[str, Any]] = {
    "afmoe": {
        **_EXPERTS,
        **_WINDOWS,
        "num_experts": 5,
        "num_local_experts": 5,
        "n_group": 1,
        "topk_group": 1,
        "num_dense_layers": 1,
        "head_dim": 18,
        "num_shared_experts": 1,
    },
    "apertus": {},
    "arcee": {},
    "aria_text": {"moe_num_experts": 5, "moe_topk": 2, "moe_num_shared_experts": 1, "head_dim": 12},
    "axk1": {
        **_EXPERTS,
        "n_routed_experts": 6,
        "n_group": 2,
        "topk_group": 1,
        "kv_lora_rank": 20,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 10,
        "v_head_dim": 14,
        "num_key_value_heads": 6,
        "mlp_layer_types": ["dense", "sparse"],
    },
    "bart": {**_BART, "scale_embedding": True},
    "beam": {**_EXPERTS, **_WINDOWS, "num_experts": 5, "head_dim": 18},
    "bert": {**_DECODER},
    "bert-generation": {**_DECODER},
    "biogpt": {},
    "bitnet": {},
    "blenderbot": {**_BART},
    "blenderbot-small": {**_BART},
    "camembert": {**_PADDED},
    "codegen": {"num_attention_heads": 4, "rotary_dim": 6},
    "cohere": {},
    "cohere2_moe": {**_WINDOWS, **_EXPERTS, "num_experts": 5, "head_dim": 18},
    "ctrl": {"dff": 84, "n_ctx": 96},
    "cwm": {**_WINDOWS, "head_dim": 18, "bos_token_id": 1},
    "data2vec-text": {**_PADDED},
    "diffllama": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "dots1": {**_EXPERTS, **_ROUTED, "num_attention_heads": 6, "head_dim": 18},
    "electra": {**_DECODER, "embedding_size": 40},
    "ernie": {**_DECODER},
    "exaone4": {**_WINDOWS},
    "exaone_moe": {
        **_WINDOWS,
        **_EXPERTS,
        "num_experts": 6,
        "n_group": 1,
        "topk_group": 1,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "head_dim": 18,
        "mlp_layer_types": ["dense", "sparse"],
    },
    "flex_olmo": {"num_experts": 5, "num_experts_per_tok": 2},
    # heads that the kernels of processors take, so that they see the sinks, which stay in float32 in any dtype
    "flint": {
        **_EXPERTS,
        "head_dim": 16,
        "mlp_only_layers": [0],
        "shared_expert_intermediate_size": 52,
    },
    "fuyu": {},
    "gemma4_unified": {"text_config": _TEXT, "vision_config": {"mm_embed_dim": 24, "mm_posemb_size": 12}},
    "gemma4_unified_text": {**_WINDOWS, "head_dim": 18},
    "gemma3n_text": {
        **_GEMMA,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
        "laurel_rank": 5,
        "altup_num_inputs": 3,
        "final_logit_softcapping": 3.0,
        "head_dim": 18,
    },
    "gemma4_text": {
        **_GEMMA,
        "head_dim": 18,
        "global_head_dim": 24,
        "enable_moe_block": True,
        "num_experts": 5,
        "top_k_experts": 2,
        "moe_intermediate_size": 44,
        "final_logit_softcapping": 3.0,
    },
    "git": {"vision_config": _SIGHT, "num_image_with_embedding": 2},
    "glm": {"head_dim": 18},
    "glm4": {"head_dim": 18},
    "gpt2": {"num_hidden_layers": 3},
    "gpt_bigcode": {},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 7},
    "gpt_neox": {},
    "gpt_neox_japanese": {"partial_rotary_factor": 0.5},
    "gptj": {"rotary_dim": 6},
    "granite_swa": {**_WINDOWS},
    "granitemoe": {"num_local_experts": 5, "logits_scaling": 3.0, "attention_multiplier": 0.2},
    "granitemoeshared": {"num_local_experts": 5, "num_experts_per_tok": 2, "shared_intermediate_size": 52},
    "helium": {"head_dim": 12},
    "hrm_text": {"head_dim": 18, "H_cycles": 2, "L_cycles": 2, "prefix_lm": False},
    "hunyuan_v1_dense": {"head_dim": 18},
    "hunyuan_v1_moe": {"num_experts": 5, "moe_topk": 2, "head_dim": 18, "num_shared_expert": 1},
    "hy_v3": {**_EXPERTS, "num_experts": 5, "head_dim": 18, "first_k_dense_replace": 1, "num_shared_experts": 1},
    "hyperclovax": {},
    "jais2": {"head_dim": 12},
    "jetmoe": {"kv_channels": 18, "num_local_experts": 4, "num_experts_per_tok": 2},
    "kolibri1": {**_EXPERTS, **_WINDOWS, "num_experts": 5, "head_dim": 18},
    "laguna": {**_EXPERTS, "num_experts": 5, "head_dim": 18},
    "longcat_flash": {
        "num_layers": 2,
        "num_hidden_layers": 4,
        "ffn_hidden_size": 84,
        "expert_ffn_hidden_size": 44,
        "n_routed_experts": 5,
        "zero_expert_num": 3,
        "moe_topk": 3,
        "kv_lora_rank": 20,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 10,
        "v_head_dim": 14,
        "head_dim": 8,
        "num_key_value_heads": 6,
    },
    "marian": {**_BART},
    "mbart": {**_BART},
    "megatron-bert": {**_DECODER},
    "mellum": {**_EXPERTS, **_WINDOWS, "num_experts": 5, "head_dim": 18},
    "minimax_m3_vl_text": {
        **_EXPERTS,
        "num_hidden_layers": 3,
        "num_local_experts": 5,
        "shared_intermediate_size": 52,
        "dense_intermediate_size": 84,
        "head_dim": 18,
        "rotary_dim": 6,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "index_n_heads": 2,
        "index_head_dim": 10,
        "index_block_size": 4,
        "index_topk_blocks": MAX_POSITIONS // 4,
    },
    "mimo_v2_flash": {
        **_EXPERTS,
        **_WINDOWS,
        "n_routed_experts": 6,
        "num_attention_heads": 8,
        "head_dim": 18,
        "v_head_dim": 14,
        "mlp_layer_types": ["dense", "sparse"],
    },
    "ministral": {**_WINDOWS, "head_dim": 18},
    "ministral3": {"head_dim": 18, "rope_parameters": _YARN},
    "modernbert-decoder": {
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "local_attention": 14,
        "global_attn_every_n_layers": 2,
    },
    "moshi": {"ffn_dim": 84, "sliding_window": 9},
    "mvp": {**_BART, "scale_embedding": True},
    "nanochat": {},
    "nemotron": {"head_dim": 18},
    "olmo": {"clip_qkv": 2.5},
    "olmoe": {"num_experts": 5, "num_experts_per_tok": 2},
    "openai-gpt": {},
    "opt": {"ffn_dim": 84, "word_embed_proj_dim": 72},
    "pegasus": {**_BART},
    "persimmon": {"partial_rotary_factor": 0.5},
    "phi": {},
    "phi4_multimodal": {"vision_config": {**_SIGHT, "crop_size": 28}, "audio_config": _HEARING},
    "plbart": {**_BART},
    "qwen2_moe": {**_EXPERTS, "num_experts": 5, "shared_expert_intermediate_size": 52},
    "rembert": {**_DECODER, "input_embedding_size": 40, "output_embedding_size": 56},
    "roberta": {**_PADDED},
    "roberta-prelayernorm": {**_PADDED},
    "roc_bert": {**_DECODER},
    "roformer": {**_DECODER, "embedding_size": 40, "rotary_value": True},
    "seed_oss": {"head_dim": 18},
    "solar_open": {**_EXPERTS, "n_routed_experts": 6, "head_dim": 18, "n_shared_experts": 1},
    "stablelm": {"use_parallel_residual": True, "qk_layernorm": True, "partial_rotary_factor": 0.5},
    "starcoder2": {"sliding_window": 9},
    "trocr": {**_BART, "scale_embedding": True},
    "vaultgemma": {**_WINDOWS, "head_dim": 18, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "whisper": {**_BART, "max_target_positions": MAX_POSITIONS},
    "xglm": {"d_model": 72, "ffn_dim": 84, "num_layers": 2, "attention_heads": 6, "pad_token_id": 1},
    "xlm-roberta": {**_PADDED},
    "xlm-roberta-xl": {**_PADDED},
    "xmod": {**_PADDED, "languages": ("en_XX", "de_DE"), "default_language": "de_DE"},
}
"""model_type -> differences of its configuration from SIZES."""


def _maker(model_type: str, differs: dict[str, Any]) -> Callable[[], Any]:
    def make() -> Any:
        config = CONFIG_MAPPING[model_type](**{**SIZES, **differs})
        model_class = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])
        config._attn_implementation, config._experts_implementation = "eager", "eager"  # noqa: SLF001 - as arguments
        return model_class(config)

    return make


_PUBLISHED = {"longcat_flash": as_longcat_flash}
"""What gives a saved checkpoint the form of published ones, where transformers saves another."""

THROUGH_TRANSFORMERS = {
    name: Family(name, _maker(name, differs), publish=_PUBLISHED.get(name)) for name, differs in TYPES.items()
}
