"""Tiny models of types that read images of which the text model is a part of the whole, without a class of its own."""

from __future__ import annotations

from typing import Any

from tessera.media.placement import TILES_SHOWN
from tools.parity import image_kinds as kinds
from tools.parity.family import Family
from tools.parity.images import Images, side_by_side
from tools.parity.vision_maker import CLIP, LATENT, PIXTRAL, maker, text

_SAM: dict[str, Any] = {
    "hidden_size": 36,
    "output_channels": 10,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 40,
    "patch_size": 5,
    "window_size": 3,
    "global_attn_indexes": [1],
    "mlp_dim": 44,
}
_MUSE_VISION: dict[str, Any] = {
    "patch_size": 5,
    "pos_emb_height": 3,
    "pos_emb_width": 3,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "hidden_size": 36,
    "intermediate_size": 44,
    "layer_types": ["window_attention", "full_attention"],
}
_MUSE_TEXT: dict[str, Any] = {
    "head_dim": 12,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention"],
    "layer_rope_theta": [1e4, 0],
    "final_logit_softcapping": 20.0,
    "output_multiplier": 0.3,
}

WHOLES = (
    Family(
        "deepseek-ocr-2",
        maker(
            "deepseek_ocr2",
            text(
                "deepseek_ocr2_text",
                max_position_embeddings=1024,
                head_dim=12,
                n_routed_experts=5,
                n_shared_experts=1,
                num_experts_per_tok=2,
                moe_intermediate_size=44,
                mlp_layer_types=["dense", "sparse"],
            ),
            {
                "sam_config": {**_SAM, "downsample_channels": [12, 40]},
                "encoder_config": {
                    "hidden_size": 40,
                    "intermediate_size": 44,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "num_key_value_heads": 2,
                },
            },
        ),
        images=Images(kinds.TOKEN, kinds.in_views((40, 145), (60, 144), (1, 0, 0, 0))),
        max_model_len=1024,
    ),
    Family(
        "emu3",
        maker(
            "emu3",
            text("emu3_text_model", bos_token_id=1, eos_token_id=2, pad_token_id=0),
            {},
            vq_config={
                "codebook_size": 12,
                "base_channels": 32,
                "channel_multiplier": [1, 2],
                "num_res_blocks": 1,
                "attn_resolutions": [],
                "hidden_size": 64,
            },
            vocabulary_map={
                "<image>": kinds.TOKEN,
                "<|extra_200|>": 11,
                **{f"<|visual token {code:06d}|>": 40 + (5 * code) % 12 for code in range(12)},
            },
        ),
        images=Images(kinds.TOKEN, kinds.in_lines),
    ),
    Family(
        "granite-4-vision",
        maker(
            "granite4_vision",
            text(
                "granite4_vision_text",
                num_hidden_layers=4,
                max_position_embeddings=128,
                embedding_multiplier=3.0,
                logits_scaling=2.0,
            ),
            {
                **CLIP,
                "hidden_size": 64,
                "model_type": "clip_vision_model",
                "image_size": 20,
                "patch_size": 5,
                "num_attention_heads": 4,
            },
            image_grid_pinpoints=kinds.twice(kinds.PINPOINTS),
            downsample_rate="1/2",
            deepstack_layer_map=[[-2, 0], [-1, 2]],
            spatial_target_layers=[1, 3],
            qformer_config={"num_hidden_layers": 1, "intermediate_size": 44},
        ),
        images=Images(kinds.TOKEN, kinds.anyres_twice),
        max_model_len=128,
    ),
    Family(
        "granite-docling",
        maker(
            "granite_docling",
            text("granite_docling_text", num_hidden_layers=4, embedding_multiplier=3.0, logits_scaling=2.0),
            {
                **CLIP,
                "image_size": 40,
                "patch_size": 5,
                "out_hidden_size": 72,
                "deepstack_visual_indexes": [0, 2],
            },
        ),
        images=Images(
            kinds.TOKEN, kinds.in_masked_tiles, dict.fromkeys(("pixel_values", "pixel_attention_mask"), side_by_side)
        ),
    ),
    Family(
        "mistral4-vision",
        maker(
            "mistral3",
            text(
                "mistral4",
                **LATENT,
                rope_parameters={
                    "rope_type": "yarn",
                    "rope_theta": 1e4,
                    "factor": 4.0,
                    "original_max_position_embeddings": 24,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "mscale_all_dim": 1.0,
                    "mscale": 1.0,
                    "llama_4_scaling_beta": 0.1,
                },
            ),
            PIXTRAL,
        ),
        images=Images(kinds.TOKEN, kinds.in_rows),
    ),
    Family(
        "mllama-vision",
        maker(
            "mllama",
            text("mllama_text_model", num_hidden_layers=4, cross_attention_layers=[1, 3], bos_token_id=1),
            {
                "hidden_size": 36,
                "intermediate_size": 44,
                "num_hidden_layers": 2,
                "attention_heads": 3,
                "num_global_layers": 1,
                "intermediate_layers_indices": [0, 1],
                "vision_output_dim": 108,
                "image_size": 15,
                "patch_size": 5,
            },
            image_token_index=kinds.SEEN,
        ),
        images=Images(
            kinds.SEEN,
            kinds.in_seen_tiles,
            dict.fromkeys(("pixel_values", "aspect_ratio_ids", TILES_SHOWN), side_by_side),
            extra_arguments=kinds.seen_from,
        ),
    ),
    Family(
        "muse-glimmer",
        maker(
            "muse_glimmer",
            text("muse_glimmer_text", **_MUSE_TEXT),
            _MUSE_VISION,
            out_hidden_size=144,
            projector_hidden_size=40,
        ),
        images=Images(kinds.TOKEN, kinds.on_grid(150)),
    ),
    Family(
        "muse-spark",
        maker(
            "muse_spark",
            text(
                "muse_spark_text",
                **_MUSE_TEXT,
                num_local_experts=5,
                num_experts_per_tok=2,
                moe_intermediate_size=44,
                moe_hidden_size=40,
                mlp_layer_types=["dense", "sparse"],
            ),
            _MUSE_VISION,
            out_hidden_size=144,
            projector_hidden_size=40,
            audio_config={"hidden_sizes": [4, 4, 4, 4], "depths": [1, 1, 1, 1], "out_hidden_size": 72},
        ),
        images=Images(kinds.TOKEN, kinds.on_grid(150)),
    ),
    Family(
        "step-3.7",
        maker(
            "step3p7",
            text(
                "step3p5",
                pad_token_id=0,
                head_dim=12,
                layer_types=["full_attention", "sliding_attention"],
                sliding_window=7,
                num_sliding_attention_heads=4,
                n_routed_experts=5,
                num_experts_per_tok=2,
                moe_intermediate_size=44,
                share_expert_dim=44,
                mlp_layer_types=["dense", "sparse"],
                rope_parameters={
                    "full_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
                },
            ),
            {**CLIP, "image_size": 20, "patch_size": 5},
        ),
        images=Images(kinds.TOKEN, kinds.in_views((20, 1), (30, 4))),
    ),
)
