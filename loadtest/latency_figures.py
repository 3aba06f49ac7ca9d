"""Plots of how latencies are distributed, up to the last sample, with what was promised beside it.

Must not know how verdicts are found.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from math import inf

import numpy as np
from matplotlib.axes import Axes

from config_gen.sla.quantity import show_duration, show_percentile
from loadtest import axis
from loadtest.canvas import Entry, Picture, nothing, picture
from loadtest.intervals import Interval
from loadtest.load_figures import line
from loadtest.verdict import Latency, Verdict

WORDS = {"ttft": "time to first token (TTFT)", "itl": "gap between tokens (ITL)", "e2e": "whole request (E2E)"}
EVERY, RANKS = 50, 600  # of the largest samples each one is drawn; of the others some, a pixel apart or less
NONE = "no request was answered"
DASHED = (0, (4, 2))
Promises = Mapping[str, Verdict]  # by tier, of one metric


def distribution(
    model: str, metric: str, latencies: Mapping[str, Latency], promises: Promises, colours: Mapping[str, str]
) -> Picture:
    """Latency by percentile, of each tier."""

    def draw(axes: Axes) -> list[Entry]:
        counts = [len(one.samples) for one in latencies.values() if one.samples]
        tails = [0.75 / max(counts, default=1), *(0.6 * float(1 - one.q) for one in promises.values())]
        axis.by_tail(axes, min(0.08, *tails), {one.q for one in promises.values()})
        axis.latency(axes, "latency", _seen(latencies, promises))
        if not any(one.samples and one.samples[0] < inf for one in latencies.values()):
            nothing(axes, NONE)
        entries = []
        for tier, latency in latencies.items():
            _curve(axes, latency, colours[tier])
            entries.append(line(f"{tier}, {_counted(latency)}", colours[tier]))
            if tier in promises:
                entries.append(_promise(axes, latency, promises[tier], colours[tier]))
        return entries

    about = (
        "Right of P99 is the slowest hundredth. The curve ends at the slowest of all, or rises where the rest were "
        "refused or failed (lost). Dashed: the promise, up to its percentile (square). Dot: what was measured there, "
        "in its 95 % interval; dotted where no end of that is known."
    )
    return picture(f"{model}-{metric}", f"{model}: {WORDS[metric]}", about, draw)


def _seen(latencies: Mapping[str, Latency], promises: Promises) -> list[float]:
    """What the axis must hold: from the fastest twentieth on, so that a single fast one does not press the rest."""
    found: list[float] = [one.target for one in promises.values()]
    for one in latencies.values():
        if finite := bisect_left(one.samples, inf):
            found += [one.samples[finite // 20], one.samples[finite - 1]]
    return found


def _counted(latency: Latency) -> str:
    count = len(latency.samples)
    lost = count - bisect_left(latency.samples, inf)
    return f"n = {count:,}" + (f", {lost / count:.1%} lost" if lost else "")


def _curve(axes: Axes, latency: Latency, colour: str) -> None:
    """From rank to rank: the sample of rank k of n is the percentile from (k - 1) / n to k / n."""
    samples, count = latency.samples, len(latency.samples)
    finite = bisect_left(samples, inf)
    if not finite:
        return
    spread = np.ceil(count * (1 - np.logspace(0, -np.log10(count), RANKS)))
    ranks = np.unique(np.concatenate([spread, np.arange(count - EVERY, count), [finite, count]]))
    ranks = ranks[(ranks >= 1) & (ranks <= finite)].astype(int)
    ends = 1 - ranks / count
    begins = np.concatenate([[1.0], ends[:-1]])
    values = np.array([samples[rank - 1] for rank in ranks], float)
    tails, levels = np.stack([begins, ends], 1).ravel(), np.repeat(values, 2)
    if finite == count:  # above the last sample is nothing
        tails, levels = tails[:-1], levels[:-1]
        axes.plot(tails[-1:], levels[-1:], marker="o", markersize=3, color=colour)
    else:  # the percentiles above it are infinite
        tails, levels = np.append(tails, tails[-1]), np.append(levels, axes.get_ylim()[1])
    axes.plot(tails, levels, color=colour)


def _promise(axes: Axes, latency: Latency, verdict: Verdict, colour: str) -> Entry:
    """The target up to its percentile; what was measured there, and how sure that is."""
    tail = float(1 - verdict.q)
    [shown] = axes.plot([1, tail], [verdict.target] * 2, "s", color=colour, linestyle=DASHED, linewidth=1, zorder=4)
    shown.set(markersize=6, markerfacecolor="white", markeredgewidth=1.3, markevery=[1])
    if (value := latency.at(verdict.q)) is not None:
        _measured(axes, tail, value, latency.interval(verdict.q), colour)
    return f"{verdict.tier}: {show_percentile(verdict.q)} ≤ {show_duration(verdict.target)}", shown


def _measured(axes: Axes, tail: float, value: float, within: Interval | None, colour: str) -> None:
    """A dot in its interval: at the top of the axes where it is infinite, dotted up to there where no end is known."""
    low, high = (value, value) if within is None else (value if within.low is None else within.low, within.high)
    top = axes.get_ylim()[1]
    axes.plot(
        [tail] * 2, [min(low, top), min(value if high is None else high, top)], color=colour, linewidth=3.2, alpha=0.45
    )
    if high is None:
        axes.plot([tail] * 2, [min(value, top), top], color=colour, linewidth=1, linestyle=":")
    [dot] = axes.plot([tail], [min(value, top)], "^" if value == inf else "o", color=colour, zorder=5)
    dot.set(markersize=5, clip_on=False)
