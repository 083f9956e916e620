"""Models that read images or hear sounds answer as transformers does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpus.conftest import PLATFORMS
from tests.models.answers import Answers
from tests.platforms.emulated import on_device
from tests.platforms.engine_run import EngineRun
from tests.platforms.with_media import MEDIA, answers_as_reference, media_answers

__all__ = ["media_answers"]

pytestmark = pytest.mark.compiler


def start(model: Path, **flags: Any) -> EngineRun:
    return on_device(model, PLATFORMS["cuda"], **flags)


@pytest.mark.parametrize("name", MEDIA)
def test_models_with_media_answer_as_transformers(media_answers: Answers, name: str) -> None:
    answers_as_reference(start, name, media_answers, "float32")
