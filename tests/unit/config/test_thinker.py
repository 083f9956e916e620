"""config.json of a model that speaks is read as its thinker's."""

from __future__ import annotations

import pytest

from tessera.config.thinker import thinker_alone
from tessera.errors import ModelError

SPEAKER = {"architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni", "dtype": "bfloat16"}


def test_the_thinkers_fields_count() -> None:
    thinker = {"architectures": ["Other"], "model_type": "qwen2_5_omni_thinker", "text_config": {}}
    assert thinker_alone({**SPEAKER, "thinker_config": thinker, "talker_config": {}}) == {
        "architectures": ["Qwen2_5OmniThinkerForConditionalGeneration"],
        "model_type": "qwen2_5_omni_thinker",
        "dtype": "bfloat16",
        "text_config": {},
    }
    alone = {"architectures": ["Qwen2ForCausalLM"]}
    assert thinker_alone(alone) is alone


def test_a_speaker_without_a_thinker_is_refused() -> None:
    with pytest.raises(ModelError, match="thinker_config in config.json is not an object"):
        thinker_alone(SPEAKER)
