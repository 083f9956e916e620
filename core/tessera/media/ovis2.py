"""Ovis2's processor: among the tokens of an image are some that stand for rows of the tower's own table. Here each of
them has a feature too, and the tower is told which tokens there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

NAME = "Ovis2Processor"
_WITH_FEATURES = ("<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")


class Ovis2Images:
    """Mixed into the class."""

    tokenizer: Any

    @property
    def image_token_ids(self) -> list[int]:
        ids: list[int] = self.tokenizer.convert_tokens_to_ids(list(_WITH_FEATURES))
        return ids

    def _process_images(self, images: Sequence[Any], **options: Any) -> tuple[dict[str, Any], list[str]]:
        mixed_into: Any = super()
        processed, texts = mixed_into._process_images(images, **options)  # noqa: SLF001 - what it replaces
        tokens = np.array(self.tokenizer("".join(texts), add_special_tokens=False)["input_ids"], np.int64)
        return {**processed, "image_tokens": tokens[np.isin(tokens, self.image_token_ids)]}, texts
