"""Processors whose methods for one image need more than others' do, or say less: here they are like the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
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


class InternVLImages:
    """Mixed into InternVL's, which has one array of what images and videos show, in the order of a text, and one token
    for the features of both. Here each has its own array, and the token that stands for a video in a text also stands
    for a video's features: which token that is, nothing behind the tower asks."""

    image_token: str
    image_token_ids: list[int]
    video_token: str
    image_seq_length: int
    start_image_token: str
    end_image_token: str
    tokenizer: Any

    @property
    def video_token_id(self) -> int:
        token: int = self.tokenizer.convert_tokens_to_ids(self.video_token)
        return token

    @property
    def video_token_ids(self) -> list[int]:
        return [self.video_token_id, *self.image_token_ids[1:]]

    @property
    def unused_input_names(self) -> list[str]:
        return ["num_patches"]

    def __call__(self, **arguments: Any) -> Any:
        from transformers import ProcessorMixin

        call: Any = ProcessorMixin.__call__
        return call(self, **arguments)

    def _process_videos(self, videos: Sequence[Any], **options: Any) -> tuple[dict[str, Any], list[str]]:
        mixed_into: Any = super()
        processed, texts = mixed_into._process_videos(videos, **options)  # noqa: SLF001 - what it replaces
        (frames,) = processed.pop("pixel_values_videos")
        return {**processed, "pixel_values": frames}, texts

    def replace_video_token(self, video_inputs: Mapping[str, Any], video_idx: int, **_: Any) -> str:
        count = len(video_inputs["pixel_values_videos"][video_idx])
        shown = f"{self.start_image_token}{self.video_token * self.image_seq_length}{self.end_image_token}"
        return "\n".join(f"Frame{number}: {shown}" for number in range(1, count + 1))


class PaliGemmaImages:
    """Mixed into PaliGemma's, which puts the token that begins a text, and a line break, around what is asked about the
    images: here a chat template does, or who sends the prompt."""

    def prepare_inputs_layout(self, images: Any = None, text: Any = None, **others: Any) -> Any:
        from transformers import ProcessorMixin

        layout: Any = ProcessorMixin.prepare_inputs_layout
        return layout(self, images=images, text=text, **others)


class MllamaImages:
    """Mixed into Llama 3.2 Vision's, which puts the token that begins a text into it, as PaliGemma's does, and asks for
    images by prompt."""

    def prepare_inputs_layout(self, images: Any = None, text: Any = None, **others: Any) -> Any:
        from transformers import ProcessorMixin
        from transformers.image_utils import make_nested_list_of_images

        layout: Any = ProcessorMixin.prepare_inputs_layout
        images, text, *_ = layout(self, images=images, text=text, **others)
        return None if images is None else make_nested_list_of_images(images), text


class SmolVLMVideos:
    """Mixed into SmolVLM's, in whose texts the token of an image's features stands for a video's too. It asks for
    num2words when it is made, which only videos need."""

    image_token_id: int

    @classmethod
    def from_pretrained(cls, *folder: str, **options: Any) -> Any:
        module: Any = import_module("transformers.models.smolvlm.processing_smolvlm")
        module.num2words = module.num2words or _missing_words
        mixed_into: Any = super()
        return mixed_into.from_pretrained(*folder, **options)

    def _check_special_mm_tokens(self, *_: Any, **__: Any) -> None:
        """Counts the tokens of a modality, which here are another's too."""

    @property
    def video_token_id(self) -> int:
        return self.image_token_id

    @property
    def video_token_ids(self) -> list[int]:
        return [self.image_token_id]


def _missing_words(number: int) -> str:
    raise ImportError("num2words is not installed (pip install 'tessera-llm[video]')")


COMPLETIONS: Mapping[str, type] = MappingProxyType(
    {
        "InternVLProcessor": InternVLImages,
        "Lfm2VlProcessor": Lfm2VlImages,
        "Llama4Processor": Llama4Images,
        "MiniCPMOcrProcessor": MiniCPMImages,
        "MiniCPMV4_6Processor": MiniCPMImages,
        "MllamaProcessor": MllamaImages,
        "PaliGemmaProcessor": PaliGemmaImages,
        "SmolVLMProcessor": SmolVLMVideos,
    }
)
"""What is mixed into a class of processors, by its name."""
