"""Processors of dual encoders (CLIP, SigLIP), whose text models read no images: here one token, which ends texts,
stands for an image, so that an image is a prompt like any other."""

from __future__ import annotations

from typing import Any

NAMES = ("CLIPProcessor", "Siglip2Processor", "SiglipProcessor")


class DualEncoderImages:
    """Mixed into the class."""

    tokenizer: Any

    @property
    def text_kwargs(self) -> dict[str, Any]:
        """SigLIP 2's fills up texts, which is done where they become tokens."""
        return {}

    @property
    def image_token(self) -> str:
        text: str = self.tokenizer.eos_token
        return text

    @property
    def image_token_id(self) -> int:
        token: int = self.tokenizer.eos_token_id
        return token

    @property
    def image_token_ids(self) -> list[int]:
        return [self.image_token_id]

    def replace_image_token(self, *_: Any, **__: Any) -> str:
        return self.image_token

    def _check_special_mm_tokens(self, *_: Any, **__: Any) -> None:
        """Not asked: the token that stands for an image ends texts too."""
