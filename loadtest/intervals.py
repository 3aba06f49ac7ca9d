"""How far a percentile of a run can be trusted: an interval of ranks, by the binomial distribution.

The share of samples at or below the true q percentile is that of a binomial draw with chance q, whatever the samples'
distribution. So two order statistics enclose the percentile with a known confidence (W. J. Conover, Practical
Nonparametric Statistics, section 3.2). Neighbours in time are not independent, though: gaps of one request, and
requests that waited behind the same others. The draw is therefore of as many samples as there effectively are,
measured by blocks of the load: that of Korn and Graubard (Survey Methodology 24, 1998) for a share, turned into one
for a percentile as Woodruff (JASA 47, 1952) did.

Of a queue at 60 % of its capacity, 1,000 requests, 95 % asked: 94, 88 and 83 of 100 such intervals hold P50, P95 and
P99; of those of a bootstrap by request 67, 48 and 45, of one by block 91, 82 and 68. Of independent samples a bootstrap
of 150 holds P99 in 77 of 100, for it knows nothing above the largest sample; these say that there is no upper end.

Must not know samples' kinds or targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor, sqrt

import numpy as np
from numpy.typing import NDArray

from config_gen.percentiles import percentile
from config_gen.sla.quantity import show_duration

BLOCKS = 30  # of a run: fewer tell little of their spread, more of them cut through what happened together
LEVEL = 0.95
FAR, FEW = 12, 40  # standard deviations of a binomial draw, and where these are small, so many more


@dataclass(frozen=True)
class Interval:
    """In ns; None where the samples are too few for that end, infinite where it is a refused or failed request."""

    low: float | None
    high: float | None

    def __str__(self) -> str:
        """`190–301 ms`, `0.75–1.9 s`, `≥ 190 ms`, or nothing where there is neither end."""
        if self.low is None:
            return "" if self.high is None else f"≤ {show_duration(self.high)}"
        low = show_duration(self.low)
        if self.high is None:
            return f"≥ {low}"
        high = show_duration(self.high)
        same = low.rpartition(" ")[2] == high.rpartition(" ")[2]
        return f"{low.rpartition(' ')[0] if same and ' ' in low else low}–{high}"


def blocks(count: int) -> list[int]:
    """The block of each of `count` requests in the order of sending: BLOCKS of them, nearly alike in size."""
    most = min(BLOCKS, count)
    return [at * most // count for at in range(count)]


def interval(ordered: Sequence[float], owners: Sequence[int], q: Fraction) -> Interval:
    """Around the q percentile of `ordered`, which ascends, with confidence LEVEL; `owners` are the samples' blocks.

    Both ends are samples. At least one sample; 0 < q < 1.
    """
    count = len(ordered)
    effective = effective_count(np.asarray(ordered, float), np.asarray(owners), percentile(ordered, q))
    below, above = ranks(effective, q, LEVEL)
    low = None if below == 0 else ordered[ceil(Fraction(below * count, effective)) - 1]
    high = None if above > effective else ordered[ceil(Fraction(above * count, effective)) - 1]
    return Interval(low, high)


@lru_cache(maxsize=1024)
def ranks(count: int, q: Fraction, level: float) -> tuple[int, int]:
    """Ranks of 1 to `count` independent samples that enclose the q percentile; 0 and `count` + 1 where none does.

    The chance that the percentile lies below the lower, and that it lies above the upper, is at most (1 - level) / 2.
    Only draws within FAR of the mean are looked at: beyond is less than rounding makes of the rest.
    """
    tail, chance = (1 - level) / 2, float(q)
    far = FAR * sqrt(count * chance * (1 - chance)) + FEW
    first, last = max(0, floor(count * chance - far)), min(count, ceil(count * chance + far))
    hits = np.arange(first + 1, last + 1)
    growth = np.log((count - hits + 1) / hits) + np.log(chance) - np.log1p(-chance)  # of the mass from draw to draw
    logs = np.concatenate([[0.0], np.cumsum(growth)])
    reached = np.cumsum(np.exp(logs - logs.max()))
    reached /= reached[-1]
    return first + int(np.searchsorted(reached, tail)), first + int(np.searchsorted(reached, 1 - tail)) + 1


def effective_count(ordered: NDArray[np.float64], owners: NDArray[np.int64], value: float) -> int:
    """How many independent samples would tell the share at or below `value` as precisely as these do, at most all.

    1 where all are of one block: nothing is known of how blocks differ.
    """
    count, own = len(ordered), np.bincount(owners)
    used = np.count_nonzero(own)
    if used < 2:
        return 1
    below = ordered <= value
    if below.all():
        below = ordered < value
    share = below.mean()
    away = np.bincount(owners, below) - share * own
    variance = (away @ away) * used / (used - 1) / count**2
    spread = share * (1 - share)
    return count if spread >= variance * count else max(1, int(spread / variance))
