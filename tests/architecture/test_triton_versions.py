"""What is run with other versions of Triton."""

from __future__ import annotations

import pytest

from tools.triton_versions import OTHERS, commands


@pytest.mark.parametrize(("version", "number"), [("3.6.0", 1), ("3.7.1", 2), ("3.10.0", 2), ("4.0.0", 2)])
def test_versions_whose_interpreter_runs_are_interpreted_too(version: str, number: int) -> None:
    found = commands(version, ["sm_90"])
    assert [one[2] for one in found] == ["tools.triton_targets", "pytest"][:number]
    assert found[0][-3:] == ["--no-table", "--target", "sm_90"]


@pytest.mark.parametrize(("version", "later"), [("3.6.0", False), ("3.7.1", False), ("3.8.0", True), ("3.10.0", True)])
def test_devices_that_need_a_newer_triton_are_compiled_for_with_it(version: str, later: bool) -> None:
    assert ("--later" in commands(version, [])[0]) is later
    assert "--later" not in commands(version, ["sm_90"])[0]


def test_the_version_of_the_machines_with_gpus_is_among_them() -> None:
    assert "3.6.0" in OTHERS
