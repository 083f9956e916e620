"""Models that read images or hear sounds answer as on the reference platform."""

from __future__ import annotations

import pytest

from tests.models.answers import Answers
from tests.platforms.with_media import MEDIA, WIDE, answers_as_reference, media_answers
from tests.vendors.chosen import PLATFORM, start

__all__ = ["media_answers"]

pytestmark = pytest.mark.compiler

NAMES = [WIDE] if PLATFORM.wide_heads else MEDIA


@pytest.mark.parametrize("name", NAMES)
def test_models_with_media_answer_as_the_reference(media_answers: Answers, name: str) -> None:
    answers_as_reference(start, name, media_answers, PLATFORM.dtype)
