"""The tiny model of each family and what transformers answers, made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tools.parity.families import FAMILIES
from tools.parity.family import save_model
from tools.parity.oracle import ask, make_prompts

NUM_PROMPTS = 6


@pytest.fixture(scope="session")
def oracle(tmp_path_factory):
    """Family's name -> (its checkpoint's folder, the answers)."""
    known = {}

    def of(family: str) -> tuple[Path, list]:
        if family not in known:
            folder = tmp_path_factory.mktemp(family)
            model = save_model(FAMILIES[family], folder)
            known[family] = folder, ask(model, make_prompts(model.config.vocab_size, NUM_PROMPTS))
        return known[family]

    return of


@pytest.fixture(autouse=True)
def one_thread():
    """The models are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
