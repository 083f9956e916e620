"""What is known of models with images from their config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tessera.config import EngineConfig, ModelConfig, SchedulerConfig, build_config
from tessera.config.modalities import longest_prefix
from tessera.engine.beam_search import check_beams
from tessera.errors import ConfigError, ModelError, RequestError

PALIGEMMA = {
    "architectures": ["PaliGemmaForConditionalGeneration"],
    "model_type": "paligemma",
    "text_config": {
        "model_type": "gemma",
        "vocab_size": 300,
        "use_bidirectional_attention": True,
    },
}


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


@pytest.mark.parametrize(("rows", "slots"), [(1, 2048), (8, 8 * 1500), (64, 16384)])
def test_the_sounds_of_all_rows_stay_encoded_if_there_is_room(rows: int, slots: int) -> None:
    whisper = {"architectures": ["WhisperForConditionalGeneration"], "max_source_positions": 1500}
    model = ModelConfig("", "whisper", whisper, 100, 448)
    scheduler = SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=2048)
    assert EngineConfig(model, "", scheduler=scheduler).encoder_cache_tokens == slots


def test_what_a_model_whose_prompts_see_themselves_does_not_do(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PALIGEMMA))
    (tmp_path / "tokenizer.json").write_text("{}")
    flags: dict[str, Any] = {"model": tmp_path, "load_format": "dummy", "platform": "a.module:Platform"}
    model = build_config(**flags, skip_tokenizer_init=True).model
    assert (model.generates, model.modalities, model.max_model_len) == (True, ("image",), 8192)
    with pytest.raises(RequestError, match="beams cannot be continued"):
        check_beams(model)
    with pytest.raises(ConfigError, match="with its images alone; leave it out"):
        build_config(**flags, skip_tokenizer_init=True, limit_mm_per_prompt={"image": 0})
    with pytest.raises(ModelError, match="with its images alone, and the model's folder has no processor_config.json"):
        build_config(**flags)
