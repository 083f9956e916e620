"""Many measurements as a few figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

PERCENTILES = (90, 99)


def spread(values: Sequence[float], percentiles: Sequence[int] = PERCENTILES) -> dict[str, float]:
    """mean, median, std and percentiles ("p99"), interpolated between neighbours; all 0 of nothing."""
    array = np.asarray(values if len(values) else [0.0], dtype=float)
    named = {f"p{percent}": float(np.percentile(array, percent)) for percent in percentiles}
    return {"mean": float(array.mean()), "median": float(np.median(array)), "std": float(array.std()), **named}


def in_milliseconds(name: str, figures: Mapping[str, float]) -> dict[str, float]:
    """{"mean": 0.5} of "ttft" is {"mean_ttft_ms": 500.0}."""
    return {f"{kind}_{name}_ms": value * 1000 for kind, value in figures.items()}
