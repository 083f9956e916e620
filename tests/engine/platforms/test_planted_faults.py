"""The kit names the op at fault: one mistake at a time, planted into the strict platform."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from tessera.reference import REFERENCE
from tessera.testing.conformance import Result, Target, cases_of
from tests.platforms.faulty import FAULTS

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/conformance.md"
SECONDS = 20
ALWAYS = {
    "ScaleOfDim", "StaleSlotsRead", "PlanesSwapped", "NormInFewBits", "StrideIgnored", "PairsForHalves",
    "GateAndUpSwapped", "NotRenormalised", "OutIgnored", "PaddingIntoBlockOne", "SecondLayerApart", "OldTablesReplayed",
    "TopPOneTooFew", "AllReduceAverages",
}  # fmt: skip
PLANTED = [pytest.param(fault, marks=[] if fault in ALWAYS else [pytest.mark.nightly]) for fault in sorted(FAULTS)]
UNPLANTED = ("shapes", "forks", "graphs", "reads", "collectives", "scheme")


@pytest.fixture(autouse=True)
def workers_find_the_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "core"), str(ROOT / "platforms/cpu")]))


def built_on(name: str) -> set[str]:
    """The composites that an op is a part of, at any depth: what they give is wrong too."""
    above = {other for other in REFERENCE.names() if name in REFERENCE[other].parts}
    return above.union(*(built_on(other) for other in above))


def results_of(platform: str, kinds: tuple[str, ...], devices: int) -> list[Result]:
    cases = cases_of(Target.named(f"tests.platforms.faulty:{platform}", devices), "gold")
    return [case.result() for case in cases if case.id.split("/")[0] in kinds]


@pytest.mark.parametrize("fault", PLANTED)
def test_the_kit_names_the_op_at_fault(fault: str) -> None:
    begin, planted = time.process_time(), FAULTS[fault]
    failed = [result for result in results_of(fault, planted.kinds, planted.devices) if result.status == "failed"]
    named = {result.case.subject for result in failed}
    above = {"fused attention", *built_on(planted.subject)} if planted.subject in REFERENCE.names() else set()
    assert planted.subject in named
    assert named <= {planted.subject, *planted.also, *above}
    for result in failed:
        assert "\n" not in result.line
        if result.case.subject in REFERENCE.names():
            assert result.case.subject in result.text
    assert time.process_time() - begin < SECONDS


def test_without_a_mistake_the_same_cases_pass() -> None:
    results = results_of("Int8Strict", UNPLANTED, 2)
    assert {result.case.id.split("/")[0] for result in results} == set(UNPLANTED)
    assert [result.line for result in results if result.status == "failed"] == []
    passed = {result.case.id.split("/")[0] for result in results if result.status == "passed"}
    assert passed == set(UNPLANTED)


def test_the_page_lists_every_mistake() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted((fault, planted.subject) for fault, planted in FAULTS.items())
