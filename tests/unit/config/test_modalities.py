"""What is known of models with images from their config.json."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.config.modalities import longest_prefix


@pytest.mark.parametrize(
    ("text", "longest"),
    [
        ({"model_type": "gemma"}, None),
        ({"model_type": "gemma2"}, 4096),
        ({"model_type": "gemma2", "sliding_window": 7}, 7),
    ],
)
def test_a_prompt_that_sees_itself_is_no_longer_than_windows(text: dict[str, Any], longest: int | None) -> None:
    assert longest_prefix({"architectures": ["PaliGemmaForConditionalGeneration"], "text_config": text}) == longest
    assert longest_prefix({"architectures": ["LlavaForConditionalGeneration"], "text_config": text}) is None
