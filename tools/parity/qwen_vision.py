"""Tiny models of types whose tokens have positions in height and width (M-RoPE). Images have unlike sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from tessera.arrays import Array
from tools.parity.families import DELTA_NET
from tools.parity.family import SIZES, Family
from tools.parity.images import Image, Images, pixels

TOKEN = SIZES["vocab_size"] - 1
START, END = TOKEN - 1, TOKEN - 2
VIDEO = END - 1
GRIDS = ((1, 4, 6), (1, 2, 2), (1, 6, 2), (1, 4, 4))
PATCH, MERGE = 3, 2
VISION: dict[str, Any] = {
    "depth": 2,
    "num_heads": 3,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": 2,
}
TOKENS = {
    "image_token_id": TOKEN,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}
SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 3, 2]}


def _maker(config_class: Any, model_class: Any, vision: dict[str, Any], **text: Any) -> Any:
    def make() -> Any:
        config = config_class(
            vision_config={**VISION, **vision},
            text_config={**SIZES, "rope_parameters": SECTIONS, **text},
            attn_implementation="eager",
            tie_word_embeddings=False,
            **TOKENS,
        )
        return model_class(config)

    return make


def _image(draw: random.Random, number: int) -> Image:
    grid = GRIDS[number % len(GRIDS)]
    patches, features = grid[1] * grid[2], grid[1] * grid[2] // MERGE**2
    inputs = {
        "pixel_values": pixels(draw, patches, 3 * 2 * PATCH**2),
        "image_grid_thw": np.array([grid], np.int64),
    }
    return Image([START, *[TOKEN] * features, END], inputs)


VIDEOS = ((2, 4, 2), (1, 4, 6), (3, 2, 2), (2, 2, 4))
"""Grids: a video, an image, and videos."""


def _video(number: int, draw: random.Random) -> dict[str, Array]:
    grid = VIDEOS[number]
    return {
        "pixel_values_videos": pixels(draw, math.prod(grid), 3 * 2 * PATCH**2),
        "video_grid_thw": np.array([grid], np.int64),
    }


def _as_whole(draw: random.Random, number: int) -> Image:
    """Of Qwen2-VL: a video may end later than what follows it."""
    if number == 1:
        return _image(draw, 0)
    features = math.prod(VIDEOS[number]) // MERGE**2
    return Image([START, *[VIDEO] * features, END], _video(number, draw), "video", VIDEO)


def _in_time(draw: random.Random, number: int) -> Image:
    """Of Qwen2.5-VL."""
    image = _as_whole(draw, number)
    if image.modality != "video":
        return image
    seconds = np.array([(0.9, 0.0, 1.7, 0.4)[number]], np.float32)
    return Image(image.tokens, {**image.inputs, "second_per_grid_ts": seconds}, "video", VIDEO)


def _with_times(draw: random.Random, number: int) -> Image:
    """Of Qwen3-VL: before each frame its time, as text."""
    if number == 1:
        return _image(draw, 0)
    time, height, width = VIDEOS[number]
    frames = [[11 + at, START, *[VIDEO] * (height * width // MERGE**2)] for at in range(time)]
    return Image([token for frame in frames for token in frame], _video(number, draw), "video", VIDEO)


def watching(family: Family, make: Callable[[random.Random, int], Image]) -> Family:
    """The same type, with videos in its prompts."""
    videos = Images(TOKEN, make, kinds="mm_token_type_ids", others=(VIDEO,))
    return Family(f"{family.name}-video", family.make, images=videos)


QWEN3_VISION = {
    "hidden_size": 36,
    "out_hidden_size": 72,
    "intermediate_size": 44,
    "num_position_embeddings": 25,
    "deepstack_visual_indexes": [0, 1],
}
IMAGES = Images(TOKEN, _image, kinds="mm_token_type_ids")
_QWEN = (
    Family(
        "qwen2-vl",
        _maker(Qwen2VLConfig, Qwen2VLForConditionalGeneration, {"embed_dim": 36, "hidden_size": 72, "mlp_ratio": 2}),
        images=IMAGES,
    ),
    Family(
        "qwen2.5-vl",
        _maker(
            Qwen2_5_VLConfig,
            Qwen2_5_VLForConditionalGeneration,
            {
                "hidden_size": 36,
                "out_hidden_size": 72,
                "intermediate_size": 44,
                "window_size": 12,
                "tokens_per_second": 2,
                "fullatt_block_indexes": [1],
            },
        ),
        images=IMAGES,
    ),
    Family(
        "qwen3-vl",
        _maker(Qwen3VLConfig, Qwen3VLForConditionalGeneration, QWEN3_VISION, num_hidden_layers=4, head_dim=12),
        images=IMAGES,
    ),
    Family(
        "qwen3-vl-moe",
        _maker(
            Qwen3VLMoeConfig,
            Qwen3VLMoeForConditionalGeneration,
            QWEN3_VISION,
            num_hidden_layers=3,
            head_dim=12,
            num_experts=5,
            num_experts_per_tok=2,
            moe_intermediate_size=44,
            experts_implementation="eager",
        ),
        images=IMAGES,
    ),
    Family(
        "qwen3.5-vl",
        _maker(
            Qwen3_5Config,
            Qwen3_5ForConditionalGeneration,
            {"hidden_size": 36, "out_hidden_size": 72, "intermediate_size": 44, "num_position_embeddings": 25},
            **{
                **DELTA_NET,
                "rope_parameters": {**SECTIONS, "partial_rotary_factor": 0.67, "mrope_section": [3, 2, 1]},
            },
        ),
        images=IMAGES,
    ),
    Family(
        "qwen3.5-vl-moe",
        _maker(
            Qwen3_5MoeConfig,
            Qwen3_5MoeForConditionalGeneration,
            {"hidden_size": 36, "out_hidden_size": 72, "intermediate_size": 44, "num_position_embeddings": 25},
            **{
                **DELTA_NET,
                "rope_parameters": {**SECTIONS, "partial_rotary_factor": 0.67, "mrope_section": [3, 2, 1]},
            },
        ),
        images=IMAGES,
    ),
)
_WATCHES = {"qwen2-vl": _as_whole, "qwen2.5-vl": _in_time}
QWEN = (*_QWEN, *(watching(family, _WATCHES.get(family.name, _with_times)) for family in _QWEN))
