"""What the conformance kit makes of ranks that stop: the check at which one stopped is wrong, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tessera.platform import WorkerSpec
from tessera.testing.conformance import Target
from tessera.testing.conformance.case import PASSED, ConformanceError
from tessera.testing.conformance.ranks import HUNG, MET, RankReport, Ranks, Stopped, checks_of

TARGET = Target.named("strict", 2)
CHECKS = [check.id for check in checks_of(TARGET)]
ALL = len(CHECKS)
ALIKE = [check.id for check in checks_of(TARGET) if check.subject == "all_reduce"]
"""The first, in each dtype."""


class Scripted(Ranks):
    """runs: how many checks each rank comes through, and why they stop; one after the other. started: with how many
    checks."""

    def __init__(self, *runs: tuple[Sequence[int], Stopped | None]) -> None:
        super().__init__(TARGET, [WorkerSpec(rank, 2, (rank,)) for rank in range(2)])
        self.runs = list(runs)
        self.started: list[list[str]] = []

    def run(self, folder: Path, outputs: Sequence[Path], checks: list[str]) -> Stopped | None:
        counts, stopped = self.runs.pop(0)
        self.started.append(checks)
        for path, count in zip(outputs, counts, strict=True):
            answers = [RankReport(check, "passed") for check in (MET, *checks)][: count + 1]
            path.write_bytes(b"".join(msgspec.json.encode(answer) + b"\n" for answer in answers))
        return stopped

    @property
    def wrong(self) -> dict[str, str]:
        assert set(self.results) == set(CHECKS)
        assert not self.runs
        return {check: found.text for check, found in self.results.items() if isinstance(found, ConformanceError)}


def test_all_pass() -> None:
    ranks = Scripted(((ALL, ALL), None))
    assert ranks.wrong == {}
    assert set(ranks.results.values()) == {PASSED}


def test_a_rank_that_dies_is_named_where_it_died_although_another_was_behind_it() -> None:
    ranks = Scripted(((3, 6), Stopped(1, "rank 1 ended with exit code 3")), ((ALL - 4, ALL - 4), None))
    assert ranks.wrong == {CHECKS[6]: f"{CHECKS[6]}: not every rank finished (rank 1 ended with exit code 3)"}
    assert ranks.started[1] == [check for check in CHECKS[3:] if check != CHECKS[6]]


def test_a_hang_is_named_with_the_rest_of_its_subject() -> None:
    """Which would hang too, and is not tried."""
    ranks = Scripted(((0, 0), Stopped(1, HUNG)), ((ALL - len(ALIKE), ALL - len(ALIKE)), None))
    assert list(ranks.wrong) == ALIKE
    assert ranks.wrong[ALIKE[0]].endswith(f"not every rank finished ({HUNG})")
    assert ranks.wrong[ALIKE[1]] == f"{ALIKE[1]}: not tried, {ALIKE[0]} hung"
    assert ranks.started[1] == [check for check in CHECKS if check not in ALIKE]


def test_at_the_third_hang_the_rest_is_wrong() -> None:
    ranks = Scripted(*(((0, 0), Stopped(1, HUNG)) for _ in range(3)))
    assert set(ranks.wrong) == set(CHECKS)


def test_ranks_that_do_not_meet_are_not_started_again() -> None:
    ranks = Scripted(((-1, 0), Stopped(0, "rank 0 ended with exit code 1")))
    assert list(ranks.wrong) == CHECKS
