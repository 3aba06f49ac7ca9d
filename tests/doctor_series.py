"""Series over a window as arrays: levels, counters by their rates, histograms of what comes.

A value is one number for the whole window or an array (T,) over it.
"""

from __future__ import annotations

from functools import lru_cache
from math import erf, exp, inf, log, sqrt

import numpy as np
from numpy.typing import NDArray

from observe import metrics
from observe.series import named

Values = NDArray[np.float64]
Level = float | Values
Texts = dict[str, Values]
SECONDS = 120  # of a window, a sample each
Z99 = 2.3263


def level(value: Level) -> Values:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (SECONDS,)).copy()


def risen(rate: Level) -> Values:
    """A counter that rises by `rate` a second from 1000 on."""
    return 1000 + np.concatenate([[0.0], np.cumsum(level(rate))[:-1]])


@lru_cache(maxsize=4096)
def below(value: float, p50: float, p99: float) -> float:
    """Share of a lognormal length of time below `value`."""
    if value == inf:
        return 1.0
    sigma = max(1e-6, log(p99 / p50) / Z99)
    return 0.5 * (1 + erf(log(value / p50) / sigma / sqrt(2)))


def histogram(metric: metrics.Metric, rate: Level, p50: Level, p99: Level, **labels: str) -> Texts:
    """Buckets, sum and count of what comes `rate` times a second."""
    rates, spreads = level(rate), list(zip(level(p50), level(p99), strict=True))
    found = {}
    for edge in (*metric.buckets, inf):
        shares = np.array([below(edge, *spread) for spread in spreads])
        le = "+Inf" if edge == inf else str(edge)
        found[named(f"{metric.name}_bucket", le=le, **labels)] = risen(rates * shares)
    means = np.array([a * exp((log(b / a) / Z99) ** 2 / 2) for a, b in spreads])
    found[named(f"{metric.name}_sum", **labels)] = risen(rates * means)
    found[named(f"{metric.name}_count", **labels)] = risen(rates)
    return found
