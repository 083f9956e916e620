"""Tests a platform against the contract and shows what it leaves to core's reference: `tessera conformance --platform
NAME` on the command line, `conformance_cases` for pytest. docs/conformance.md says what is tested."""

from __future__ import annotations

from tessera.testing.conformance.case import (
    LEVELS,
    Case,
    ConformanceError,
    Level,
    Result,
    Status,
    Verdict,
    dump,
    reached,
    record,
    speeds,
    table,
)
from tessera.testing.conformance.native import matrix, perf_cases
from tessera.testing.conformance.suites import cases_of, chosen, conformance_cases, tried
from tessera.testing.conformance.target import Target

__all__ = [
    "LEVELS",
    "Case",
    "ConformanceError",
    "Level",
    "Result",
    "Status",
    "Target",
    "Verdict",
    "cases_of",
    "chosen",
    "conformance_cases",
    "dump",
    "matrix",
    "perf_cases",
    "reached",
    "record",
    "speeds",
    "table",
    "tried",
]
