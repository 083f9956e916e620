"""Goodput: how many requests a second kept every promise of a service."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tessera.cli.bench.record import Record
from tessera.errors import ConfigError

METRICS = ("ttft", "tpot", "e2el")


def parse_objectives(given: Sequence[str]) -> dict[str, float]:
    """Seconds by metric, of texts such as "ttft:200" (milliseconds). Raises ConfigError."""
    objectives = {}
    for text in (part for one in given for part in one.replace(",", " ").split()):
        metric, _, limit = text.partition(":")
        value = _number(limit)
        if metric not in METRICS or value is None:
            raise ConfigError(f"--goodput '{text}' is none of {', '.join(METRICS)} with milliseconds, as ttft:200.")
        objectives[metric] = value / 1000
    return objectives


def kept(record: Record, objectives: Mapping[str, float]) -> bool:
    """An answer of one token has no TPOT, so it keeps any."""
    return record.completed and all(
        (value := getattr(record, metric)) is None or value <= limit for metric, limit in objectives.items()
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None
