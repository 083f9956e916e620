"""Tiny models of further types whose tokens have positions on several axes. Images have unlike sizes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from tools.parity.family import SIZES, Family
from tools.parity.images import Image, pixels
from tools.parity.published import with_text_beside
from tools.parity.qwen_vision import IMAGES, PATCH, SECTIONS, TOKENS, VISION

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
            **TOKENS,
        )
        return getattr(transformers, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[name])(config)

    return make


def _by_patch(draw: random.Random, number: int) -> Image:
    """Of PaddleOCR-VL, whose processor leaves patches as they are."""
    image = IMAGES.make(draw, number)
    patches = int(image.inputs["image_grid_thw"].prod())
    return Image(image.tokens, {**image.inputs, "pixel_values": pixels(draw, patches, 3, PATCH, PATCH)})


ON_AXES = (
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
