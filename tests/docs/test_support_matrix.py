"""docs/support-matrix.md is what the platforms say; `python -m tools.support_matrix` writes it anew."""

from __future__ import annotations

import pytest

from tessera.testing.conformance import Result, Target, matrix, perf_cases
from tessera.testing.conformance.case import Timing
from tessera_cpu.sampling import Sample
from tools.support_matrix import PAGE, PLATFORMS, page


def test_the_page_is_what_the_platforms_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize(
    ("platform", "op", "cells"),
    [
        ("reference", "linear", ["reference"] * 3),
        ("reference", "gated_mlp", ["reference"] * 3),
        ("strict", "linear", ["native", "native", "n/a"]),
        ("strict", "moe", ["native parts", "native parts", "n/a"]),
        ("strict", "attention", ["native", "native", "n/a"]),
        ("cpu", "sample", ["native"] * 3),
        ("cpu", "penalise", ["native"] * 3),
    ],
)
def test_a_cell_says_who_computes(platform: str, op: str, cells: list[str]) -> None:
    assert f"| `{op}` | {' | '.join(cells)} |" in matrix(Target(PLATFORMS[platform])).splitlines()


def test_a_kernel_that_takes_some_places_is_native_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sample, "supports", lambda _, spec: None if spec.greedy else "only greedy rows")
    lines = matrix(Target(PLATFORMS["cpu"])).splitlines()
    assert "| `sample` | native in part | native in part | native in part |" in lines


def test_speeds_and_failures_of_a_run_are_told() -> None:
    target = Target(PLATFORMS["strict"])
    cases = {case.id: case for case in perf_cases(target)}
    fast = (Timing("linear", "float32", 1, 1e-6, 2e-6), Timing("linear", "float32", 16, 2e-6, 1e-6))
    results = [
        Result(cases["perf/linear-float32"], "passed", "", 0.0, timings=fast),
        Result(cases["perf/rms_norm-float32"], "failed", "slow", 0.0),
    ]
    lines = matrix(target, results).splitlines()
    assert "| `linear` | native, 2.0 / 0.5 times as fast | native | n/a |" in lines
    assert "| `rms_norm` | native, wrong | native, wrong | n/a |" in lines
