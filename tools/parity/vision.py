"""A tiny model of each type that reads images."""

from __future__ import annotations

from typing import Any

from tools.parity import image_kinds as kinds
from tools.parity.axis_vision import ON_AXES
from tools.parity.families import DELTA_NET
from tools.parity.family import Family
from tools.parity.images import Images
from tools.parity.published import with_beginnings
from tools.parity.qwen_vision import QWEN
from tools.parity.through_transformers import TYPES
from tools.parity.vision_maker import CLIP as _CLIP
from tools.parity.vision_maker import LATENT as _LATENT
from tools.parity.vision_maker import PIXTRAL as _PIXTRAL
from tools.parity.vision_maker import QUARTERED as _QUARTERED
from tools.parity.vision_maker import SIGLIP as _SIGLIP
from tools.parity.vision_maker import maker as _maker
from tools.parity.vision_maker import text as _text
from tools.parity.vision_wholes import WHOLES

_WINDOWS: dict[str, Any] = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 18}
_NOT_BY_LAYER: dict[str, Any] = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
_LFM2: dict[str, Any] = {
    "num_hidden_layers": 3,
    "full_attn_idxs": [1],
    "intermediate_size": 130,
    "block_multiple_of": 22,
}

_FEW = (7, 0, 4, 7, 2, 1)
"""Tokens of text around images, where some platforms' steps hold 64 tokens of a prompt."""
_NEW_NAMES = {
    "language_model.lm_head.": "lm_head.",
    "language_model.model.": "model.language_model.",
    "": "model.",
}
"""Of models with a model below the head, as transformers wrote them from version 4.52 on."""

