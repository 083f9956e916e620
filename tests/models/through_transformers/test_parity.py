"""Types that run through transformers' code answer as transformers does, however the work is cut."""

from __future__ import annotations

import pytest

from tools.parity.compare import Cell
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.through_transformers import THROUGH_TRANSFORMERS

EVERY_MODE = ("gpt2", "exaone4", "olmoe")
"""With learned positions, with windows, with experts: in every mode but the longest in every run."""
ALWAYS = (
    "apertus", "bart", "biogpt", "diffllama", "dots1", "electra", "gemma4_text", "git",
    "glm4", "gpt_neo", "gpt_neox", "mimo_v2_flash", "modernbert-decoder", "nanochat", "nemotron",
    "olmo", "openai-gpt", "opt", "roberta", "roformer", "seed_oss", "stablelm", "starcoder2", "vaultgemma",
)  # fmt: skip
"""In chunks in every run."""
EVERY_POINT = "preempted every point"
CELLS = [(name, platform, mode) for name in THROUGH_TRANSFORMERS for platform in ("cpu", "strict") for mode in MODES]
FAST = [
    (name, platform, mode)
    for name, platform, mode in CELLS
    if (name in EVERY_MODE and platform == "cpu" and mode != EVERY_POINT)
    or (name in ALWAYS + EVERY_MODE and (platform, mode) == ("strict", "chunked"))
]


def cell(through, name, platform, mode):
    folder, answers = through(name)
    compared, evidence = MODES[mode](Subject(folder, PLATFORMS[platform], answers))
    return Cell.from_answers((platform, name, mode), compared, evidence)


@pytest.mark.parametrize(("name", "platform", "mode"), FAST)
def test_a_cell_of_the_table(through, name, platform, mode):
    found = cell(through, name, platform, mode)
    assert found.ok, found


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "platform", "mode"), [cell for cell in CELLS if cell not in FAST])
def test_the_other_cells(through, name, platform, mode):
    found = cell(through, name, platform, mode)
    assert found.ok, found
