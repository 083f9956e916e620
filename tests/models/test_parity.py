"""The parity table with few prompts: some cells of every family each time, the others in nightly shares; `python -m
tools.parity` prints it with many."""

from __future__ import annotations

import pytest
import torch

from tools.parity.compare import Cell
from tools.parity.families import FAMILIES, SHORT
from tools.parity.modes import MODES, PLATFORMS, Subject

EVERY_TIME = [
    ("cpu", "mixed batch"),
    ("cpu", "prefix hits"),
    ("strict", "chunked"),
    ("strict", "full cache"),
]
OTHERS = [(platform, mode) for platform in ("cpu", "strict") for mode in MODES if (platform, mode) not in EVERY_TIME]
OTHERS += [("reference", "chunked"), ("strict-separate", "chunked")]


def cell(oracle, family, platform, mode):
    folder, answers = oracle(family)
    subject = Subject(folder, PLATFORMS[platform], answers, FAMILIES[family].max_model_len)
    compared, evidence = MODES[mode](subject)
    return Cell.from_answers((platform, family, mode), compared, evidence)


@pytest.mark.parametrize(("platform", "mode"), EVERY_TIME)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_cell_of_the_table(oracle, family, platform, mode):
    found = cell(oracle, family, platform, mode)
    assert found.ok, found


@pytest.mark.nightly
@pytest.mark.parametrize(("platform", "mode"), OTHERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_another_cell(oracle, family, platform, mode):
    found = cell(oracle, family, platform, mode)
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


WINDOWED = ["mistral", "qwen2-window", "qwen3-moe-shares", "phi3-short", "smollm3-window", "gemma2", "gemma3"]


@pytest.mark.parametrize("family", WINDOWED)
def test_prompts_are_longer_than_the_windows(oracle, family):
    _, answers = oracle(family)
    window = FAMILIES[family].make().config.sliding_window
    assert max(len(answer.prompt) for answer in answers) > 3 * window


@pytest.mark.parametrize("family", ["llama-yarn", "llama-yarn-mscale", "llama-dynamic", "phi3"])
def test_prompts_are_longer_than_training_was(oracle, family):
    _, answers = oracle(family)
    assert max(len(answer.prompt) for answer in answers) > SHORT


def test_what_the_oracle_fixes_is_what_long_texts_get(oracle):
    """transformers chooses the rotary embedding anew for each text: for one that is longer than training was, as the
    oracle has it for all."""
    _, answers = oracle("phi3")
    tokens = torch.tensor([max((answer.tokens for answer in answers), key=len)])
    fixed = FAMILIES["phi3"].make().eval()
    free = type(fixed)(fixed.config).eval()
    free.load_state_dict(fixed.state_dict())
    with torch.inference_mode():
        assert torch.equal(free(tokens).logits, fixed(tokens).logits)
        assert not torch.equal(free(tokens[:, :SHORT]).logits, fixed(tokens[:, :SHORT]).logits)
