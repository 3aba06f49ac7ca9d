"""Exact percentiles of raw samples, and how many samples a percentile needs before it says anything.

Must not know where samples come from. Percentiles are exact fractions, so that ranks suffer no rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil


def percentile(ordered: Sequence[float], q: Fraction) -> float:
    """The smallest sample with at least the share `q` of all samples at or below it (nearest rank, no interpolation).

    `ordered` ascends, holds at least one sample and may end in infinities; 0 < q <= 1.
    """
    return ordered[ceil(q * len(ordered)) - 1]


def samples_needed(q: Fraction) -> int:
    """Least count at which the `q` percentile is not just the maximum: 20 for P95, 100 for P99."""
    return ceil(1 / (1 - q))
