"""Plots of latencies over a load's time: every request a dot; gaps between tokens, of which there are many, by window.

Must not know how verdicts are found.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import inf, isfinite, isnan

from matplotlib.axes import Axes

from loadtest import axis
from loadtest.canvas import Dash, Entry, Picture, nothing, picture
from loadtest.latency_figures import DASHED, NONE, WORDS, Promises
from loadtest.load_figures import ByTier, Frame, line, steps
from loadtest.samples import Sample

WINDOWS = 30  # of a load, at most: enough gaps in each for a percentile
DOTS = 1500  # from so many on they are pixels, in a drawing too
LINES: tuple[tuple[Fraction, Dash, float], ...] = ((Fraction(99, 100), "-", 1.6), (Fraction(1, 2), ":", 1.4))


def over_time(model: str, metric: str, tiers: ByTier, promises: Promises, frame: Frame) -> Picture:
    """Of one metric of a model."""
    dots, about = (_gaps if metric == "itl" else _requests)(metric, tiers, frame)

    def draw(axes: Axes) -> list[Entry]:
        axis.over_time(axes, frame.loaded, frame.ended)
        finite, entries = dots(axes)
        if not finite:
            nothing(axes, NONE)
        axis.latency(axes, "latency", [*finite, *(one.target for one in promises.values())])
        for tier, verdict in promises.items():
            axes.axhline(verdict.target, color=frame.colours[tier], linestyle=DASHED, linewidth=1)
        return entries

    told = " Dashed across: what was promised." if promises else ""
    return picture(f"{model}-{metric}-over-time", f"{model}: {WORDS[metric]} over time", about + told, draw)


Dots = Callable[[Axes], tuple[list[float], list[Entry]]]  # draws; what the axis must hold, in ns, and the legend


def _requests(metric: str, tiers: ByTier, frame: Frame) -> tuple[Dots, str]:
    many = sum(map(len, tiers.values())) > DOTS

    def draw(axes: Axes) -> tuple[list[float], list[Entry]]:
        seen: list[float] = []
        entries: list[Entry] = []
        for tier, samples in tiers.items():
            colour, taken = frame.colours[tier], [(one.intended / 1e9, _latency(one, metric)) for one in samples]
            ended = [(at, value) for at, value in taken if isfinite(value)]
            lost = [at for at, value in taken if value == inf]
            [dots] = axes.plot([at for at, _ in ended], [it for _, it in ended], "o", color=colour, alpha=0.6)
            dots.set(markersize=3.4, markeredgewidth=0, rasterized=many)
            entries.append((tier, dots))
            if lost:
                [crosses] = axes.plot(lost, [1.0] * len(lost), "x", color=colour, transform=axes.get_xaxis_transform())
                crosses.set(markersize=4.5, clip_on=False, rasterized=many)
                entries.append((f"{tier}, lost: {len(lost)}", crosses))
            seen += [value for _, value in ended]
        return seen, entries

    return (
        draw,
        "A dot for each request, when it should have been sent; at the top those that were refused or failed (lost).",
    )


def _latency(sample: Sample, metric: str) -> float:
    """TTFT or E2E in ns."""
    found = sample.ttft if metric == "ttft" else sample.e2e
    return float("nan") if found is None else found


def _gaps(metric: str, tiers: ByTier, frame: Frame) -> tuple[Dots, str]:
    windows = frame.windows(WINDOWS)

    def draw(axes: Axes) -> tuple[list[float], list[Entry]]:
        seen: list[float] = []
        entries: list[Entry] = []
        for tier, samples in tiers.items():
            came = [gap for sample in samples for gap in _received(sample)]
            times, gaps = [time / 1e9 for time, _ in came], [gap for _, gap in came]
            for q, style, width in LINES:
                found = windows.at(q, times, gaps)
                steps(axes, windows.edges, found, frame.colours[tier], style, width)
                entries.append(line(f"{tier}, P{float(q) * 100:g}", frame.colours[tier], style, width))
                seen += [value for value in found if not isnan(value)]
        return seen, entries

    return draw, (
        f"Percentiles of the gaps that ended in each window of {windows.length:g} s; of fewer than 100 gaps P99 is the "
        "longest."
    )


def _received(sample: Sample) -> list[tuple[int, float]]:
    """When each token after the first message came, and the gap before it, both in ns."""
    times = [time for time, tokens in sample.messages[1:] for _ in range(tokens)]
    return list(zip(times, sample.itl(), strict=False))  # tokens that never came have no moment
