"""Plots of what was seen of a server while a load lasted, on the load's own time. Must not know what was seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from numpy.typing import NDArray

from loadtest import axis
from loadtest.canvas import FAINT, INK, OTHERS, Dash, Entry, Picture, picture
from loadtest.load_figures import Frame, line

Values = NDArray[np.float64]
LIMITS: tuple[Dash, ...] = ("--", ":", "-.")


class Timeline(Protocol):
    """Curves of one kind. Times (T,) int64, ns since the epoch; values (T,) in `unit`, NaN where nothing is known.

    `faint` are many of a kind, `limits` bound the lines; `stacked` lines are parts of a whole. `since`: a value is of
    all the time since the one before, else of the instant.
    """

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def about(self) -> str: ...
    @property
    def times(self) -> NDArray[np.int64]: ...
    @property
    def lines(self) -> Mapping[str, Values]: ...
    @property
    def faint(self) -> Mapping[str, Values]: ...
    @property
    def limits(self) -> Mapping[str, Values]: ...
    @property
    def by_tier(self) -> bool: ...
    @property
    def stacked(self) -> bool: ...
    @property
    def since(self) -> bool: ...


def figures(whose: str, timelines: Iterable[Timeline], began: int, frame: Frame) -> Iterator[Picture]:
    """One each, of `whose` server or machine; the load began at `began`, in ns since the epoch."""
    for one in timelines:
        yield picture(f"{whose}-{one.name}", f"{whose}: {_lower(one.title)}", one.about, _Drawing(one, began, frame))


def _lower(title: str) -> str:
    """As it stands inside a sentence; abbreviations stay."""
    return title if title[:2].isupper() else title[0].lower() + title[1:]


class _Drawing:
    """Draws one timeline, with seconds since the load began."""

    def __init__(self, timeline: Timeline, began: int, frame: Frame) -> None:
        self._of = timeline
        self._frame = frame
        self._times = (timeline.times - began) / 1e9
        self._shown = (self._times >= 0) & (self._times <= frame.ended)
        self._step: Literal["pre", "post"] = "pre" if timeline.since else "post"

    def __call__(self, axes: Axes) -> list[Entry]:
        of, entries, seen = self._of, list[Entry](), [0.0]
        for values in of.faint.values():
            self._line(axes, values, FAINT, 0.7)
            seen += [*values[self._shown]]
        if of.faint:
            entries.append(line(f"each of {len(of.faint)} {next(iter(of.faint)).split()[0]}s", FAINT, width=0.9))
        named = self._coloured()
        if of.stacked:
            entries += self._stack(axes, named)
            seen += [*np.nansum(np.array([values for _, values, _ in named]), 0)[self._shown]]
        else:
            for label, values, colour in named:
                self._line(axes, values, colour, 1.5)
                entries.append(line(label, colour))
                seen += [*values[self._shown]]
        for at, (label, values) in enumerate(of.limits.items()):
            style = LIMITS[at % len(LIMITS)]
            self._line(axes, values, INK, 1.1, style)
            entries.append(line(label, INK, style, 1.1))
            seen += [*values[self._shown]]
        axis.from_zero(axes, of.unit, seen)
        axis.over_time(axes, self._frame.loaded, self._frame.ended)
        return entries

    def _coloured(self) -> list[tuple[str, Values, str]]:
        """The lines with their colours: those of tiers in the order of the SLA file."""
        lines, tiers = self._of.lines, self._frame.colours
        if self._of.by_tier:
            return [(tier, lines[tier], colour) for tier, colour in tiers.items() if tier in lines]
        if self._of.faint:
            return [(name, values, INK) for name, values in lines.items()]
        return [(name, values, OTHERS[at % len(OTHERS)]) for at, (name, values) in enumerate(lines.items())]

    def _line(self, axes: Axes, values: Values, colour: str, width: float, style: Dash = "-") -> None:
        axes.plot(self._times, values, drawstyle=f"steps-{self._step}", color=colour, linewidth=width, linestyle=style)

    def _stack(self, axes: Axes, named: list[tuple[str, Values, str]]) -> list[Entry]:
        below, entries = np.zeros(len(self._times)), list[Entry]()
        for (label, values, colour), alpha in zip(named, (0.75, 0.3), strict=False):
            above = below + values
            axes.fill_between(self._times, below, above, step=self._step, color=colour, alpha=alpha, linewidth=0)
            entries.append((label, Patch(color=colour, alpha=alpha, linewidth=0)))
            below = above
        return entries
