"""Samples as arrays over time, and what Prometheus computes of such: increases, rates, quantiles of histograms.

Shapes: times (T,) int64, ns since the epoch; values of a series (T,) float64, NaN where it was not there.
Nothing is extrapolated to the ends of a window. Must not know what the series mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from observe.ring import Step, replay
from observe.series import Series, parse

Times = NDArray[np.int64]
Values = NDArray[np.float64]
Mask = NDArray[np.bool_]
NEVER = float("nan")
TRITON = ("nv_", "gapless_")  # how names on Triton's page begin
UP = Series("observe_up", (("source", "Triton"),))


@dataclass(frozen=True)
class Window:
    """A stretch of time with all that was sampled in it."""

    times: Times
    values: Mapping[Series, Values]

    @property
    def seconds(self) -> float:
        """From the first sample to the last."""
        return float(self.times[-1] - self.times[0]) / 1e9 if len(self.times) else 0.0

    @cached_property
    def page(self) -> Mask:
        """At which samples Triton's page was there, shape (T,)."""
        if UP in self.values:
            return self.values[UP] > 0
        mine = [~np.isnan(one) for series, one in self.values.items() if series.name.startswith(TRITON)]
        return np.logical_or.reduce(mine) if mine else np.zeros(len(self.times), np.bool_)

    def select(self, name: str, **labels: str) -> dict[Series, Values]:
        """Series of a name that have these labels, and may have others."""
        return {series: one for series, one in self.values.items() if series.name == name and series.has(**labels)}

    def counters(self, name: str, **labels: str) -> list[Values]:
        """Counters of a name, each from 0 on where it came up on a page that was there."""
        return [counted(series, one, self.page) for series, one in self.select(name, **labels).items()]

    def between(self, start: int, end: int) -> Window:
        """Samples from `start` up to, and with, `end`, in ns."""
        first, last = np.searchsorted(self.times, [start, end + 1])
        return Window(self.times[first:last], {series: one[first:last] for series, one in self.values.items()})

    def latest(self, name: str, **labels: str) -> float:
        """Sum over the series of a name as of the last sample; NaN where there is none."""
        ends = [one[-1] for one in self.select(name, **labels).values() if len(one) and not np.isnan(one[-1])]
        return float(sum(ends)) if ends else NEVER

    def delta(self, name: str, **labels: str) -> float:
        """How much the counters of a name rose together; NaN where none was there twice."""
        rises = [increase(one) for one in self.counters(name, **labels)]
        known = [rise for rise in rises if not np.isnan(rise)]
        return float(sum(known)) if known else NEVER

    def rate(self, name: str, **labels: str) -> float:
        """Rise a second of the counters of a name together, each over the time that it was there."""
        rates = []
        for one in self.counters(name, **labels):
            there = np.flatnonzero(~np.isnan(one))
            if len(there) > 1 and (span := self.times[there[-1]] - self.times[there[0]]) > 0:
                rates.append(increase(one) * 1e9 / float(span))
        return float(sum(rates)) if rates else NEVER

    def quantile(self, q: float, name: str, **labels: str) -> float:
        """Of what the histograms of a name counted in this window together; NaN where that is nothing."""
        counts: dict[float, float] = defaultdict(float)
        for series, one in self.select(f"{name}_bucket", **labels).items():
            if not np.isnan(rise := increase(counted(series, one, self.page))):
                counts[float(series.label("le"))] += rise
        return histogram_quantile(q, counts)


def read(folder: Path, keep: Callable[[Series], bool] = lambda series: True) -> Window:
    """All samples of a ring, of those series that `keep` wants. Raises RingError."""
    return _window(replay(folder), keep)


def of_samples(samples: Iterable[tuple[int, Mapping[str, float]]]) -> Window:
    """A window of whole samples, in the order of time."""
    return _window((Step(now, values, (), True) for now, values in samples), lambda series: True)


