"""Models that read images or hear sounds, on platforms over an emulated device. Their towers run through transformers'
code there too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.models.answers import Answers, answers_of
from tests.platforms.engine_run import EngineRun
from tools.parity import image_kinds
from tools.parity.encoder_decoders import ENCODER_DECODERS
from tools.parity.family import Family
from tools.parity.images import Images
from tools.parity.oracle import Answer
from tools.parity.sounds import WITH_SOUNDS
from tools.parity.vision import WITH_IMAGES
from tools.parity.vision_maker import CLIP, maker, text

EACH_DAY = ("llava", "qwen2.5-vl", "whisper-audio")
"""Features in place of embeddings, positions on several axes, and an encoder's keys and values."""
OTHERS = ("qwen3-vl", "gemma3-vision", "mllama-vision", "qwen2-audio", "paligemma", "ernie-4.5-vl")
"""Features of several depths, tokens that see later ones, ranges of what an encoder made, sounds, prompts that see
themselves whole, and experts for images."""
WIDE = "llava-wide"
"""With heads of 128."""
MOST_PROMPTS = 3
MOST_ROUNDED = 8
"""Tokens of an answer in a dtype of 16 bits, beyond which rounding may decide."""

FAMILIES = {
    **WITH_IMAGES,
    **WITH_SOUNDS,
    **ENCODER_DECODERS,
    WIDE: Family(
        WIDE,
        maker(
            "llava",
            text("llama", head_dim=128),
            {"model_type": "clip_vision_model", **CLIP},
            vision_feature_layer=-2,
        ),
        images=Images(image_kinds.TOKEN, image_kinds.square(21, 9)),
    ),
}

MEDIA = [*EACH_DAY, *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHERS)]


@pytest.fixture(scope="session")
def media_answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Family's name -> (its checkpoint's folder, transformers' answers in float32)."""
    return answers_of(FAMILIES, tmp_path_factory, MOST_PROMPTS)


def answers_as_reference(start: Callable[..., EngineRun], name: str, known: Answers, dtype: str) -> None:
    """start: an engine on a platform, of a folder and with more flags."""
    folder, answers = known(name)
    expected = [[*answer.answer] for answer in answers]  # in float32 the reference's too, by other tests
    if dtype != "float32":
        expected = _asked(partial(EngineRun, folder, "reference", dtype=dtype), name, answers, MOST_ROUNDED)
    found = _asked(partial(start, folder), name, answers, len(expected[0]))
    assert found == expected, (found, expected)


def on_media(start: Callable[..., EngineRun], name: str) -> EngineRun:
    """An engine whose steps divide prompts. Towers read the device: transformers' code asks for the sizes of an
    image."""
    sizes = {"max_model_len": FAMILIES[name].max_model_len, "max_num_seqs": 4, "max_num_batched_tokens": 64}
    return start(features=("media",), executor=None, kv_cache_memory_bytes=1 << 23, **sizes)


def _asked(start: Callable[..., EngineRun], name: str, answers: list[Answer], num_tokens: int) -> list[list[int]]:
    with on_media(start, name) as run:
        for answer in answers:
            run.add(answer.prompt, num_tokens, media=answer.media, temperature=0.0, ignore_eos=True)
        run.finish()
        return [*run.answers.values()]
