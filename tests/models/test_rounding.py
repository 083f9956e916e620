"""In bfloat16 a model is as near to float32 as transformers' is: one that rounds where it should not is found."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tessera_cpu.norms import AddNorm, RmsNorm
from tools.parity.__main__ import main, rounding_table
from tools.parity.families import FAMILIES
from tools.parity.family import save_model
from tools.parity.modes import PLATFORMS, Subject
from tools.parity.rounding import MOST_TYPICAL, Narrowed, Rounded, RoundingCell, measure_rounding

CELLS = [
    ("llama3", "cpu", "mixed batch"),
    ("qwen3", "strict", "mixed batch"),
    ("mixtral", "cpu", "chunked"),
    ("gemma2", "cpu", "mixed batch"),
    ("falcon-40b", "strict", "chunked"),
]


def cell(oracle, tmp_path, family, platform, mode):
    folder, answers = oracle(family)
    subject = Subject(folder, PLATFORMS[platform], answers, FAMILIES[family].max_model_len)
    model = save_model(FAMILIES[family], tmp_path)
    return RoundingCell.from_answers((platform, family, mode), measure_rounding(subject, model, "bfloat16", mode))


@pytest.mark.parametrize(("family", "platform", "mode"), CELLS)
def test_bfloat16_is_as_near_as_transformers_is(oracle, tmp_path, family, platform, mode):
    found = cell(oracle, tmp_path, family, platform, mode)
    assert found.ok, found
    assert found.typical > 1e-3, "float32 was compared"


@pytest.mark.nightly
@pytest.mark.parametrize("platform", ["cpu", "strict"])
@pytest.mark.parametrize("family", FAMILIES)
def test_so_is_every_family(oracle, tmp_path, family, platform):
    found = cell(oracle, tmp_path, family, platform, "chunked")
    assert found.ok, found


def _narrow_norm(self, spec, ops, device):
    """Its squares, their mean and the root in the dtype of what it norms."""

    def rms_norm(x, weight, *, out=None):
        normed = x * (x.square().mean(-1, keepdim=True) + spec.eps).rsqrt() * (weight + spec.offset)
        return normed if out is None else out.copy_(normed)

    return rms_norm


@pytest.mark.parametrize("family", ["llama3", "gemma2"])
def test_a_norm_in_bfloat16_is_found(oracle, tmp_path, monkeypatch, family):
    monkeypatch.setattr(RmsNorm, "bind", _narrow_norm)
    monkeypatch.setattr(AddNorm, "supports", lambda self, spec: "its parts are what is tried")
    found = cell(oracle, tmp_path, family, "cpu", "mixed batch")
    assert not found.ok
    assert found.typical > MOST_TYPICAL * found.their_typical


@pytest.fixture
def rounded():
    """100 positions, both with errors of 1 but for one that is far."""
    errors = torch.ones(100)
    errors[0] = 9.0
    return Rounded(errors.clone(), errors, missing=0)


def of(rounded):
    return RoundingCell.from_answers(("cpu", "llama2", "alone"), [rounded])


def test_errors_as_large_as_theirs_hold(rounded):
    found = of(rounded)
    assert (found.typical, found.their_typical, found.far, found.their_far) == (1.0, 1.0, 1, 1)
    assert found.ok


@pytest.mark.parametrize("factor", [MOST_TYPICAL + 0.01, math.nan, math.inf])
def test_larger_ones_do_not(rounded, factor):
    assert not of(replace(rounded, ours=rounded.ours * factor)).ok


@pytest.mark.parametrize(("more", "ok"), [(2, True), (3, False)])
def test_few_may_be_far(rounded, more, ok):
    ours = rounded.ours.clone()
    ours[1 : 1 + more] = 5.0
    assert of(replace(rounded, ours=ours)).ok == ok


def test_a_position_that_was_never_computed(rounded):
    assert not of(replace(rounded, missing=1)).ok


def test_what_is_compared_with_computes_in_both_dtypes(tmp_path):
    exact, error = Narrowed(save_model(FAMILIES["gemma3"], tmp_path), "bfloat16").read([5, 6, 7])
    assert exact.dtype == error.dtype == torch.float32
    assert not torch.equal(exact, exact.bfloat16().float())
    assert torch.equal(exact + error, (exact + error).bfloat16().float())


def test_the_command_prints_the_table(capsys):
    small = ["--dtype", "bfloat16", "--family", "qwen2", "--platform", "cpu", "--prompts", "2"]
    assert main([*small, "--mode", "alone"]) == 0
    header, line = capsys.readouterr().out.splitlines()[:2]
    assert header.split()[5:7] == ["error", "theirs"]
    assert line.split()[:3] == ["cpu", "qwen2", "alone"]
    assert line.endswith("ok")
    with pytest.raises(SystemExit):
        main([*small, "--mode", "full cache"])
    assert "no such mode in bfloat16: full cache; there are alone, mixed batch, chunked." in capsys.readouterr().err


def test_a_cell_that_fails_says_so(rounded):
    assert rounding_table([of(replace(rounded, missing=1))]).endswith("FAILED")
