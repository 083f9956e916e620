"""Tiny models of further types whose tokens have positions on several axes. Images have unlike sizes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from tessera.media.placed import PlacedMedia
from tools.parity.family import SIZES, Family
from tools.parity.images import Image, Images, pixels
from tools.parity.published import with_text_beside
from tools.parity.qwen_vision import END, IMAGES, PATCH, QWEN3_VISION, SECTIONS, START, TOKEN, TOKENS, VISION

_GLM_VISION: dict[str, Any] = {
    **VISION,
    "hidden_size": 36,
    "out_hidden_size": 72,
    "intermediate_size": 44,
    "image_size": 15,
}
_HALF_TURNED = {"rope_parameters": {**SECTIONS, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 1]}}
_GLM_EXPERTS: dict[str, Any] = {
    **_HALF_TURNED,
    "num_hidden_layers": 3,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 44,
    "routed_scaling_factor": 1.5,
    "n_group": 2,
    "topk_group": 1,
}


def _maker(name: str, vision: Mapping[str, Any], **text: Any) -> Callable[[], Any]:
    """name: the model_type of the whole."""

    def make() -> Any:
        config = CONFIG_MAPPING[name](
            text_config={**SIZES, "rope_parameters": SECTIONS, "tie_word_embeddings": False, **text},
            vision_config={**vision},
            attn_implementation="eager",
            experts_implementation="eager",
            tie_word_embeddings=False,
            image_start_token_id=START,
            image_end_token_id=END,
            **TOKENS,
        )
        return getattr(transformers, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[name])(config)

    return make


def _by_patch(draw: random.Random, number: int) -> Image:
    """Of PaddleOCR-VL, whose processor leaves patches as they are."""
    image = IMAGES.make(draw, number)
    patches = int(image.inputs["image_grid_thw"].prod())
    return Image(image.tokens, {**image.inputs, "pixel_values": pixels(draw, patches, 3, PATCH, PATCH)})


def _one_frame(draw: random.Random, number: int) -> Image:
    image = IMAGES.make(draw, number)
    patches = int(image.inputs["image_grid_thw"].prod())
    return Image(image.tokens, {**image.inputs, "pixel_values": pixels(draw, patches, 3 * PATCH**2)})


@dataclass(frozen=True)
class ByModality(Images):
    """Of ERNIE 4.5 VL, whose experts for images take the tokens around them too."""

    def arguments(self, media: Sequence[PlacedMedia], length: int, prompt: int) -> dict[str, Tensor]:
        joined = super().arguments(media, length, prompt)
        if media:
            seen = joined["mm_token_type_ids"].clone()
            for one in media:
                seen[0, one.start - 1 : one.end + 1] = 1
            joined["moe_mm_token_type_ids"] = seen
        return joined


ON_AXES = (
    Family(
        "cohere-compass",
        _maker(
            "cohere_compass",
            {**VISION, **QWEN3_VISION},
            rope_parameters={"sliding_attention": SECTIONS, "full_attention": None},
            num_hidden_layers=4,
            layer_types=[*["sliding_attention"] * 3, "full_attention"],
            head_dim=12,
            sliding_window=7,
            logit_scale=0.5,
        ),
        images=IMAGES,
    ),
    Family(
        "ernie-4.5-vl",
        _maker(
            "ernie4_5_vl_moe",
            {**VISION, "hidden_size": 36, "intermediate_size": 44},
            rope_parameters={**SECTIONS, "mrope_section": [2, 2, 2]},
            num_hidden_layers=3,
            mlp_layer_types=["dense", "sparse", "sparse"],
            moe_num_experts=5,
            moe_k=2,
            moe_intermediate_size=[44, 20],
            moe_num_shared_experts=1,
        ),
        images=ByModality(TOKEN, _one_frame, kinds="mm_token_type_ids", reserved=3),
    ),
    Family(
        "cosmos3-omni",
        _maker("cosmos3_omni", {**VISION, **QWEN3_VISION}, num_hidden_layers=4, head_dim=12),
        images=IMAGES,
    ),
    Family("glm-4v", _maker("glm4v", _GLM_VISION, **_HALF_TURNED), images=IMAGES),
    Family("glm-4v-moe", _maker("glm4v_moe", _GLM_VISION, **_GLM_EXPERTS), images=IMAGES),
    Family(
        "glm-4.6v",
        _maker(
            "glm46v",
            {**_GLM_VISION, "model_type": "glm4v_moe_vision"},
            model_type="glm4v_moe_text",
            **_GLM_EXPERTS,
        ),
        images=IMAGES,
    ),
    Family("glmga", _maker("glmga", _GLM_VISION, **_HALF_TURNED), images=IMAGES),
    Family("glm-ocr", _maker("glm_ocr", _GLM_VISION), images=IMAGES),
    Family(
        "paddleocr-vl",
        _maker(
            "paddleocr_vl",
            {
                "hidden_size": 36,
                "intermediate_size": 44,
                "num_hidden_layers": 2,
                "num_attention_heads": 3,
                "image_size": 15,
                "patch_size": PATCH,
            },
            head_dim=12,
        ),
        publish=with_text_beside,
        images=replace(IMAGES, make=_by_patch),
    ),
)
