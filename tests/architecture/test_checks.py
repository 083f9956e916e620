"""The rules hold in the tree because the stages `neutrality` and `imports` say so; that they find what breaks them is
tested beside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.architecture.conftest import Break
from tools.checks.__main__ import CHECKS
from tools.run_stages import read_stages

# import_contracts.py is the stage `imports`, on any copy of the tree; the others are parts of rules.
NO_RULES = {"__init__", "__main__", "class_names", "field_lines", "field_names", "import_contracts", "sources"}
NO_RULES |= {"words_uncovered"}


def test_every_rule_is_one_that_the_stage_checks(root: Path) -> None:
    modules = {path.stem for path in (root / "tools/checks").glob("*.py")} - NO_RULES
    assert {check.__module__.rpartition(".")[2] for check in CHECKS.values()} == modules


def test_check_has_the_stages_that_look_at_the_tree(root: Path) -> None:
    commands = {stage.name: stage.command for stage in read_stages(root / "tools/stages.toml", "check")}
    assert commands["neutrality"] == "python -m tools.checks"
    assert commands["imports"].endswith("lint-imports")


def test_a_finding_is_printed_under_its_rule_and_is_a_failure(root: Path, alone: Break) -> None:
    tree = alone("core/tessera/runner/broken.py", "current_platform = None\n")
    command = [sys.executable, "-m", "tools.checks", str(tree)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("FAIL  no module-level state ("))
    assert lines[place + 1].startswith("      core/tessera/runner/broken.py:1: current_platform starts empty")
    assert sum(line.startswith("ok ") for line in lines) > len(CHECKS) // 2
