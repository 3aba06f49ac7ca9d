"""Series of a window as curves over its samples: sums, rises of counters, means over events.

Shapes: all are (T,), a value for each sample of the window, NaN where nothing is known. Must not know what they mean.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from observe.window import NEVER, Values, Window, risen

SPAN = 2 * 10**9  # ns


def thinned(window: Window) -> Window:
    """Samples that are SPAN apart, or as they come where they are further apart; the first and the last stay."""
    kept: list[int] = []
    for at, time in enumerate(window.times):
        if not kept or time - window.times[kept[-1]] >= 0.95 * SPAN:  # samples come with some unevenness
            kept.append(at)
    last = len(window.times) - 1
    if kept and kept[-1] != last:
        short = len(kept) > 1 and window.times[last] - window.times[kept[-1]] < SPAN / 2
        kept[-1:] = [last] if short else [kept[-1], last]
    return Window(window.times[kept], {series: one[kept] for series, one in window.values.items()})


def total(window: Window, name: str, **labels: str) -> Values:
    """Sum over the series of a name at each sample; NaN where none is there."""
    return together(list(window.select(name, **labels).values()), len(window.times))


def by_label(window: Window, name: str, label: str, **labels: str) -> dict[str, Values]:
    """The same for each value of a label, which are sorted."""
    parts: dict[str, list[Values]] = {}
    for series, one in window.select(name, **labels).items():
        parts.setdefault(series.label(label), []).append(one)
    return {value: together(parts[value], len(window.times)) for value in sorted(parts)}


def rises(window: Window, name: str, **labels: str) -> Values:
    """How much counters rose together since the sample before; NaN where none was there."""
    return together([since_before(one) for one in window.counters(name, **labels)], len(window.times))


def per(amount: Values, events: Values) -> Values:
    """Amount an event; NaN where there was none."""
    return np.divide(amount, events, out=np.full(len(events), NEVER), where=events > 0)


def since_before(values: Values) -> Values:
    """How much a counter rose since the sample before; NaN where it was not there."""
    return risen(np.concatenate([[NEVER], values]))


def per_second(window: Window, rise: Values) -> Values:
    """A rise since the sample before, as a rate."""
    return per(rise, np.diff(window.times, prepend=window.times[:1]) / 1e9)


def together(parts: list[Values], length: int) -> Values:
    """Sum at each of `length` samples of those that are there; NaN where none is."""
    nothing = np.full(length, NEVER)
    return reduce(lambda a, b: np.where(np.isnan(a), b, np.where(np.isnan(b), a, a + b)), parts, nothing)
