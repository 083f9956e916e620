"""Every cell of the parity table with few prompts; `python -m tools.parity` prints it with many."""

from __future__ import annotations

import pytest

from tools.parity.compare import Cell
from tools.parity.families import FAMILIES
from tools.parity.modes import MODES, PLATFORMS, Subject

EVERY_POINT = "preempted every point"
ORDINARY = [mode for mode in MODES if mode != EVERY_POINT]


def cell(oracle, family, platform, mode):
    folder, answers = oracle(family)
    subject = Subject(folder, PLATFORMS[platform], answers, FAMILIES[family].max_model_len)
    compared, evidence = MODES[mode](subject)
    return Cell.of((platform, family, mode), compared, evidence)


@pytest.mark.parametrize("platform", ["cpu", "strict"])
@pytest.mark.parametrize("mode", ORDINARY)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_cell_of_the_table(oracle, family, mode, platform):
    found = cell(oracle, family, platform, mode)
    assert found.ok, found


@pytest.mark.nightly
@pytest.mark.parametrize("platform", ["cpu", "strict"])
@pytest.mark.parametrize("family", FAMILIES)
def test_preempted_at_every_point(oracle, family, platform):
    found = cell(oracle, family, platform, EVERY_POINT)
    assert found.ok, found


@pytest.mark.parametrize("platform", ["reference", "strict-separate"])
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_on_the_other_platforms(oracle, family, platform):
    found = cell(oracle, family, platform, "chunked")
    assert found.ok, found


@pytest.mark.parametrize("family", FAMILIES)
def test_no_dimension_suits_a_kernel(family):
    shapes = {name: tuple(weight.shape) for name, weight in FAMILIES[family].make().named_parameters()}
    for layer in ("model.layers.0.self_attn.{}_proj.weight", "model.layers.0.mlp.{}_proj.weight"):
        for names in (("q", "k", "v"), ("gate", "up")):
            joined = [shapes[layer.format(name)] for name in names if layer.format(name) in shapes]
            shapes[layer.format("".join(names))] = (sum(shape[0] for shape in joined) or 1,)
    assert not [name for name, shape in shapes.items() if any(size % 16 == 0 for size in shape)]


def test_one_family_lies_in_several_files(oracle):
    folder, _ = oracle("llama2")
    assert (folder / "model.safetensors.index.json").is_file()
    assert len(list(folder.glob("*.safetensors"))) > 2


def test_prompts_are_longer_than_the_windows(oracle):
    for family in ("mistral", "qwen2-window"):
        _, answers = oracle(family)
        window = FAMILIES[family].make().config.sliding_window
        assert max(len(answer.prompt) for answer in answers) > 3 * window
