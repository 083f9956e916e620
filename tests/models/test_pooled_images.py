"""Models that embed prompts with images have transformers' hidden states, whatever the images' sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.platforms.engine_run import EngineRun
from tools.parity.family import save_model
from tools.parity.vision import WITH_IMAGES

COUNT = 4
"""Prompts with one image, with three, with none and with two."""
TOLERANCE = 1e-4
"""Of the largest number."""


@torch.inference_mode()
def last_states(model: Any, images: Any, prompts: Any, media: Any) -> list[Tensor]:
    """Of each prompt by itself."""
    states = []
    for prompt, placed in zip(prompts, media, strict=True):
        shown = images.arguments(placed, len(prompt), len(prompt))
        states.append(model.model(torch.tensor([prompt]), **shown).last_hidden_state[0, -1])
    return states


@pytest.mark.parametrize("family", ["qwen2-vl", "qwen2.5-vl", "qwen3-vl", "llava"])
def test_the_last_token_s_state(tmp_path: Path, family: str) -> None:
    """In one step, and then in parts of prompts and behind those that the prefix cache has."""
    known = WITH_IMAGES[family]
    model, images = save_model(known, tmp_path), known.images
    prompts, media = images.prompts(model.config.get_text_config().vocab_size, COUNT)
    wanted = last_states(model, images, prompts, media)
    bound = TOLERANCE * max(float(state.abs().max()) for state in wanted)
    for batched in (256, 19):
        with EngineRun(
            tmp_path, "cpu", features=("media",), convert="embed", max_num_batched_tokens=batched, max_model_len=96
        ) as run:
            for _ in range(2):
                keys = [run.pool(prompt, media=placed) for prompt, placed in zip(prompts, media, strict=True)]
                run.finish()
                for key, want in zip(keys, wanted, strict=True):
                    assert float((torch.from_numpy(run.pooled[key]) - want).abs().max()) <= bound
