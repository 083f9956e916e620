"""The package's own tests as this repository runs them: in the stage that has a compiler, each on one thread; whole
models, and the ops of the second variant, which are the first's, each night."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.compiler)
            if "[model/" in item.nodeid or "static_shapes_conform[op/" in item.nodeid:
                item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def workers_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were installed."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
