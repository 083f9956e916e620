"""fakechip where there is no compiler: in Python, which runs the plugin's attention, and says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tessera.platform import Probe

ROOT = Path(__file__).parents[3]
PATH = os.pathsep.join(str(ROOT / part) for part in ("core", "platforms/cpu", "tests/fakechip", "tests/torch_fakechip"))
RULES = """
import torch, torch_fakechip as chip
print(chip.part)
host = torch.ones(3)
x = host.to("fakechip:0")
assert (x * 2 + 1).cpu().tolist() == [3, 3, 3]
assert sum(chip.reads().values()) == 1, chip.reads()
for broken in (lambda: x + host, lambda: x.numpy()):
    try:
        broken()
    except (RuntimeError, TypeError):
        continue
    raise SystemExit("it was not refused")
with chip.refused_reads():
    try:
        bool(x.any())
    except RuntimeError as error:
        print(error)
"""
KIT = """
import sys
from tessera.cli.program import run
for case in sys.argv[1:]:
    if code := run(["conformance", "--platform", "tessera_fakechip.platform:FakechipPlatform", "--case", case]):
        sys.exit(code)
    print("end")
"""


def run(*command: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": PATH, **variables}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_refuses_and_counts_and_says_why_it_is_not_whole(tmp_path: Path) -> None:
    part, refused = run("-c", RULES, PATH=str(tmp_path), CXX="", TORCH_FAKECHIP_BUILD=str(tmp_path)).splitlines()
    assert part.startswith("a part of the device, in Python")
    assert "(no C++ compiler: none of g++, clang++, c++ is on PATH" in part
    assert refused == "fakechip: aten::_local_scalar_dense is an implicit read of the device"


@pytest.mark.nightly
def test_the_plugins_kernels_run_on_it() -> None:
    cases = ("op", "attention/fakechip/mixed-plain-float32", "fused/fakechip")
    for lines in run("-c", KIT, *cases, TORCH_FAKECHIP="python").split("end\n", len(cases) - 1):
        assert lines.splitlines()[1].split()[-4] != "-"


def test_where_nothing_registers_the_device_the_probe_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_fakechip", None)
    assert import_module("tessera_fakechip.probe").native() == Probe(0, "torch_fakechip is not installed")
