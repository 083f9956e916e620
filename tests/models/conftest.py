"""The tiny model of each family and what transformers answers, made once a session."""

from __future__ import annotations

import pytest
import torch

from tests.models.answers import answers_of
from tools.parity.families import FAMILIES

NUM_PROMPTS = 6


@pytest.fixture(scope="session")
def oracle(tmp_path_factory):
    """Family's name -> (its checkpoint's folder, the answers)."""
    return answers_of(FAMILIES, tmp_path_factory, NUM_PROMPTS)


@pytest.fixture(autouse=True)
def one_thread():
    """The models are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
