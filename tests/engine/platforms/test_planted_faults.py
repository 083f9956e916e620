"""The kit names the op at fault: one mistake at a time, planted into the strict platform."""

from __future__ import annotations

import time

import pytest

from tessera.reference import REFERENCE
from tessera.testing.conformance import Target, cases_of
from tests.platforms.faulty import FAULTS

IN_ATTENTION = {"attention", "fused attention", "cache layout"}
SECONDS = 20
ALWAYS = {
    "ScaleOfDim", "StaleSlotsRead", "PlanesSwapped", "NormInFewBits", "StrideIgnored", "PairsForHalves",
    "GateAndUpSwapped", "NotRenormalised", "OutIgnored",
}  # fmt: skip
PLANTED = [pytest.param(fault, marks=[] if fault in ALWAYS else [pytest.mark.nightly]) for fault in sorted(FAULTS)]


def built_on(name: str) -> set[str]:
    """The composites that an op is a part of, at any depth: what they give is wrong too."""
    above = {other for other in REFERENCE.names() if name in REFERENCE[other].parts}
    return above.union(*(built_on(other) for other in above))


@pytest.mark.parametrize("fault", PLANTED)
def test_the_kit_names_the_op_at_fault(fault: str) -> None:
    begin = time.process_time()
    subject, target = FAULTS[fault], Target.named(f"tests.platforms.faulty:{fault}")
    kinds = ("attention", "fused", "cache") if subject in IN_ATTENTION else ("op", "fused")
    tried = [case for case in cases_of(target) if case.id.split("/")[0] in kinds]
    failed = [result for result in (case.result() for case in tried) if result.status == "failed"]
    named = {result.case.subject for result in failed}
    assert subject in named
    assert named <= (IN_ATTENTION if subject in IN_ATTENTION else {subject, "fused attention", *built_on(subject)})
    for result in failed:
        assert subject in IN_ATTENTION or result.case.subject in result.text
        assert "\n" not in result.line
    assert time.process_time() - begin < SECONDS
