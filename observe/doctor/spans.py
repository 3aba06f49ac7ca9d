"""Sums, shares and rates over a window of which parts are missing: only neighbouring samples are compared.

What lies in a gap, of a source or of all of them, is neither counted nor waited for, so that rates and shares hold for
the time that was watched. Unknown is None. Shapes: times (T,) int64 ns; a gauge (T,) float64, NaN where it is missing;
rises and seconds between samples (T - 1,). Must not know what the series mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from observe.series import Series
from observe.window import Mask, Values, Window, counted, histogram_quantile, risen

GAP, LEAST_GAP = 5.0, 5.0  # a gap is longer than so many usual intervals, and than so many seconds
MOST = 1e18  # bytes or microseconds of a counter
Named = Mapping[str, Sequence[tuple[Series, Values]]]


class Span:
    """Series by name over `times`; `page`: at which of them Triton's page was there."""

    def __init__(self, times: NDArray[np.int64], named: Named, page: Mask) -> None:
        self.times = times
        self.page = page
        self._named = named

    @classmethod
    def of(cls, window: Window) -> Span:
        """Numbers that no server tells, below 0 or beyond MOST, are as if they were missing."""
        named: dict[str, list[tuple[Series, Values]]] = defaultdict(list)
        for series, values in window.values.items():
            fine = (values >= 0) & (values <= MOST)
            named[series.name].append((series, values if fine.all() else np.where(fine, values, np.nan)))
        return cls(window.times, named, window.page)

    @cached_property
    def between(self) -> NDArray[np.float64]:
        """Seconds from each sample to the next, NaN where that is a gap."""
        seconds: NDArray[np.float64] = np.diff(self.times) / 1e9
        if not len(seconds):
            return seconds
        longest = max(LEAST_GAP, GAP * float(np.median(seconds)))
        return np.where(seconds > longest, np.nan, seconds)

    @property
    def seconds(self) -> float:
        """That were watched."""
        return float(np.nansum(self.between))

    @property
    def gaps(self) -> int:
        return int(np.isnan(self.between).sum())

    def select(self, name: str, **labels: str) -> list[tuple[Series, Values]]:
        return [pair for pair in self._named.get(name, ()) if not labels or pair[0].has(**labels)]

    def labels(self, label: str, *names: str) -> list[str]:
        """Values of a label among the series of these names, in the order of appearance."""
        return list(dict.fromkeys(series.label(label) for name in names for series, _ in self.select(name)))

    def only(self, wanted: Callable[[Series], bool]) -> Span:
        named = {name: [pair for pair in pairs if wanted(pair[0])] for name, pairs in self._named.items()}
        return Span(self.times, named, self.page)

    def where(self, there: Mask) -> Span:
        """As if all series had been missing at the other samples."""
        if there.all():
            return self
        blank = {name: [(s, np.where(there, v, np.nan)) for s, v in pairs] for name, pairs in self._named.items()}
        return Span(self.times, blank, self.page & there)

    def cut(self, first: int, last: int) -> Span:
        """Samples from index `first` to before `last`."""
        named = {name: [(s, v[first:last]) for s, v in pairs] for name, pairs in self._named.items()}
        return Span(self.times[first:last], named, self.page[first:last])

    def after(self, start: int) -> Span:
        """From `start`, ns, on."""
        return self.cut(int(np.searchsorted(self.times, start)), len(self.times))

    def during(self, start: int, end: int) -> Span:
        """From `start` up to, and with, `end`, in ns."""
        first, last = np.searchsorted(self.times, [start, end + 1])
        return self.cut(int(first), int(last))

    def stretches(self, count: int) -> list[Span]:
        """Equal stretches of time, without those that hold fewer than three samples; neighbours share a sample."""
        edges = np.searchsorted(self.times, np.linspace(self.times[0], self.times[-1], count + 1))
        pairs = [(int(a), int(b) + 1) for a, b in pairwise(edges)]
        return [self.cut(a, b) for a, b in pairs if b - a >= 3]

    def gauge(self, name: str, **labels: str) -> Values:
        """Sum of the series of a name, NaN where none of them is there."""
        found = [values for _, values in self.select(name, **labels)]
        if not found:
            return np.full(len(self.times), np.nan)
        together = np.array(found)
        return np.where(np.isnan(together).all(axis=0), np.nan, np.nansum(together, axis=0))

    def level(self, name: str, **labels: str) -> float | None:
        """Mean of a gauge."""
        return mean(self.gauge(name, **labels))

    def total(self, name: str, **labels: str) -> float | None:
        """How much the counters of a name rose together."""
        return summed(self.rises(*pair) for pair in self.select(name, **labels))

    def rate(self, name: str, **labels: str) -> float | None:
        """Rise a second, of the time in which they were there."""
        rate = 0.0
        known = False
        for pair in self.select(name, **labels):
            rises = self.rises(*pair)
            seconds = float(self.between[~np.isnan(rises)].sum())
            if seconds > 0:
                known, rate = True, rate + float(np.nansum(rises)) / seconds
        return rate if known else None

    def rises(self, series: Series, values: Values) -> Values:
        """Of one counter, from each sample to the next."""
        return np.where(np.isnan(self.between), np.nan, risen(counted(series, values, self.page)))

    def ratio(self, above: str, below: str, **labels: str) -> float | None:
        """Of two counters' rises."""
        return quotient(self.total(above, **labels), self.total(below, **labels))

    def buckets(self, name: str, **labels: str) -> dict[float, float]:
        """What a histogram counted, cumulative, by upper bound."""
        counts: dict[float, float] = defaultdict(float)
        for series, values in self.select(f"{name}_bucket", **labels):
            rises = self.rises(series, values)
            try:
                bound = float(series.label("le"))
            except ValueError:
                continue
            if not np.isnan(rises).all():
                counts[bound] += float(np.nansum(rises))
        return counts

    def quantile(self, q: float, name: str, **labels: str) -> float | None:
        found = histogram_quantile(q, self.buckets(name, **labels))
        return None if np.isnan(found) else found

    def restarts(self, name: str, **labels: str) -> int:
        """How often the counters of a name fell, at most."""
        falls = [int((np.diff(v[~np.isnan(v)]) < 0).sum()) for _, v in self.select(name, **labels)]
        return max(falls, default=0)


def mean(values: Values) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def most(values: Values) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else None


def share(true: Mask, known: Mask) -> float | None:
    """Of the samples at which it is known, those at which it is true."""
    count = int(known.sum())
    return float((true & known).sum()) / count if count else None


def summed(parts: Iterable[Values]) -> float | None:
    known = [float(np.nansum(part)) for part in parts if not np.isnan(part).all()]
    return sum(known) if known else None


def quotient(above: float | None, below: float | None) -> float | None:
    """None where it is unknown, or no number."""
    if above is None or below is None or below <= 1 / MOST:
        return None
    return above / below
