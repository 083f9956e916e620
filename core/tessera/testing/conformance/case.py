"""One thing that is checked, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from tessera.testing.conformance.timing import Timing

Level = Literal["bronze", "silver", "gold"]
Status = Literal["passed", "failed", "falls back", "n/a"]


@dataclass(frozen=True)
class Verdict:
    """What came of a case. text: why the reference runs instead, or what the platform declares absent. timings: of a
    case that measures."""

    status: Status = "passed"
    text: str = ""
    timings: tuple[Timing, ...] = ()


PASSED = Verdict()


def falls_back(why: str) -> Verdict:
    """It is not claimed, so core's reference runs there."""
    return Verdict("falls back", why)


def absent(why: str) -> Verdict:
    """The platform declares that it has no such thing."""
    return Verdict("n/a", why)


class ConformanceError(AssertionError):
    """What is claimed and wrong, in one line. tensors: by name, those to look at. timings: of a case that measures."""

    def __init__(self, text: str, tensors: Mapping[str, Tensor] | None = None, timings: Sequence[Timing] = ()) -> None:
        super().__init__(text)
        self.text, self.tensors, self.timings = text, dict(tensors or {}), tuple(timings)


@dataclass(frozen=True)
class Case:
    """id: "op/linear/3". subject: the op, or the part of the contract, that a failure is a failure of. run raises what
    went wrong. measures: how fast something is."""

    id: str
    level: Level
    subject: str
    run: Callable[[], Verdict]
    measures: bool = False

    def __str__(self) -> str:
        return self.id

    def result(self) -> Result:
        """Runs it. Whatever the platform raises is a failure."""
        start = time.perf_counter()
        tensors: Mapping[str, Tensor] = {}
        try:
            verdict = self.run()
        except ConformanceError as error:
            verdict, tensors = Verdict("failed", error.text, error.timings), error.tensors
        except Exception as error:  # noqa: BLE001  # a platform may raise anything, and that is the result
            verdict = Verdict("failed", described(error))
        return Result(self, verdict.status, verdict.text, time.perf_counter() - start, tensors, verdict.timings)


@dataclass(frozen=True)
class Result:
    """text: of a failure, where and what; of the others why. seconds: that it took."""

    case: Case
    status: Status
    text: str
    seconds: float
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    timings: tuple[Timing, ...] = ()

    @property
    def line(self) -> str:
        return f"{self.case.id}: {self.text}"


def described(error: BaseException) -> str:
    """An exception in one line."""
    said = (str(error).strip().splitlines() or [""])[0]
    return f"raised {type(error).__name__}: {said}"[:300]
