"""The chart, rendered once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.value_sets import VALUE_SETS
from tools.deploy.chart import Rendering, render

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def renderings() -> dict[str, Rendering]:
    """By what the values are for."""
    return dict(zip(VALUE_SETS, render(list(VALUE_SETS.values())), strict=True))


@pytest.fixture(scope="session")
def rendered() -> Callable[..., Rendering]:
    """Of the values that are given as keywords."""

    def one(**values: Any) -> Rendering:
        (rendering,) = render([values])
        return rendering

    return one
