"""A load cut into windows of time, and what fell into each. Must not know plots.

Shapes: edges (W + 1,) in s since the load began, ascending; values (W,) float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from config_gen.percentiles import percentile

Numbers = NDArray[np.float64]
LENGTHS = (0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)  # s
CELLS = 1200  # of a line with an end at each event: more than a plot has pixels


@dataclass(frozen=True)
class Windows:
    """`length` in s: what the windows have, but the last of the load and the last of all: half to one and a half."""

    edges: Numbers
    length: float

    @staticmethod
    def of(loaded: float, ended: float, most: int) -> Windows:
        """At most `most` in the load; one of them ends with it, and others go on until `ended` s."""
        length = next((it for it in LENGTHS if it * most >= loaded), LENGTHS[-1])
        begins = [*_begins(0, loaded, length), *_begins(loaded, ended, length)]
        return Windows(np.array([*begins, max(ended, loaded)]), length)

    @property
    def widths(self) -> Numbers:
        return np.diff(self.edges)

    def rate(self, times: Iterable[float], amounts: Iterable[float] | None = None) -> Numbers:
        """Events, or amounts, a second. `times` in s; what lies outside is left out."""
        weights = None if amounts is None else np.fromiter(amounts, float)
        counts, _ = np.histogram(np.fromiter(times, float), self.edges, weights=weights)
        return np.asarray(counts / self.widths, float)

    def at(self, q: Fraction, times: Sequence[float], values: Sequence[float]) -> Numbers:
        """The q percentile of the values in each window; NaN where there are none."""
        owners = np.searchsorted(self.edges, np.asarray(times, float), side="right") - 1
        found = np.full(len(self.widths), np.nan)
        ordered = np.asarray(values, float)
        for at in np.unique(owners[(owners >= 0) & (owners < len(found))]):
            found[at] = percentile(np.sort(ordered[owners == at]).tolist(), q)
        return found


def _begins(first: float, end: float, length: float) -> Numbers:
    """Of windows from `first` on, the last of which ends at `end`."""
    count = max(1, round((end - first) / length)) if end > first else 0
    return first + length * np.arange(count)


def in_flight(sent: Sequence[float], ended: Sequence[float], until: float) -> tuple[Numbers, Numbers]:
    """How many are under way: moments in s, from 0 to `until`, and the number from each on.

    Where there are more moments than a plot can show, each stands for the most of a stretch.
    """
    times = np.concatenate([sent, ended]).astype(float)
    order = np.argsort(times, kind="stable")
    counts = np.cumsum(np.repeat([1.0, -1.0], [len(sent), len(ended)])[order])
    moments, numbers = np.concatenate([[0.0], times[order]]), np.concatenate([[0.0], counts])
    if len(moments) > CELLS:
        edges = np.linspace(0, until, CELLS + 1)[:-1]
        before = numbers[np.searchsorted(moments, edges, side="right") - 1]
        most = np.array(before)
        np.maximum.at(most, np.clip(np.searchsorted(edges, moments, side="right") - 1, 0, CELLS - 1), numbers)
        return edges, most
    return moments, numbers
