"""The package's own tests as this repository runs them: in the stage that has a compiler, whole models each night."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.compiler)
            if "[model/" in item.nodeid:
                item.add_marker(pytest.mark.nightly)
