"""What the kit says of a planted mistake."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tessera.testing.conformance import Case, Result, Target, cases_of, tried
from tests.platforms.faulty import FAULTS
from tests.platforms.faulty.fault import Fault

PLACES = {
    "strict": "tests.platforms.faulty",
    "fakechip": "tests.platforms.faulty.on_fakechip",
    "cpu": "tests.platforms.faulty.on_cpu",
    "plain": "tests.platforms.faulty.on_plain",
}


@dataclass(frozen=True)
class Outcome:
    """failed: cases that failed, in the order of the kit."""

    name: str
    fault: Fault
    failed: Sequence[Result]
    seconds: float

    @property
    def verdict(self) -> str:
        if not self.failed:
            return "missed"
        return "named" if self.failed[0].case.subject == self.fault.subject else "found"

    @property
    def line(self) -> str:
        first = self.failed[0].line[:150] if self.failed else ""
        return f"{self.verdict:7} {self.name:28} {self.fault.subject:16} {self.seconds:5.1f} s {first}"


def outcome(name: str, *, whole: bool = False) -> Outcome:
    """Tries the cases of the part that is wrong and, if none of them fails, others of the mistake's kinds, up to the
    first failure. whole: all cases of silver, in their order."""
    fault, begin = FAULTS[name], time.process_time()
    cases = cases_of(Target.named(f"{PLACES[fault.places[-1]]}:{name}", fault.devices))
    if whole:
        failed = _failures(cases, len(cases))
    else:
        ours = [case for case in cases if case.subject == fault.subject]
        others = [case for case in cases if case.subject != fault.subject and case.id.split("/")[0] in fault.kinds]
        failed = _failures([*ours, *others], 1)
    return Outcome(name, fault, failed, time.process_time() - begin)


def _failures(cases: Sequence[Case], most: int) -> list[Result]:
    failed: list[Result] = []
    for case in cases:
        if len(failed) < most and (result := tried(case)).status == "failed":
            failed.append(result)
    return failed
