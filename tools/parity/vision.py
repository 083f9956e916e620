"""A tiny model of each type that reads images."""

from __future__ import annotations

import random
from typing import Any

from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from tools.parity.family import SIZES, Family
from tools.parity.images import Image, Images, pixels
from tools.parity.qwen_vision import QWEN

TOKEN = SIZES["vocab_size"] - 1
_CLIP: dict[str, Any] = {
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "image_size": 21,
    "patch_size": 7,
    "projection_dim": 20,
}


def _llava() -> Any:
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**_CLIP),
        text_config=LlamaConfig(**SIZES),
        image_token_id=TOKEN,
        vision_feature_layer=-2,
        attn_implementation="eager",
    )
    return LlavaForConditionalGeneration(config)


def _clip_image(draw: random.Random, number: int) -> Image:
    return Image([TOKEN] * 9, {"pixel_values": pixels(draw, 1, 3, 21, 21)})


WITH_IMAGES = {family.name: family for family in (Family("llava", _llava, images=Images(TOKEN, _clip_image)), *QWEN)}
