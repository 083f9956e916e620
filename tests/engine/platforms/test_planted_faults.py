"""The kit names the op at fault: one mistake at a time, planted into the strict platform and, where it has the part,
into fakechip; or into the CPU platform, where only that makes the promise."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from tessera.ops import REFERENCE
from tessera.testing.conformance import Result, Target, cases_of, tried
from tests.platforms.cpu_kernels import needs_kernels
from tests.platforms.faulty import FAULTS
from tests.platforms.faulty.fault import KINDS
from tests.platforms.faulty.outcome import PLACES, outcome

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/conformance.md"
SECONDS = 60
ALWAYS = {
    "strict": {
        "ScaleOfDim", "PlanesSwapped", "NormInFewBits", "PairsForHalves", "GateAndUpSwapped", "NotRenormalised",
        "OutIgnored", "SecondLayerApart", "TopPOneTooFew", "AllReduceAverages", "NibblesSwapped",
        "IntoIgnored", "DraftsSeeAhead", "RollbackIgnored", "BiasInWeights",
    },
    "fakechip": {
        "StaleSlotsRead", "StrideIgnored", "PaddingIntoBlockOne", "OldTablesReplayed", "PageableCopies",
        "ResultsAwaited", "PlanesDense",
    },
    "cpu": {"SumsOfManySplit"},
    "plain": {
        "SumsOf4096Rounded", "PositionsOf15Bits", "HeadsOf32", "HeadOf65536", "SumsInFloat16", "SmallKeysLost",
        "TiesOfTopKStay", "NormEmitsNeighboursScale", "ScaleOfTheFirstWeight", "StateOfAnotherRow", "LeakPerCall",
        "PrefixHitOff", "SharedBlocksLarge", "StaleSecondBlock", "FirstResidual", "FiveToEightTokens",
        "BiasMirrored", "PaddingOfTextsSeen", "OneKeyForAllHeads", "ChunkSeesItselfAlone",
        "NumbersWithinTheRank", "SlopeOfTheGroup", "FarKeysUnbiased", "IndexerSeesTheFuture", "SelectionIgnored",
    },
}  # fmt: skip
"""Each day; the others are shares of the nightly run."""
RAISING = {"EmptyBatchRefused", "StaleAfterInvalidate", "GatherMissing"}
"""Rather than to compute something else; strict itself refuses buffers that were not captured."""
PLANTED = [
    pytest.param(
        fault,
        place,
        marks=[
            *([] if fault in ALWAYS[place] else [pytest.mark.nightly]),
            *([pytest.mark.compiler] if place == "fakechip" else []),
            *([needs_kernels] if place == "cpu" else []),
        ],
    )
    for place in PLACES
    for fault in sorted(FAULTS)
    if place in FAULTS[fault].places
]
OF_ONE_KIND = [param for param in PLANTED if FAULTS[str(param.values[0])].kind]
OTHERS = [param for param in PLANTED if param not in OF_ONE_KIND]
UNPLANTED = (
    "shapes", "forks", "preemption", "prefix", "drafts", "graphs", "reads", "overlap", "collectives",
    "devices", "tensor-parallel", "scheme", "packed",
)  # fmt: skip


@pytest.fixture(autouse=True)
def workers_find_the_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ("", "core", "platforms/cpu", "tests/fakechip", "tests/torch_fakechip")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / path) for path in paths))


def built_on(name: str) -> set[str]:
    """The composites that an op is a part of, at any depth: what they give is wrong too."""
    above = {other for other in REFERENCE.names() if name in REFERENCE[other].parts}
    return above.union(*(built_on(other) for other in above))


def results_of(platform: str, kinds: tuple[str, ...], devices: int) -> list[Result]:
    cases = cases_of(Target.named(platform, devices), "gold")
    return [tried(case) for case in cases if case.id.split("/")[0] in kinds]


@pytest.mark.parametrize(("fault", "place"), OF_ONE_KIND)
def test_the_kit_names_the_part_at_fault_before_models_and_engines(fault: str, place: str) -> None:
    found = outcome(fault)
    assert found.verdict == "named", found.line
    assert found.seconds < SECONDS


@pytest.mark.nightly
def test_the_platform_that_they_are_planted_into_passes() -> None:
    results = [tried(case) for case in cases_of(Target.named(f"{PLACES['plain']}:Plain", 2))]
    assert [result.line for result in results if result.status == "failed"] == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind])
def test_each_kind_has_ten_mistakes(kind: str) -> None:
    assert sum(fault.kind == kind for fault in FAULTS.values()) >= 10


@pytest.mark.parametrize(("fault", "place"), OTHERS)
def test_the_kit_names_the_op_at_fault(fault: str, place: str) -> None:
    begin, planted = time.process_time(), FAULTS[fault]
    failed = [
        result
        for result in results_of(f"{PLACES[place]}:{fault}", planted.kinds, planted.devices)
        if result.status == "failed"
    ]
    named = {result.case.subject for result in failed}
    above = {"fused attention", *built_on(planted.subject)} if planted.subject in REFERENCE.names() else set()
    assert planted.subject in named
    assert named <= {planted.subject, *planted.also, *above}
    assert fault in RAISING or any(
        "raised " not in result.text for result in failed if result.case.subject == planted.subject
    )
    for result in failed:
        assert "\n" not in result.line
        if result.case.subject in REFERENCE.names():
            assert result.case.subject in result.text
    assert time.process_time() - begin < SECONDS


def passed_of(platform: str) -> set[str]:
    results = results_of(platform, UNPLANTED, 2)
    assert {result.case.id.split("/")[0] for result in results} == set(UNPLANTED)
    assert [result.line for result in results if result.status == "failed"] == []
    return {result.case.id.split("/")[0] for result in results if result.status == "passed"}


@pytest.mark.nightly  # strict itself conforms each day in test_conformance.py
def test_without_a_mistake_the_same_cases_pass() -> None:
    assert passed_of("tests.platforms.faulty:Quantizing") == set(UNPLANTED) - {"overlap"}, "its memory is the host's"


@pytest.mark.compiler
@pytest.mark.nightly
def test_without_a_mistake_fakechips_cases_pass() -> None:
    assert passed_of("tessera_fakechip.stages:Static") == set(UNPLANTED) - {"scheme", "packed"}, "it claims no scheme"


def test_a_right_kernel_that_edits_logits_passes() -> None:
    cases = [
        case
        for case in cases_of(Target.named("tests.platforms.faulty:EditsAsTheyAre"), "bronze")
        if case.subject == "edit_logits"
    ]
    assert [tried(case).status for case in cases] == ["passed"] * 4


def test_the_page_lists_every_mistake() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    expected = [(fault, planted.subject, ", ".join(planted.places)) for fault, planted in FAULTS.items()]
    assert sorted(rows) == sorted(expected)
