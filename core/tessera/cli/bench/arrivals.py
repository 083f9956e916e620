"""When requests come: all at once, or as a Poisson process does."""

from __future__ import annotations

import math

import numpy as np

from tessera.errors import ConfigError


def arrivals(count: int, request_rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds after the start, in order. request_rate: requests a second, infinite for all at once. burstiness: shape
    of the gamma distribution of the gaps; 1 is Poisson, less comes in bursts, more comes evenly. Raises ConfigError."""
    if not request_rate > 0:
        raise ConfigError(f"--request-rate must be above 0, or inf, got {request_rate:g}.")
    if not 0 < burstiness < math.inf:
        raise ConfigError(f"--burstiness must be above 0, got {burstiness:g}.")
    if math.isinf(request_rate):
        return [0.0] * count
    gaps = np.random.default_rng(seed).gamma(burstiness, 1.0 / (request_rate * burstiness), size=count)
    times: list[float] = (np.cumsum(gaps) - gaps[0]).tolist() if count else []
    return times
