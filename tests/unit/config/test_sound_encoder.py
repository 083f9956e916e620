"""How many positions sounds have."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.config.sound_encoder import SAMPLE_RATE, SOUND_ENCODERS, sound_encoder

EXPECTED: dict[str, tuple[int, int]] = {
    "CanaryForConditionalGeneration": (375, 160),
    "CohereAsrForConditionalGeneration": (375, 160),
    "MoonshineForConditionalGeneration": (1248, 895),
    "MoonshineStreamingForConditionalGeneration": (1500, 80),
    "Speech2TextForConditionalGeneration": (750, 400),
    "SpeechT5ForSpeechToText": (1499, 400),
}
"""The most positions, and the fewest samples that have one."""


@pytest.mark.parametrize("architecture", SOUND_ENCODERS)
def test_positions_of_what_is_published(architecture: str) -> None:
    encoder = sound_encoder({"architectures": [architecture]})
    assert encoder is not None
    least = encoder.samples(1)
    assert (encoder.positions(encoder.most_samples), least) == EXPECTED[architecture]
    assert (encoder.positions(least), encoder.positions(least - 1)) == (1, 0)


def test_a_sound_is_no_longer_than_a_table_of_positions() -> None:
    said: dict[str, Any] = {"architectures": ["MoonshineStreamingForConditionalGeneration"]}
    encoder = sound_encoder({**said, "max_position_embeddings": 100})
    assert encoder is not None
    assert encoder.positions(encoder.most_samples) == 100
    assert encoder.positions(encoder.most_samples + 1) == 101
    assert encoder.most_samples < 3 * SAMPLE_RATE
