"""Tiny models of types that read images and hear sounds in one prompt: the thinkers of models that also speak."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from tessera.arrays import Array
from tessera.media.placed import PlacedMedia
from tools.parity.family import SIZES, Family
from tools.parity.images import Image, Images, pixels
from tools.parity.published import with_beginnings
from tools.parity.qwen_vision import GRIDS, MERGE, PATCH, SECTIONS, VISION

_RESERVED = 7
_FIRST = SIZES["vocab_size"] - _RESERVED
_IMAGE, _SOUND = _FIRST + _RESERVED - 1, _FIRST + _RESERVED - 2
_IMAGE_BEGIN, _IMAGE_END, _SOUND_BEGIN, _SOUND_END, _VIDEO = range(_FIRST, _FIRST + 5)
"""Tokens that transformers' code looks for, so that texts do not have them."""


@dataclass(frozen=True)
class ImagesAndSounds(Images):
    """Prompts with images, with sounds and with both; itself it is what Images is of images alone."""

    # Of sounds alone.
    sounds: Images | None = None

    def contents(self, draw: random.Random) -> Sequence[tuple[Images, Image]]:
        assert self.sounds is not None, "a family of both"
        return [*chain.from_iterable(zip(super().contents(draw), self.sounds.contents(draw), strict=True))]

    def arguments(self, media: Sequence[PlacedMedia], length: int, prompt: int) -> dict[str, Tensor]:
        assert self.sounds is not None, "a family of both"
        images, sounds = ([one for one in media if one.modality == kind.modality] for kind in (self, self.sounds))
        joined = super().arguments(images, length, prompt) | self.sounds.arguments(sounds, length, prompt)
        return {**joined, "attention_mask": torch.ones(1, length, dtype=torch.int64)}


def _image(draw: random.Random, number: int) -> Image:
    grid = GRIDS[number]
    patches = grid[1] * grid[2]
    inputs: dict[str, Array] = {
        "pixel_values": pixels(draw, patches, 3 * 2 * PATCH**2),
        "image_grid_thw": np.array([grid], np.int64),
    }
    return Image([_IMAGE_BEGIN, *[_IMAGE] * (patches // MERGE**2), _IMAGE_END], inputs)


def _sound(
    features: Callable[[int], int], lengths: Sequence[int], bins: int, padded: int = 0
) -> Callable[[random.Random, int], Image]:
    """features: of a sound of so many frames. lengths: in frames. padded: how many frames the processor makes of any
    sound; 0: as many as it has."""

    def make(draw: random.Random, number: int) -> Image:
        frames = lengths[number]
        mask = (np.arange(padded or frames) < frames).astype(np.int64)[None]
        inputs = {"input_features": pixels(draw, 1, bins, mask.size), "feature_attention_mask": mask}
        return Image([_SOUND_BEGIN, *[_SOUND] * features(frames), _SOUND_END], inputs)

    return make


def _in_pairs(frames: int) -> int:
    """Of Qwen 2.5 Omni."""
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


def _by_eight(frames: int) -> int:
    """Of Qwen 3 Omni, whose windows are 100 frames with 13 features, a number that transformers' code has. Of shorter
    sounds it also hears what pads them to another of the prompt."""
    whole, rest = divmod(frames, 100)
    return 13 * whole + -(-rest // 8)


_TOWER = {"encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 44, "d_model": 36, "output_dim": 72}
_IMAGES_SEEN = {**VISION, "hidden_size": 36, "out_hidden_size": 72, "intermediate_size": 44}


def _maker(name: str, images: Mapping[str, Any], sounds: Mapping[str, Any], **text: Any) -> Callable[[], Any]:
    """name: of the class."""

    def make() -> Any:
        known: Any = getattr(transformers, name)
        ids = {"image": _IMAGE, "audio": _SOUND, "video": _VIDEO}
        config = known.config_class(
            text_config={**SIZES, "rope_parameters": SECTIONS, "tie_word_embeddings": False, **text},
            vision_config={**_IMAGES_SEEN, **images},
            audio_config={**_TOWER, **sounds},
            **{known.config_class.attribute_map.get(f"{kind}_token_id", f"{kind}_token_id"): ids[kind] for kind in ids},
            vision_start_token_id=_IMAGE_BEGIN,
            vision_end_token_id=_IMAGE_END,
            audio_start_token_id=_SOUND_BEGIN,
            audio_end_token_id=_SOUND_END,
            tie_word_embeddings=False,
            attn_implementation="eager",
            experts_implementation="eager",
        )
        return known(config)

    return make


def _within(architecture: str) -> Callable[[Path], None]:
    """Published files are those of the whole. architecture: of it."""

    def publish(folder: Path) -> None:
        with_beginnings({"": "thinker."})(folder)
        file = folder / "config.json"
        file.write_text(json.dumps({"architectures": [architecture], "thinker_config": json.loads(file.read_text())}))

    return publish


WITH_BOTH = {
    family.name: family
    for family in (
        Family(
            "qwen2.5-omni",
            _maker(
                "Qwen2_5OmniThinkerForConditionalGeneration",
                {"window_size": 12, "fullatt_block_indexes": [1]},
                {"num_mel_bins": 7, "n_window": 4, "max_source_positions": 4},
            ),
            publish=_within("Qwen2_5OmniModel"),
            images=ImagesAndSounds(
                _IMAGE,
                _image,
                reserved=_RESERVED,
                sounds=Images(_SOUND, _sound(_in_pairs, (20, 9, 15, 4), 7, padded=24), modality="audio"),
            ),
        ),
        Family(
            "qwen3-omni",
            _maker(
                "Qwen3OmniMoeThinkerForConditionalGeneration",
                {"num_position_embeddings": 25, "deepstack_visual_indexes": [0, 1]},
                {"num_mel_bins": 16, "n_window_infer": 100, "downsample_hidden_size": 10},
                num_hidden_layers=3,
                head_dim=12,
                num_experts=5,
                num_experts_per_tok=2,
                moe_intermediate_size=44,
            ),
            publish=_within("Qwen3OmniMoeForConditionalGeneration"),
            images=ImagesAndSounds(
                _IMAGE,
                _image,
                reserved=_RESERVED,
                sounds=Images(_SOUND, _sound(_by_eight, (108, 100, 104, 101), 16), modality="audio"),
                texts=(3, 0, 2, 5, 4, 1),
            ),
        ),
    )
}
