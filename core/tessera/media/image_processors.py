"""Processors whose methods for one image need more than others' do, or say less: here they are like the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any


class Lfm2VlImages:
    """Mixed into LFM2-VL's, whose method asks to be told of tokens around an image, which all published models have."""

    def _process_images(
        self, images: Sequence[Any], use_image_special_tokens: bool = True, **options: Any
    ) -> tuple[dict[str, Any], list[str]]:
        mixed_into: Any = super()
        done: tuple[dict[str, Any], list[str]] = mixed_into._process_images(  # noqa: SLF001 - what it replaces
            images, use_image_special_tokens, **options
        )
        return done


class Llama4Images:
    """Mixed into Llama 4's, which names the token that stands for a whole image in a text, and not those of its
    features."""

    tokenizer: Any
    img_patch_token: str

    @property
    def image_token_ids(self) -> list[int]:
        return [self.tokenizer.convert_tokens_to_ids(self.img_patch_token)]


class MiniCPMImages:
    """Mixed into MiniCPM-V 4.6's and MiniCPM-OCR's, which ask the processor of videos even if there are none, and
    number the images of a prompt."""

    image_id_start_token: str
    image_id_end_token: str
    default_use_image_id: bool
    _videos: Any = None

    @property
    def video_processor(self) -> Any:
        return SimpleNamespace(slice_mode=False, downsample_mode="") if self._videos is None else self._videos

    @video_processor.setter
    def video_processor(self, processor: Any) -> None:
        self._videos = processor

    @property
    def image_number(self) -> tuple[str, str] | None:
        """MediaPlaces.number"""
        return (self.image_id_start_token, self.image_id_end_token) if self.default_use_image_id else None


class PaliGemmaImages:
    """Mixed into PaliGemma's, which puts the token that begins a text, and a line break, around what is asked about the
    images: here a chat template does, or who sends the prompt."""

    def prepare_inputs_layout(self, images: Any = None, text: Any = None, **others: Any) -> Any:
        from transformers import ProcessorMixin

        layout: Any = ProcessorMixin.prepare_inputs_layout
        return layout(self, images=images, text=text, **others)


COMPLETIONS: Mapping[str, type] = MappingProxyType(
    {
        "Lfm2VlProcessor": Lfm2VlImages,
        "Llama4Processor": Llama4Images,
        "MiniCPMOcrProcessor": MiniCPMImages,
        "MiniCPMV4_6Processor": MiniCPMImages,
        "PaliGemmaProcessor": PaliGemmaImages,
    }
)
"""What is mixed into a class of processors, by its name."""
