"""Models that watch videos answer as transformers does, and a comparison finds features of another frame."""

from __future__ import annotations

import pytest

from tessera.models.through_transformers.tower import Tower
from tests.models.answers import answers_of
from tools.parity.compare import Cell
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.videos import WITH_VIDEOS

NUM_PROMPTS = 6
"""With one video or image, with three and with none."""
EVERY_MODE = ("internvl-video", "smolvlm-video")
"""Whose videos have tokens that images have in transformers; in the others' cells prompts are cut into parts."""
CELLS = [(family, "cpu", "chunked") for family in WITH_VIDEOS if family not in EVERY_MODE] + [
    (family, platform, mode)
    for family in EVERY_MODE
    for platform, mode in (
        ("cpu", "mixed batch"),
        ("strict", "chunked"),
        ("cpu", "full cache"),
        ("strict", "preempted each token"),
        ("cpu", "prefix hits"),
        ("strict", "drafts"),
    )
]


@pytest.fixture(scope="session")
def watched(tmp_path_factory):
    """Family's name -> (its checkpoint's folder, the answers)."""
    return answers_of(WITH_VIDEOS, tmp_path_factory, NUM_PROMPTS)


def measured(watched, family, platform, mode):
    folder, answers = watched(family)
    subject = Subject(folder, PLATFORMS[platform], answers, WITH_VIDEOS[family].max_model_len)
    return Cell.from_answers((platform, family, mode), *MODES[mode](subject))


@pytest.mark.parametrize(("family", "platform", "mode"), CELLS)
def test_a_cell_of_the_table(watched, family, platform, mode):
    found = measured(watched, family, platform, mode)
    assert found.ok, found


@pytest.mark.parametrize("family", EVERY_MODE)
def test_frames_in_another_order(watched, monkeypatch, family):
    encode = Tower.encode

    def turned(tower, modality, inputs):
        features = encode(tower, modality, inputs)
        return features.roll(4, 0) if modality == "video" else features

    monkeypatch.setattr(Tower, "encode", turned)
    found = measured(watched, family, "cpu", "mixed batch")
    assert not found.diff <= found.bound
