"""What a model's prompts may hold beside text."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tessera.errors import ConfigError

_IMAGES = (
    "AriaForConditionalGeneration",
    "AyaVisionForConditionalGeneration",
    "Blip2ForConditionalGeneration",
    "Cohere2VisionForConditionalGeneration",
    "DeepseekVLForConditionalGeneration",
    "DeepseekVLHybridForConditionalGeneration",
    "Exaone4_5_ForConditionalGeneration",
    "GotOcr2ForConditionalGeneration",
    "HyperCLOVAXVisionV2ForConditionalGeneration",
    "Idefics2ForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "JanusForConditionalGeneration",
    "Kimi_K25ForConditionalGeneration",
    "Lfm2VlForConditionalGeneration",
    "Lfm3VlForConditionalGeneration",
    "LightOnOcrForConditionalGeneration",
    "Llama4ForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LlavaNextVideoForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "MiniCPMOcrForConditionalGeneration",
    "MiniCPMV4_6ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "QianfanOCRForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
    "VideoLlama3ForConditionalGeneration",
    "VideoLlavaForConditionalGeneration",
    "VipLlavaForConditionalGeneration",
)

TOWERS: Mapping[str, tuple[str, ...]] = MappingProxyType(dict.fromkeys(_IMAGES, ("image",)))
"""Architectures that are served with their towers."""

_FLAG = "limit_mm_per_prompt"
MODALITIES = ("image", "video", "audio")


def modalities(config: Mapping[str, Any], limits: Mapping[str, Any]) -> tuple[str, ...]:
    """config: of config.json. limits: --limit-mm-per-prompt. Raises ConfigError for one that names something else."""
    for name, limit in limits.items():
        if name not in MODALITIES or isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= 1024:
            raise ConfigError(
                f'{_FLAG} takes numbers from 0 to 1024 by the names {", ".join(MODALITIES)}, such as {{"image": 4}}.',
                param=_FLAG,
            )
    known = TOWERS.get(str(config["architectures"][0]), ())
    return tuple(name for name in known if limits.get(name) != 0)