def counted(series: Series, values: Values, page: Mask) -> Values:
    """A counter, which is 0 before it is there for the first time, where Triton's `page` was there without it.

    Many come up with their first event, and those of a model with the model. What comes up with the page, or is in the
    first sample, may have risen long before; so may what a process has used when it is found to be one of Triton's.
    """
    if not series.name.startswith(TRITON):
        return values
    return np.where(np.logical_and.accumulate(np.isnan(values)) & page, 0.0, values)


def risen(values: Values) -> Values:
    """How much a counter rose from each sample to the next, (T - 1,): a fall is a restart from 0. NaN in gaps."""
    steps = np.diff(values)
    return np.where(steps < 0, values[1:], steps)


def increase(values: Values) -> float:
    """How much a counter rose, over gaps too. NaN where it was not there twice."""
    there = values[~np.isnan(values)]
    return float(risen(there).sum()) if len(there) > 1 else NEVER


def newest(found: Iterable[tuple[Series, Values]]) -> Series | None:
    """Of series that say the same in their labels, the one that holds at last; None where there never was one.

    What a process has published may stay on the page when it has died: of those in the last sample, it is the one that
    came last.
    """
    places = [(np.flatnonzero(~np.isnan(values)), series) for series, values in found]
    there = [(at[-1], at[0], order, series) for order, (at, series) in enumerate(places) if len(at)]
    return max(there, key=lambda one: one[:3])[3] if there else None


def histogram_quantile(q: float, buckets: Mapping[float, float]) -> float:
    """As Prometheus computes it; `buckets` are cumulative counts by upper bound.

    Observations are taken to lie evenly within their bucket, the lowest of which begins at 0 (where its bound is
    above 0; else the answer is that bound). In the bucket to infinity the answer is the largest finite bound. NaN
    without that bucket, with no other one, or of no observations; -inf or inf for q below 0 or above 1.
    """
    bounds = sorted(buckets)
    if q < 0 or q > 1:
        return float("-inf") if q < 0 else float("inf")
    if len(bounds) < 2 or bounds[-1] != float("inf"):
        return NEVER
    counts = np.maximum.accumulate([buckets[bound] for bound in bounds])  # buckets are not read at one instant
    total = float(counts[-1])
    if not total > 0:
        return NEVER
    at = int(np.searchsorted(counts, rank := q * total))
    if at == len(bounds) - 1:
        return bounds[-2]
    if at == 0 and bounds[0] <= 0:
        return bounds[0]
    low, below = (bounds[at - 1], float(counts[at - 1])) if at else (0.0, 0.0)
    inside = float(counts[at]) - below
    return low + (bounds[at] - low) * ((rank - below) / inside if inside else 0.0)


def _window(steps: Iterator[Step] | Iterable[Step], keep: Callable[[Series], bool]) -> Window:
    """For each series the samples at which it changed, then filled up between them."""
    times: list[int] = []
    changes: dict[str, tuple[list[int], list[float]]] = {}
    wanted: dict[str, bool] = {}
    live: set[str] = set()

    def put(text: str, value: float) -> None:
        if text not in wanted:
            wanted[text] = keep(parse(text))
        if wanted[text]:
            at, what = changes.setdefault(text, ([], []))
            at.append(len(times))
            what.append(value)

    for step in steps:
        for text in (live - step.changed.keys()) if step.fresh else step.gone:
            put(text, NEVER)
        live = set(step.changed) if step.fresh else (live | step.changed.keys()) - set(step.gone)
        for text, value in step.changed.items():
            put(text, value)
        times.append(step.time)
    order = np.argsort(np.array(times, np.int64), kind="stable")  # a clock that was set back between two runs
    arrays = {parse(text): _filled(at, what, len(times))[order] for text, (at, what) in changes.items()}
    return Window(np.array(times, np.int64)[order], arrays)


def _filled(at: list[int], what: list[float], length: int) -> Values:
    """Each value from its sample up to the next one's; NaN before the first."""
    lengths = np.diff([0, *at, length])
    return np.repeat(np.array([NEVER, *what]), lengths)
