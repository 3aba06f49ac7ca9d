"""Two runs of the same load, metric by metric: what changed, and whether by more than chance.

A change counts when it is larger than a threshold, and when the bootstrap interval of the ratio leaves out 1. Intervals
hold for all lines of a comparison together (each has its share of 5 %, after Bonferroni): else one of some fifty would
change every time. What differs between whole runs only, as a machine that got slower, is not in their samples: a change
is one of the model, its settings or the machine. Must not know files or how to print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import product
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from config_gen.percentiles import percentile
from config_gen.sla.quantity import show_percentile
from loadtest.bootstrap import Draws, draws, percentiles, totals
from loadtest.goodput import is_good
from loadtest.intervals import blocks
from loadtest.recording import Recording, Sent
from loadtest.samples import Sample
from loadtest.verdict import METRICS, SHOWN, Latency, latencies, tokens_in_time

DOUBT = 0.05  # the chance that any line of a comparison is told to have changed when none did
LEAST = 20  # requests of a tier: of fewer nothing can be said
DRAWS, TAIL_DRAWS = 2000, 5  # at least so many, and so many of them beyond each end of an interval

GOODPUT, TOKENS = "goodput", "tokens/s"  # the more the better

Change = Literal["worse", "better", "same", "unknown"]
Unit = Literal["ns", "/s", "share"]
Pair = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class Line:
    """One metric of one tier in two runs. `low` and `high` enclose `ratio`; None where the requests are too few."""

    model: str
    tier: str
    metric: str
    unit: Unit
    a: float
    b: float
    low: float | None
    high: float | None
    change: Change

    @property
    def ratio(self) -> float:
        """Of b to a: 1 where both are nothing or infinite."""
        return float(_ratios(np.array([self.a]), np.array([self.b]))[0])


@dataclass(frozen=True)
class _Metric:
    """A line before it is judged; `blocks` are those of its tier, `drawn` is None where the requests are too few."""

    tier: tuple[str, str]
    name: str
    unit: Unit
    a: float
    b: float
    blocks: int
    drawn: Callable[[Draws], Pair] | None  # the metric of both runs in each draw


def compare(a: Recording, b: Recording, threshold: float) -> list[Line]:
    """Every metric of every tier that was sent anything, b beside a; good is what meets the targets of b.

    Both were sent the same (`same_load.check`). A change of at most `threshold`, a share, is none.
    """
    metrics = [metric for key in b.sent for metric in _metrics(key, a, b)]
    tail = DOUBT / 2 / max(1, sum(metric.drawn is not None for metric in metrics))
    return [_line(metric, tail, threshold) for metric in metrics]


def _metrics(key: tuple[str, str], a: Recording, b: Recording) -> Iterator[_Metric]:
    """Of one tier: latencies, then what it got of what it asked for."""
    runs = (a.of(*key), b.of(*key))
    if not runs[0]:
        return
    count, sent, owners = len(runs[0]), b.sent[key], blocks(len(runs[0]))
    before, after = (latencies(run, sent.tokens) for run in runs)
    most = owners[-1] + 1
    for metric, q in product([metric for metric in METRICS if metric in after], SHOWN):
        old, new = before[metric], after[metric]
        if old.samples and new.samples:
            known = count >= LEAST and _bounded(old, q) and _bounded(new, q)
            values = percentile(old.samples, q), percentile(new.samples, q)
            drawn = partial(_percentiles, old, new, q) if known else None
            yield _Metric(key, f"{metric.upper()} {show_percentile(q)}", "ns", *values, most, drawn)
    for name, unit, counted in _counts(sent, a.duration):
        of = a.duration / 1e9 if unit == "/s" else count
        was, now = ([counted(sample) for sample in run] for run in runs)
        sums = partial(_totals, was, now, owners) if count >= LEAST else None
        yield _Metric(key, name, unit, sum(was) / of, sum(now) / of, most, sums)


def _counts(sent: Sent, duration: int) -> Iterator[tuple[str, Unit, Callable[[Sample], int]]]:
    """What a request adds to each metric that is a sum."""
    yield GOODPUT, "/s", lambda sample: int(is_good(sample, sent.targets))
    if sent.tokens:
        yield TOKENS, "/s", lambda sample: tokens_in_time([sample], duration)
    yield "errors", "share", lambda sample: int(sample.outcome != "ok")


def _bounded(latency: Latency, q: Fraction) -> bool:
    """Whether the samples are enough for both ends of an interval of the percentile itself."""
    found = latency.interval(q)
    return found is not None and found.low is not None and found.high is not None


def _percentiles(a: Latency, b: Latency, q: Fraction, drawn: Draws) -> Pair:
    assert a.owners is not None and b.owners is not None
    return percentiles(drawn, a.samples, a.owners, q), percentiles(drawn, b.samples, b.owners, q)


def _totals(a: Sequence[int], b: Sequence[int], owners: Sequence[int], drawn: Draws) -> Pair:
    return totals(drawn, a, owners), totals(drawn, b, owners)


def _line(metric: _Metric, tail: float, threshold: float) -> Line:
    """`tail`: the chance that the interval lies above, and that it lies below, the ratio that is measured."""
    told = Line(*metric.tier, metric.name, metric.unit, metric.a, metric.b, None, None, "unknown")
    if metric.drawn is None:
        return told
    count = max(DRAWS, ceil(TAIL_DRAWS / tail))
    ratios = np.sort(_ratios(*metric.drawn(draws(metric.blocks, count))))
    beyond = ceil(tail * count)
    low, high = float(ratios[beyond - 1]), float(ratios[count - beyond])
    more, less = low > 1 and told.ratio > 1 + threshold, high < 1 and told.ratio < 1 - threshold
    change: Change = "same"
    if more or less:
        change = "better" if more == (metric.name in (GOODPUT, TOKENS)) else "worse"
    return replace(told, low=low, high=high, change=change)


def _ratios(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of b to a; 1 where both are nothing or infinite, and in a draw that has no samples (NaN)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: NDArray[np.float64] = np.divide(b, a)
    return np.where(np.isnan(found), 1.0, found)
