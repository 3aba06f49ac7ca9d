"""Exact percentiles of raw samples, and how many samples a percentile needs before it says anything.

Must not know where samples come from. Percentiles are exact fractions, so that ranks suffer no rounding.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from math import ceil
from typing import overload


def percentile(ordered: Sequence[float], q: Fraction) -> float:
    """The smallest sample with at least the share `q` of all samples at or below it (nearest rank, no interpolation).

    `ordered` ascends, holds at least one sample and may end in infinities; 0 < q <= 1.
    """
    return ordered[ceil(q * len(ordered)) - 1]


def samples_needed(q: Fraction) -> int:
    """Least count at which the `q` percentile is not just the maximum: 20 for P95, 100 for P99."""
    return ceil(1 / (1 - q))


def mean(samples: Sequence[float]) -> float:
    """Arithmetic mean of at least one sample."""
    return samples.total / len(samples) if isinstance(samples, Counted) else sum(samples) / len(samples)


class Counted(Sequence[float]):
    """Ascending values, each with how often it stands there: a sequence that is as long as their sum."""

    def __init__(self, counts: Mapping[float, int], unit: float = 1.0) -> None:
        self._values = sorted(counts)
        self._ends = list(accumulate(counts[value] for value in self._values))
        self._unit = unit
        self.total = unit * sum(value * count for value, count in counts.items())

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, at: int) -> float: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[float]: ...
    def __getitem__(self, at: int | slice) -> float | Sequence[float]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        return self._values[bisect_right(self._ends, at % len(self))] * self._unit
