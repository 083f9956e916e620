"""Whether a platform does what it claims, and what it leaves to core's reference. `tessera conformance --platform NAME`
shows it; `conformance_cases` is for pytest. docs/conformance.md says what is tried."""

from __future__ import annotations

from tessera.testing.conformance.case import Case, ConformanceError, Level, Result, Status, Verdict
from tessera.testing.conformance.report import dump, reached, record, table
from tessera.testing.conformance.suites import LEVELS, cases_of, chosen, conformance_cases, one_thread
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
    "one_thread",
    "reached",
    "record",
    "table",
]
