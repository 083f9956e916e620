"""Tiny models of types that watch videos without positions by axis: those of tools/parity/vision.py, with videos in
their prompts."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tools.parity import image_kinds as kinds
from tools.parity.family import Family
from tools.parity.images import Image, Images, pixels
from tools.parity.vision import WITH_IMAGES

_VIDEO = kinds.TOKEN - 1
"""The token that stands for a feature of a video."""
_FRAMES = 3
_IMAGE = 1
"""Which of the four is an image."""
Make = Callable[[random.Random, int], Image]


def _in_frames(size: int, features: int, newlines: int = 0, frames: int = _FRAMES) -> Make:
    """features: of a frame. newlines: tokens behind all frames."""

    def make(draw: random.Random, number: int) -> Image:
        tokens = [12, *[_VIDEO] * (frames * features + newlines), 13]
        values = pixels(draw, 1, frames, 3, size, size)
        return Image(tokens, {"pixel_values_videos": values}, "video", _VIDEO)

    return make


def _one_image_each(draw: random.Random, number: int) -> Image:
    """Of InternVL: as many images as frames, each behind its number."""
    tokens = [token for frame in range(2) for token in (21 + frame, *[kinds.TOKEN] * 4, 13)]
    return Image(tokens, {"pixel_values": pixels(draw, 2, 3, 20, 20)}, "video", kinds.TOKEN)


def _frames_in_text(draw: random.Random, number: int) -> Image:
    """Of SmolVLM: each frame is an image that is not cut into parts, behind its time in the text."""
    count = (2, 1, 3, 2)[number]
    tokens = [token for frame in range(count) for token in (21 + frame, 12, 11, *[kinds.TOKEN] * 4, 12)]
    inputs = {
        "pixel_values": pixels(draw, 1, count, 3, 20, 20),
        "pixel_attention_mask": np.ones((1, count, 20, 20), np.int64),
    }
    return Image(tokens, inputs, "video", kinds.TOKEN)


def _compressed(draw: random.Random, number: int) -> Image:
    """Of VideoLLaMA 3: 2 by 2 patches make a feature, and those that are as in the frame before are left out."""
    rows, columns = ((4, 6), (2, 2), (4, 2), (4, 4))[number]
    each = rows * columns // 4
    kept = np.arange(_FRAMES * each) % 3 != 1
    kept[:each] = True
    tokens: list[int] = []
    for frame in np.split(kept, _FRAMES):
        tokens += [11, *[_VIDEO] * int(frame.sum())]
    inputs = {
        "pixel_values_videos": pixels(draw, _FRAMES * rows * columns, 75),
        "video_grid_thw": np.array([[_FRAMES, rows, columns]]),
        "video_merge_sizes": np.array([2]),
        "video_compression_mask": kept,
    }
    return Image(tokens, inputs, "video", _VIDEO)


def _watching(name: str, make: Make) -> Family:
    family = WITH_IMAGES[name]
    assert isinstance(family.images, Images)
    image = family.images.make

    def model() -> Any:
        made = family.make()
        made.config.video_token_id = _VIDEO
        return made

    def either(draw: random.Random, number: int) -> Image:
        return image(draw, number) if number == _IMAGE else make(draw, number)

    images = dataclasses.replace(family.images, make=either, others=(_VIDEO,), among=lambda image, count: image)
    return dataclasses.replace(family, name=f"{name}-video", make=model, images=images)


WITH_VIDEOS = {
    family.name: family
    for family in (
        _watching("internvl", _one_image_each),
        _watching("llava-onevision", _in_frames(10, 1, newlines=1)),
        _watching("llava-next-video", _in_frames(10, 1)),
        _watching("smolvlm", _frames_in_text),
        _watching("video-llava", _in_frames(14, 5, frames=2)),
        _watching("videollama3", _compressed),
    )
}
