"""Types that run through transformers' code answer as transformers does, however the work is cut."""

from __future__ import annotations

import pytest

from tools.parity.compare import Cell
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.through_transformers import THROUGH_TRANSFORMERS

EVERY_NIGHT = [
    (platform, mode)
    for platform in ("cpu", "strict")
    for mode in MODES
    if (platform, mode) not in {("cpu", "mixed batch"), ("strict", "chunked")}
]


def cell(through, name, platform, mode):
    folder, answers = through(name)
    compared, evidence = MODES[mode](Subject(folder, PLATFORMS[platform], answers))
    return Cell.of((platform, name, mode), compared, evidence)


@pytest.mark.parametrize(("platform", "mode"), [("cpu", "mixed batch"), ("strict", "chunked")])
@pytest.mark.parametrize("name", THROUGH_TRANSFORMERS)
def test_a_cell_of_the_table(through, name, platform, mode):
    found = cell(through, name, platform, mode)
    assert found.ok, found


@pytest.mark.nightly
@pytest.mark.parametrize(("platform", "mode"), EVERY_NIGHT)
@pytest.mark.parametrize("name", THROUGH_TRANSFORMERS)
def test_the_other_cells(through, name, platform, mode):
    found = cell(through, name, platform, mode)
    assert found.ok, found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["gpt2", "cohere2", "olmoe"])
def test_three_in_every_mode(through, name, mode):
    found = cell(through, name, "cpu", mode)
    assert found.ok, found
