"""Models that read images or hear sounds answer as transformers does: their towers' code runs in the host's memory, and
programs read the features."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tessera.errors import PlatformError
from tessera_tpu.model import TracedModel
from tests.models.answers import Answers
from tests.platforms.engine_run import EngineRun
from tests.platforms.with_media import answers_as_reference, media_answers, on_media

__all__ = ["media_answers"]

HOST = "tessera_tpu.platform:HostPlatform"


def start(model: Any, platform: str = HOST, **flags: Any) -> EngineRun:
    return EngineRun(model, platform, **{"depth": 2, **flags})


@pytest.mark.parametrize("name", ["llava", "qwen2.5-vl", "qwen3-vl", "qwen2-audio"])
def test_models_with_media_answer_as_transformers(media_answers: Answers, name: str) -> None:
    """qwen2.5-vl's tokens have positions on several axes, qwen3-vl's features several depths."""
    answers_as_reference(start, name, media_answers, "float32")


@pytest.mark.parametrize(
    "options",
    [{"tensor_parallel_size": 2}, {"platform": "tessera_tpu.platform:InterpretedPlatform"}],
    ids=["two devices", "kernels"],
)
def test_on_two_devices_and_by_kernels(media_answers: Answers, options: dict[str, Any]) -> None:
    answers_as_reference(partial(start, **options), "qwen2.5-vl", media_answers, "float32")


def test_an_image_that_is_known_is_not_encoded_again(media_answers: Answers) -> None:
    """And what a step with images needs is compiled before the first one."""
    folder, answers = media_answers("qwen2.5-vl")
    with on_media(partial(start, folder), "qwen2.5-vl") as run:
        executor: Any = run.executor
        programs = executor.worker.runner.programs
        warm = len(programs.compiled_keys) + len(programs.cached_keys)
        for _ in range(2):
            keys = [run.add(one.prompt, 6, media=one.media, ignore_eos=True) for one in answers]
            run.finish()
            assert [run.answers[key] for key in keys] == [[*one.answer[:6]] for one in answers]
        assert len(programs.compiled_keys) + len(programs.cached_keys) == warm
        counters = {counter.name: counter.value for counter in run.engine.stats.feature_counters}
        unlike = {media.digest for one in answers for media in one.media}
        assert counters["mm_cache_queries"] - counters["mm_cache_hits"] == len(unlike)
        assert counters["mm_cache_hits"] > 0


def test_features_that_the_devices_do_not_get_are_noticed(media_answers: Answers, monkeypatch: Any) -> None:
    begin = TracedModel.begin

    def stale(model: TracedModel, step: Any) -> None:
        values = model.values
        begin(model, step)
        model.values = values

    monkeypatch.setattr(TracedModel, "begin", stale)
    with pytest.raises(AssertionError):
        answers_as_reference(start, "llava", media_answers, "float32")


def test_attention_that_sees_later_tokens_is_refused(media_answers: Answers) -> None:
    folder, _ = media_answers("gemma3-vision")
    with pytest.raises(PlatformError, match="paged: no attention over lookahead_attention"):
        on_media(partial(start, folder), "gemma3-vision")
