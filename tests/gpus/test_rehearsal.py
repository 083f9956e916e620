"""`make gpu ARGS=--rehearse`: the parts of `make gpu` on the host, over the chip that stands in for a GPU."""

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
from tools.gpu.parts import ALONE, FEW, GOLD, PARTS, RACES

pytestmark = pytest.mark.compiler

ROOT = Path(__file__).parents[2]
SOME = ("platforms", "kernels", "bench")


@pytest.mark.parametrize(
    ("flags", "minutes"),
    [
        ([*(word for name in SOME for word in ("--part", name)), "--only", "limits"], 5),
        pytest.param([], 20, marks=pytest.mark.nightly),
    ],
    ids=["some", "all"],
)
def test_it_passes_on_the_host(tmp_path: Path, flags: list[str], minutes: int) -> None:
    command = [sys.executable, "-m", "tools.gpu", "--rehearse", "--out", str(tmp_path), "--minutes", str(minutes)]
    environment = {**os.environ, "PYTHONPATH": ""}  # all parts run what the first one installed
    done = subprocess.run([*command, *flags], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr + (tmp_path / "gpu.log").read_text()[-3000:]
    assert done.returncode == 0, told
    found = {part["name"]: part for part in json.loads((tmp_path / "gpu.json").read_text())["parts"]}
    assert set(found) == ({"install", *SOME} if flags else set(PARTS))
    assert {part["outcome"] for part in found.values()} == {"passed"}, told
    assert found["kernels"]["figures"]["done"] == found["kernels"]["figures"]["of"] > 0
    assert found["bench"]["figures"]["copy"] > 0


def test_the_parts_together_run_every_case_once_and_name_none_that_is_not_there() -> None:
    cases = cases_of(Target.named(PLATFORMS["cuda"]), "gold")
    for begins in (*ALONE, *FEW, *GOLD, *RACES):
        assert selected(cases, ["bronze", "silver", "gold"], [begins], []), begins
    kernels = selected(cases, ["bronze", "silver"], [], ALONE)
    gold = selected(cases, ["bronze", "silver", "gold"], [*GOLD, *ALONE], [])
    assert sorted(case.id for case in kernels + gold) == sorted(case.id for case in cases)
