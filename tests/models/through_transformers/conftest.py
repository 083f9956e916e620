"""The tiny model of each type and what transformers answers, made once a session."""

from __future__ import annotations

import pytest

from tests.models.answers import answers_of
from tools.parity.through_transformers import THROUGH_TRANSFORMERS

NUM_PROMPTS = 4


@pytest.fixture(scope="session")
def through(tmp_path_factory):
    """Type's name -> (its checkpoint's folder, the answers)."""
    return answers_of(THROUGH_TRANSFORMERS, tmp_path_factory, NUM_PROMPTS)
