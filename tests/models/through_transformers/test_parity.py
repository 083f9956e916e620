"""Types that run through transformers' code answer as transformers does, however the work is cut."""

from __future__ import annotations

import pytest

from tools.parity.compare import Cell
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.through_transformers import THROUGH_TRANSFORMERS

EVERY_MODE = ("gpt2", "cohere2", "olmoe")
"""With learned positions, with windows, with experts: always in every mode."""
AT_NIGHT = [
    (platform, mode) for platform in ("cpu", "strict") for mode in MODES if (platform, mode) != ("cpu", "chunked")
]


def cell(through, name, platform, mode):
    folder, answers = through(name)
    compared, evidence = MODES[mode](Subject(folder, PLATFORMS[platform], answers))
    return Cell.of((platform, name, mode), compared, evidence)


@pytest.mark.parametrize("name", THROUGH_TRANSFORMERS)
def test_every_type_in_chunks(through, name):
    found = cell(through, name, "cpu", "chunked")
    assert found.ok, found


@pytest.mark.parametrize(("platform", "mode"), AT_NIGHT)
@pytest.mark.parametrize("name", EVERY_MODE)
def test_three_types_in_every_mode(through, name, platform, mode):
    found = cell(through, name, platform, mode)
    assert found.ok, found


@pytest.mark.nightly
@pytest.mark.parametrize(("platform", "mode"), AT_NIGHT)
@pytest.mark.parametrize("name", [name for name in THROUGH_TRANSFORMERS if name not in EVERY_MODE])
def test_every_type_in_every_mode(through, name, platform, mode):
    found = cell(through, name, platform, mode)
    assert found.ok, found
