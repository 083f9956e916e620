"""Models that hear answer as transformers does, and a comparison finds features that are wrong or elsewhere."""

from __future__ import annotations

import json
import shutil

import pytest

from tessera.errors import ModelError
from tessera.models.through_transformers.tower import Tower
from tessera.runner.media import MediaInWorker
from tests.models.answers import answers_of
from tools.parity.compare import Cell
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.omni import WITH_BOTH
from tools.parity.sounds import WITH_SOUNDS

FAMILIES = {**WITH_SOUNDS, **WITH_BOTH}
NUM_PROMPTS = 3
"""With one sound, with three and with none."""


@pytest.fixture(scope="session")
def heard(tmp_path_factory):
    """Family's name -> (its checkpoint's folder, the answers)."""
    return answers_of(FAMILIES, tmp_path_factory, NUM_PROMPTS)


def measured(heard, family, mode="chunked"):
    folder, answers = heard(family)
    subject = Subject(folder, PLATFORMS["cpu"], answers, FAMILIES[family].max_model_len)
    compared, evidence = MODES[mode](subject)
    return Cell.from_answers(("cpu", family, mode), compared, evidence)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cell_of_the_table(heard, family):
    found = measured(heard, family)
    assert found.ok, found


# ---- faults ----------------------------------------------------------------------------------------------------------


def assert_found(heard, family="qwen2-audio", mode="chunked"):
    found = measured(heard, family, mode)
    assert not found.ok
    assert found.diff > found.bound


def test_features_one_place_further(heard, monkeypatch):
    encode = Tower.encode
    monkeypatch.setattr(Tower, "encode", lambda tower, modality, inputs: encode(tower, modality, inputs).roll(1, 0))
    assert_found(heard)


def test_features_of_another_sound_of_the_prompt(heard, monkeypatch):
    begin = MediaInWorker.begin

    def swapped(worker, step):
        if step.media is not None and len(step.media.encode) > 1:
            first, second, *_ = step.media.encode
            first.inputs, second.inputs = second.inputs, first.inputs
        begin(worker, step)

    monkeypatch.setattr(MediaInWorker, "begin", swapped)
    assert_found(heard, "granite-speech", "mixed batch")


@pytest.mark.parametrize("family", ["qwen2-audio", "audio-flamingo3"])
def test_a_tower_that_hears_what_pads_a_sound(heard, monkeypatch, family):
    """The number of features is that of the sound."""
    encode = Tower.encode

    def hears_all(tower, modality, inputs):
        count = len(encode(tower, modality, inputs))
        masks = {name: value.new_ones(value.shape) for name, value in inputs.items() if name.endswith("mask")}
        return encode(tower, modality, {**inputs, **masks})[:count]

    monkeypatch.setattr(Tower, "encode", hears_all)
    assert_found(heard, family)


def test_a_model_that_an_adapter_makes_hear_is_refused(heard, tmp_path):

    folder, answers = heard("granite-speech")
    shutil.copytree(folder, tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "has_lora_adapter": True}))
    with pytest.raises(ModelError, match="has_lora_adapter"):
        MODES["chunked"](Subject(tmp_path / "model", PLATFORMS["cpu"], answers))
