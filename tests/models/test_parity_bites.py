"""A comparison is worth what it finds: models that are a little wrong, and answers that are."""

from __future__ import annotations

import json
import math

import pytest
import torch

from tools.parity.__main__ import main, table
from tools.parity.compare import Cell, compare
from tools.parity.families import FAMILIES
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.oracle import Answer

NO_BIAS = {"architectures": ["LlamaForCausalLM"]}

WRONG = {
    "another theta": ("llama2", {"rope_parameters": {"rope_type": "default", "rope_theta": 10100.0}}),
    "another epsilon": ("llama2", {"rms_norm_eps": 1e-3}),
    "no rotary scaling": ("llama3", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    "a window one shorter": ("mistral", {"sliding_window": 6}),
    "a window one longer": ("mistral", {"sliding_window": 8}),
    "no window": ("mistral", {"sliding_window": None}),
    "no biases": ("qwen2", NO_BIAS),
    "a window on all layers": ("qwen2-window", {"layer_types": ["sliding_attention"] * 3}),
    "no norms of heads": ("qwen3", NO_BIAS),
    "another activation": ("qwen3", {"hidden_act": "gelu"}),
    "one expert less": ("mixtral", {"num_experts_per_tok": 1}),
}


@pytest.mark.parametrize(("family", "edit"), WRONG.values(), ids=WRONG)
def test_a_wrong_model_is_found(oracle, tmp_path, family, edit):
    folder, answers = oracle(family)
    for file in folder.glob("model*"):
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **edit}))
    compared, evidence = MODES["mixed batch"](
        Subject(tmp_path, PLATFORMS["cpu"], answers[:3], FAMILIES[family].max_model_len)
    )
    found = Cell.of(("cpu", family, "mixed batch"), compared, evidence)
    assert not found.ok
    assert found.diff > found.bound


# ---- answers ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def answer():
    """Prompt 5 6; 1 2 3 follow. The logits of each position differ by 1, those of the last choice by almost nothing."""
    logits = torch.arange(8.0).repeat(5, 1)
    logits[3, 6] = 7.0 - 5e-5
    return Answer((5, 6), (5, 6, 1, 2, 3), logits)


def computed(answer, **wrong):
    """Its own logits at the four positions that an engine computes; wrong: position4=value to add there."""
    return [
        (position, answer.logits[position] + wrong.get(f"position{position}", 0.0))
        for position in range(len(answer.tokens) - 1)
    ]


def test_the_same_is_ok(answer):
    found = compare(answer, [1, 2, 3], computed(answer))
    assert found.ok
    assert (found.positions, found.missing, found.diff, found.excused) == (4, 0, 0.0, False)
    assert found.bound == pytest.approx(7e-4)


@pytest.mark.parametrize(("off", "ok"), [(6e-4, True), (8e-4, False), (math.nan, False), (math.inf, False)])
def test_the_bound(answer, off, ok):
    assert compare(answer, [1, 2, 3], computed(answer, position2=off)).ok == ok


def test_a_position_that_was_never_computed(answer):
    assert not compare(answer, [1, 2, 3], computed(answer)[:1] + computed(answer)[2:]).ok
    assert not compare(answer, [1, 2, 3], []).ok
    assert compare(answer, [1, 2, 3], computed(answer)[2:], first_position=2).ok


@pytest.mark.parametrize("tokens", [[1, 3, 3], [1, 2], [1, 2, 3, 4], []])
def test_other_tokens(answer, tokens):
    found = compare(answer, tokens, computed(answer))
    assert not found.ok
    assert not found.excused


def test_two_best_within_the_tolerance_are_an_excuse(answer):
    found = compare(answer, [1, 2, 4], computed(answer))
    assert found.excused
    assert found.ok
    assert compare(answer, [1, 2, 4], computed(answer, position3=1.0)).diff == 1.0, "up to there it counts"


def test_few_are_excused(answer):
    plain, excused = (compare(answer, [1, 2, last], computed(answer)) for last in (3, 4))
    assert Cell.of(("p", "f", "m"), [plain] * 49 + [excused], "seen").ok
    assert not Cell.of(("p", "f", "m"), [plain] * 48 + [excused], "seen").ok


def test_a_mode_that_did_nothing_fails(answer):
    plain = compare(answer, [1, 2, 3], computed(answer))
    assert Cell.of(("p", "f", "m"), [plain], "3 preemptions").ok
    assert not Cell.of(("p", "f", "m"), [plain], "").ok


def test_one_bad_prompt_is_what_the_table_shows(answer):
    plain, wrong = (compare(answer, [1, 2, 3], computed(answer, position1=off)) for off in (0.0, math.nan))
    found = Cell.of(("cpu", "llama2", "alone"), [plain, wrong, plain], "seen")
    assert not found.ok
    last = table([found]).splitlines()[-1].split()
    assert last[0] == "cpu"
    assert "nan" in last
    assert last[-1] == "FAILED"


def test_the_command_prints_the_table_and_its_exit_code_says_it(capsys):
    small = ["--family", "qwen2", "--platform", "cpu", "--prompts", "1"]
    assert main([*small, "--mode", "alone"]) == 0
    header, line = capsys.readouterr().out.splitlines()[:2]
    assert header.split()[:3] == ["platform", "family", "mode"]
    assert line.split()[:3] == ["cpu", "qwen2", "alone"]
    assert line.endswith("ok")
    assert main([*small, "--mode", "mixed batch"]) == 1, "one prompt is no mixed batch"
    assert "1 failed" in capsys.readouterr().out
