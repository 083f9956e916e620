"""`make gpu ARGS=--rehearse`: the calls and parts of `make gpu` on the host, over the chip that stands in for a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.testing.conformance import Target, cases_of
from tests.gpus.conftest import PLATFORMS
from tools.gpu.cases import selected
from tools.gpu.parts import ALONE, CALLS, CHECKED, FEW, GOLD, PARTS, RACES

pytestmark = pytest.mark.compiler

ROOT = Path(__file__).parents[2]
MOST_FILES = 8
"""That come back from a machine that is lent."""
SOME = ("platforms", "kernels", "bench")
APART = ("gold", "races", "plugin")
"""Parts of no call."""


def parts(*names: str) -> list[str]:
    return [word for name in names for word in ("--part", name)]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([*parts(*SOME), "--only", "limits", "--minutes", "5"], {"install", *SOME}),
        pytest.param(["--call", "broken"], set(CALLS["broken"].limits), marks=pytest.mark.nightly),
        pytest.param(["--call", "fast"], set(CALLS["fast"].limits), marks=pytest.mark.nightly),
        pytest.param([*parts(*APART), "--minutes", "20"], {"install", *APART}, marks=pytest.mark.nightly),
    ],
    ids=["some", "broken", "fast", "apart"],
)
def test_it_passes_on_the_host(tmp_path: Path, flags: list[str], expected: set[str]) -> None:
    command = [sys.executable, "-m", "tools.gpu", "--rehearse", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": ""}  # all parts run what the first one installed
    done = subprocess.run([*command, *flags], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr + (tmp_path / "gpu.log").read_text()[-3000:]
    assert done.returncode == 0, told
    found = {part["name"]: part for part in json.loads((tmp_path / "gpu.json").read_text())["parts"]}
    assert set(found) == expected
    assert {part["outcome"] for part in found.values()} == {"passed"}, told
    assert len(list(tmp_path.iterdir())) <= MOST_FILES
    assert "Broken: 0" in (tmp_path / "verdict.txt").read_text()
    if "kernels" in found:
        assert found["kernels"]["figures"]["done"] == found["kernels"]["figures"]["of"] > 0
        assert found["bench"]["figures"]["copy"] > 0


def test_the_calls_leave_out_what_needs_another_lease() -> None:
    assert {name for call in CALLS.values() for name in call.limits} == set(PARTS) - set(APART)


def test_the_parts_together_run_every_case_once_and_name_none_that_is_not_there() -> None:
    cases = cases_of(Target.named(PLATFORMS["cuda"]), "gold")
    checked = (begins for some in CHECKED.values() for begins in some)
    for begins in (*ALONE, *FEW, *GOLD, *RACES, *checked):
        assert selected(cases, ["bronze", "silver", "gold"], [begins], []), begins
    kernels = selected(cases, ["bronze", "silver"], [], ALONE)
    gold = selected(cases, ["bronze", "silver", "gold"], [*GOLD, *ALONE], [])
    assert sorted(case.id for case in kernels + gold) == sorted(case.id for case in cases)