WITH_IMAGES = {
    family.name: family
    for family in (
        Family(
            "llava",
            _maker("llava", _text("llama"), {"model_type": "clip_vision_model", **_CLIP}, vision_feature_layer=-2),
            publish=with_beginnings({"vision_tower.": "vision_tower.vision_model."}),
            images=Images(kinds.TOKEN, kinds.square(21, 9)),
        ),
        Family(
            "llava-pixtral",
            _maker(
                "llava",
                _text("mistral", sliding_window=7),
                {**_PIXTRAL, "patch_size": 10},
                vision_feature_layer=-1,
                vision_feature_select_strategy="full",
            ),
            publish=with_beginnings(_NEW_NAMES),
            images=Images(kinds.TOKEN, kinds.in_rows),
        ),
        Family(
            "idefics3",
            _maker("idefics3", _text("llama"), _QUARTERED, scale_factor=2),
            images=Images(kinds.TOKEN, kinds.in_frames, kinds.FRAMES),
        ),
        Family(
            "smolvlm",
            _maker("smolvlm", _text("llama", tie_word_embeddings=True), _QUARTERED, tie_word_embeddings=True),
            images=Images(kinds.TOKEN, kinds.in_frames, kinds.FRAMES),
        ),
        Family(
            "internvl",
            _maker("internvl", _text("qwen2"), {**_QUARTERED, "model_type": "internvl_vision"}),
            images=Images(kinds.TOKEN, kinds.in_tiles),
        ),
        Family(
            "mistral3",
            _maker("mistral3", _text("mistral", head_dim=16, sliding_window=None), _PIXTRAL, tie_word_embeddings=True),
            images=Images(kinds.TOKEN, kinds.in_rows),
        ),
        Family(
            "lighton-ocr",
            _maker("lighton_ocr", _text("qwen3", head_dim=16), _PIXTRAL),
            images=Images(kinds.TOKEN, kinds.without_rows),
        ),
        Family(
            "llava-next",
            _maker(
                "llava_next",
                _text("mistral", sliding_window=None),
                {**_CLIP, "model_type": "clip_vision_model", "image_size": 10, "patch_size": 5},
                image_grid_pinpoints=kinds.PINPOINTS,
                vision_feature_layer=[-2, 1],
            ),
            images=Images(kinds.TOKEN, kinds.anyres),
        ),
        Family(
            "llava-onevision",
            _maker(
                "llava_onevision",
                _text("qwen2"),
                {**_SIGLIP, "image_size": 10, "patch_size": 5},
                image_grid_pinpoints=kinds.PINPOINTS,
                vision_aspect_ratio="anyres_max_2",
            ),
            images=Images(kinds.TOKEN, kinds.anyres_shrunk, among=kinds.whole_among),
        ),
        Family(
            "llama4-vision",
            _maker(
                "llama4",
                _text(
                    "llama4_text",
                    head_dim=18,
                    intermediate_size=44,
                    intermediate_size_mlp=84,
                    num_local_experts=4,
                    num_experts_per_tok=1,
                    attention_chunk_size=16,
                    no_rope_layers=[1, 0],
                ),
                {
                    **_QUARTERED,
                    "model_type": "llama4_vision_model",
                    "intermediate_size": 144,
                    "vision_output_dim": 40,
                    "projector_input_dim": 40,
                    "projector_output_dim": 40,
                },
            ),
            images=Images(kinds.TOKEN, kinds.in_separated_tiles),
        ),
        Family(
            "kimi-k2.5",
            _maker(
                "kimi_k25",
                _text("deepseek_v3", **_LATENT),
                {
                    "hidden_size": 36,
                    "intermediate_size": 44,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 3,
                    "patch_size": 5,
                    "pos_emb_height": 5,
                    "pos_emb_width": 5,
                    "pos_emb_time": 2,
                },
                projection_hidden_size=36,
            ),
            publish=with_beginnings(
                {"language_model.model.blocks.": "language_model.model.layers.", "model.mm_projector.": "mm_projector."}
            ),
            images=Images(kinds.TOKEN, kinds.by_patch),
        ),
        Family(
            "lfm2-vl",
            _maker(
                "lfm2_vl",
                _text("lfm2", **_LFM2),
                {
                    "model_type": "siglip2_vision_model",
                    "hidden_size": 36,
                    "intermediate_size": 44,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 3,
                    "patch_size": 5,
                    "num_patches": 9,
                    "vision_use_head": False,
                },
                projector_hidden_size=44,
            ),
            images=Images(kinds.TOKEN, kinds.in_patches),
        ),
        Family(
            "got-ocr2",
            _maker(
                "got_ocr2",
                _text("qwen2"),
                {
                    "hidden_size": 36,
                    "output_channels": 10,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 3,
                    "image_size": 40,
                    "patch_size": 5,
                    "window_size": 3,
                    "global_attn_indexes": [1],
                    "mlp_dim": 44,
                },
            ),
            images=Images(kinds.TOKEN, kinds.square(40, 4)),
        ),
        Family(
            "idefics2",
            _maker(
                "idefics2",
                _text("mistral", sliding_window=None),
                _QUARTERED,
                perceiver_config={
                    "hidden_size": 72,
                    "resampler_n_latents": 4,
                    "resampler_depth": 2,
                    "resampler_n_heads": 4,
                    "resampler_head_dim": 10,
                    "num_key_value_heads": 2,
                },
            ),
            images=Images(kinds.TOKEN, kinds.with_mask, kinds.PADDED),
        ),
        Family(
            "deepseek-vl",
            _maker("deepseek_vl", _text("llama"), {**_SIGLIP, "image_size": 15}),
            images=Images(kinds.TOKEN, kinds.square(15, 9)),
        ),
        Family(
            "vipllava",
            _maker(
                "vipllava",
                _text("llama"),
                {**_CLIP, "model_type": "clip_vision_model"},
                vision_feature_layer=[-2, 1, 0],
            ),
            images=Images(kinds.TOKEN, kinds.square(21, 9)),
        ),
        Family(
            "janus",
            _maker(
                "janus",
                _text("llama"),
                {**_QUARTERED, "image_size": 15, "projection_dim": 72, "mlp_ratio": 1.25, "num_image_tokens": 9},
                vq_config={
                    "base_channels": 32,
                    "channel_multiplier": [1, 1],
                    "num_embeddings": 12,
                    "projection_dim": 72,
                    "image_token_embed_dim": 72,
                    "latent_channels": 32,
                    "num_res_blocks": 1,
                },
            ),
            images=Images(kinds.TOKEN, kinds.square_between(15, 9)),
        ),
        Family(
            "qianfan-ocr",
            _maker("qianfan_ocr", _text("qwen3", head_dim=16), {**_QUARTERED, "model_type": "qianfan_ocr_vision"}),
            publish=with_beginnings({"language_model.model.encoder.layers.": "language_model.model.layers."}),
            images=Images(kinds.TOKEN, kinds.in_tiles),
        ),
        Family(
            "gemma3-vision",
            _maker(
                "gemma3",
                _text(
                    "gemma3_text",
                    num_hidden_layers=4,
                    head_dim=18,
                    query_pre_attn_scalar=20,
                    sliding_window=7,
                    sliding_window_pattern=3,
                ),
                {**_SIGLIP},
                mm_tokens_per_image=4,
            ),
            images=Images(kinds.TOKEN, kinds.square_between(20, 4), kinds="token_type_ids"),
        ),
        *(
            Family(
                name,
                _maker(
                    "gemma4",
                    _text("gemma4_text", **{**TYPES["gemma4_text"], **differs}, pad_token_id=0),
                    {
                        **_CLIP,
                        "num_key_value_heads": 3,
                        "head_dim": 12,
                        "patch_size": 5,
                        "pooling_kernel_size": 2,
                        "position_embedding_size": 12,
                    },
                    video_token_id=102,
                    audio_token_id=103,
                ),
                images=Images(kinds.TOKEN, kinds.in_padded_patches(75, 2), kinds="mm_token_type_ids"),
            )
            for name, differs in (
                ("gemma4-vision", {}),
                ("gemma4-vision-lookahead", {**_NOT_BY_LAYER, "use_bidirectional_attention": "vision"}),
            )
        ),
        Family(
            "gemma4-unified-vision",
            _maker(
                "gemma4_unified",
                _text("gemma4_unified_text", **_WINDOWS, pad_token_id=0, use_bidirectional_attention="vision"),
                {
                    "patch_size": 5,
                    "pooling_kernel_size": 1,
                    "mm_embed_dim": 40,
                    "output_proj_dims": 40,
                    "mm_posemb_size": 12,
                },
                video_token_id=102,
                audio_token_id=103,
            ),
            images=Images(kinds.TOKEN, kinds.in_padded_patches(75, 1), kinds="mm_token_type_ids"),
        ),
        Family(
            "paligemma",
            _maker(
                "paligemma",
                _text("gemma", head_dim=18, hidden_act="gelu_pytorch_tanh"),
                {**_SIGLIP, "image_size": 10},
                projection_dim=72,
                hidden_size=72,
            ),
            publish=with_beginnings(
                {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.", "model.": ""}
            ),
            images=Images(kinds.TOKEN, kinds.square(10, 4), kinds="token_type_ids", prefix=True, texts=_FEW),
            max_model_len=64,
        ),
        Family(
            "paligemma2",
            _maker(
                "paligemma",
                _text("gemma2", head_dim=18, query_pre_attn_scalar=20, sliding_window=30),
                {**_SIGLIP, "image_size": 10},
                projection_dim=72,
                hidden_size=72,
            ),
            images=Images(kinds.TOKEN, kinds.square(10, 4), kinds="token_type_ids", prefix=True, texts=_FEW),
            max_model_len=64,
        ),
        Family(
            "minicpm-v-4.6",
            _maker(
                "minicpmv4_6",
                _text("qwen3_5_text", **DELTA_NET),
                {**_QUARTERED, "num_hidden_layers": 3},
                insert_layer_id=1,
                image_size=20,
            ),
            images=Images(kinds.TOKEN, kinds.in_slices, {"pixel_values": kinds.end_to_end}),
        ),
        Family(
            "minicpm-ocr",
            _maker(
                "minicpm_ocr",
                _text("qwen3_5_text", **DELTA_NET),
                {**_QUARTERED, "num_hidden_layers": 3},
                insert_layer_id=1,
                image_size=20,
                downsample_mode="16x",
            ),
            images=Images(kinds.TOKEN, kinds.in_slices, {"pixel_values": kinds.end_to_end}),
        ),
        Family(
            "videollama3",
            _maker("video_llama_3", _text("qwen2"), {**_CLIP, "patch_size": 5}),
            images=Images(kinds.TOKEN, kinds.on_merged_grid),
        ),
        Family(
            "video-llava",
            _maker("video_llava", _text("llama"), {**_CLIP, "model_type": "clip_vision_model", "image_size": 14}),
            images=Images(kinds.TOKEN, kinds.square(14, 4)),
        ),
        Family(
            "llava-next-video",
            _maker(
                "llava_next_video",
                _text("llama"),
                {**_CLIP, "model_type": "clip_vision_model", "image_size": 10, "patch_size": 5},
                image_grid_pinpoints=kinds.PINPOINTS,
            ),
            images=Images(kinds.TOKEN, kinds.anyres),
        ),
        Family(
            "lfm3-vl",
            _maker(
                "lfm3_vl",
                _text(
                    "lfm3",
                    num_hidden_layers=3,
                    layer_types=["conv", "sliding_attention", "full_attention"],
                    head_dim=20,
                    sliding_window=20,
                ),
                {
                    "hidden_size": 36,
                    "intermediate_size": 44,
                    "patch_size": 5,
                    "num_hidden_layers": 3,
                    "num_attention_heads": 3,
                    "num_key_value_heads": 1,
                },
                projector_hidden_size=44,
            ),
            images=Images(kinds.TOKEN, kinds.on_grid(150)),
        ),
        Family(
            "aya-vision",
            _maker("aya_vision", _text("cohere2", **_WINDOWS, logit_scale=1.0), _SIGLIP),
            images=Images(kinds.TOKEN, kinds.in_numbered_tiles),
        ),
        Family(
            "cohere2-vision",
            _maker(
                "cohere2_vision", _text("cohere2", **_WINDOWS, logit_scale=1.0), _SIGLIP, alignment_intermediate_size=44
            ),
            images=Images(kinds.TOKEN, kinds.in_ended_tiles),
        ),
        Family(
            "aria",
            _maker(
                "aria",
                _text("aria_text", moe_num_experts=5, moe_topk=2, moe_num_shared_experts=1, head_dim=12),
                {**_QUARTERED, "model_type": "idefics3_vision"},
                projector_patch_to_query_dict={16: 5},
            ),
            images=Images(kinds.TOKEN, kinds.with_edges),
        ),
        Family(
            "exaone4.5",
            _maker(
                "exaone4_5",
                _text("exaone4", **_WINDOWS),
                {
                    "depth": 2,
                    "hidden_size": 36,
                    "intermediate_size": 44,
                    "num_heads": 3,
                    "num_key_value_heads": 1,
                    "patch_size": 5,
                    "window_size": 20,
                    "out_hidden_size": 72,
                    "fullatt_block_indexes": [1],
                },
            ),
            images=Images(kinds.TOKEN, kinds.on_grid(150)),
        ),
        Family(
            "hyperclovax-vision-v2",
            _maker(
                "hyperclovax_vision_v2",
                _text("hyperclovax"),
                {
                    "model_type": "qwen2_5_vl_vision",
                    "depth": 2,
                    "hidden_size": 36,
                    "intermediate_size": 44,
                    "num_heads": 3,
                    "patch_size": 5,
                    "window_size": 20,
                    "out_hidden_size": 40,
                    "fullatt_block_indexes": [1],
                },
            ),
            images=Images(kinds.TOKEN, kinds.on_grid(150)),
        ),
        Family(
            "deepseek-vl-hybrid",
            _maker(
                "deepseek_vl_hybrid",
                _text("llama"),
                {**_SIGLIP, "image_size": 15},
                high_res_vision_config={
                    "model_type": "sam_vision_model",
                    "hidden_size": 36,
                    "output_channels": 10,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 3,
                    "image_size": 48,
                    "patch_size": 4,
                    "window_size": 5,
                    "global_attn_indexes": [1],
                    "mlp_dim": 44,
                },
            ),
            images=Images(kinds.TOKEN, kinds.at_two_sizes),
        ),
        Family(
            "pp-chart2table",
            _maker(
                "pp_chart2table",
                _text("qwen2"),
                {
                    "hidden_size": 36,
                    "output_channels": 10,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 3,
                    "image_size": 40,
                    "patch_size": 5,
                    "window_size": 3,
                    "global_attn_indexes": [1],
                    "mlp_dim": 44,
                },
            ),
            images=Images(kinds.TOKEN, kinds.square(40, 4)),
        ),
        Family(
            "blip-2",
            _maker(
                "blip-2",
                _text("opt", ffn_dim=84, word_embed_proj_dim=72, do_layer_norm_before=True),
                {**_CLIP, "image_size": 15, "patch_size": 5},
                qformer_config={
                    "hidden_size": 40,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "intermediate_size": 44,
                },
                num_query_tokens=6,
            ),
            images=Images(kinds.TOKEN, kinds.square(15, 6), least=1),
        ),
        Family(
            "minimax-m3-vl",
            _maker(
                "minimax_m3_vl",
                _text("minimax_m3_vl_text", **TYPES["minimax_m3_vl_text"]),
                {**_CLIP, "patch_size": 5},
                projector_hidden_size=40,
            ),
            images=Images(kinds.TOKEN, kinds.on_grid(150)),
        ),
        Family(
            "nemotron-h-omni",
            _maker(
                "nemotron_h_omni",
                _text(
                    "nemotron_h",
                    layers_block_type=["linear_attention", "full_attention", "mlp"],
                    num_hidden_layers=None,
                    head_dim=20,
                    mamba_num_heads=6,
                    mamba_head_dim=18,
                    n_groups=2,
                    ssm_state_size=11,
                    time_step_min=0.5,
                ),
                {**_CLIP, "patch_size": 5, "max_img_size": 30, "video_temporal_patch_size": 2, "dtype": "float32"},
                vision_hidden_size=36,
                projector_hidden_size=40,
            ),
            images=Images(kinds.TOKEN, kinds.on_flat_grid),
        ),
        Family(
            "ovis2",
            _maker(
                "ovis2",
                _text("qwen2", max_position_embeddings=128),
                {**_QUARTERED, "vocab_size": 25, "hidden_stride": 2},
                vocab_size=101,
                hidden_size=72,
                visual_indicator_token_ids=list(kinds.MARKS),
            ),
            images=Images(
                kinds.TOKEN, kinds.in_marked_tiles, marks=kinds.MARKS, processor_inputs=frozenset({"image_tokens"})
            ),
            max_model_len=128,
        ),
        *QWEN,
        *ON_AXES,
        *WHOLES,
    )
}
