"""The tiny model of each type and what transformers answers, made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.parity.family import save_model
from tools.parity.oracle import ask, make_prompts
from tools.parity.through_transformers import THROUGH_TRANSFORMERS

NUM_PROMPTS = 4


@pytest.fixture(scope="session")
def through(tmp_path_factory):
    """Type's name -> (its checkpoint's folder, the answers)."""
    known = {}

    def of(name: str) -> tuple[Path, list]:
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            model = save_model(THROUGH_TRANSFORMERS[name], folder)
            known[name] = folder, ask(model, make_prompts(model.config.vocab_size, NUM_PROMPTS))
        return known[name]

    return of
