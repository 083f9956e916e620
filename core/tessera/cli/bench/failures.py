"""Requests without a whole answer: how many, why, and what the program ends with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tessera.cli.bench.record import Record


def failures(records: Sequence[Record]) -> dict[str, int]:
    """How often by reason, the most frequent first."""
    return dict(Counter(record.error.message for record in records if record.error is not None).most_common())


def exit_code_of(records: Sequence[Record]) -> int:
    """0 where every request had its whole answer, else the first failure's."""
    return next((record.error.exit_code for record in records if record.error is not None), 0)
