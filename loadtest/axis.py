"""Axes of plots: time since a load began, amounts from zero, latencies by powers of ten, percentiles by their tail.

Must not know what is plotted.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import floor, isfinite, log10

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from config_gen.sla.quantity import show_duration, show_percentile
from loadtest.canvas import GRID

UNITS = ((3 * 3600, 3600, "h"), (600, 60, "min"), (0, 1, "s"))  # from so many seconds on, in what
WHOLE = ("requests", "pages")  # units that have no parts
TICKS = [Fraction(1, 2), Fraction(9, 10), *(1 - Fraction(1, 10**n) for n in range(2, 7))]


def over_time(axes: Axes, loaded: float, ended: float) -> None:
    """From 0 to `ended` s; what follows the load's `loaded` s is in grey."""
    _, unit, name = next(one for one in UNITS if ended >= one[0])
    axes.set_xlim(0, ended)
    steps = MaxNLocator(8, steps=[1, 2, 3, 5, 10]).tick_values(0, ended / unit)
    axes.xaxis.set_major_locator(FixedLocator([at * unit for at in steps if at * unit <= ended]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at / unit:g}"))
    axes.set_xlabel(f"time since the load began ({name})")
    if ended > loaded:
        axes.set_xlabel(f"{axes.get_xlabel()}; grey: after its end")
        axes.axvspan(loaded, ended, color=GRID, alpha=0.5, linewidth=0, zorder=0)


def from_zero(axes: Axes, unit: str, values: Iterable[float]) -> None:
    """`values` are all that must be seen; of a share the whole is, too. A line at 0 stands above the axis."""
    most = max((value for value in values if isfinite(value)), default=0.0)
    most = max(most, 100.0) if unit.startswith("%") else most
    top = 1.08 * most or 1.0
    axes.set_ylim(-0.025 * top, top)
    ticks = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], integer=unit in WHOLE).tick_values(0, top)
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if 0 <= tick <= top]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.set_ylabel(unit)


def latency(axes: Axes, what: str, values: Iterable[float]) -> None:
    """`values`, in ns, are all that must be seen."""
    seen = [value for value in values if 0 < value < float("inf")]
    low, high = (min(seen), max(seen)) if seen else (1e6, 1e9)
    if high < 4 * low:  # less than two ticks
        low, high = low / 2, high * 2
    axes.set_yscale("log")
    axes.set_ylim(low / 1.15, high * 1.25)
    decades = log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show_duration(float(f"{value:.6g}"))))
    axes.yaxis.set_minor_locator(NullLocator() if decades < 2.5 else LogLocator(subs=(2.0, 5.0), numticks=40))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(what)


def by_tail(axes: Axes, least: float, named: Iterable[Fraction]) -> None:
    """Percentiles up to that with the share `least` above it, as far from each other as those shares' powers of ten.

    `named` ones have a tick in any case.
    """
    axes.set_xscale("log")
    axes.set_xlim(1, least)
    ticks = {float(1 - q): show_percentile(q) for q in TICKS if 1 - q >= least}
    room = 0.3 * -floor(log10(least)) / 4  # decades that two labels need between them
    for q in named:
        tail = float(1 - q)
        ticks = {at: said for at, said in ticks.items() if abs(log10(at / tail)) > room} | {tail: show_percentile(q)}
    axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: next((s for t, s in ticks.items() if t == at), "")))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("percentile (the share above it on a log scale)")
