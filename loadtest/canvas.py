"""The look of every plot: its size, fonts, colours, where words stand; and the plot as SVG and PNG.

All axes begin and end at the same places, so that plots over time can be read across one above another. Must not know
what is plotted.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest import svg

WIDTH, HEIGHT = 6.4, 3.5  # inches
LEFT, RIGHT, BOTTOM, TITLE, ROW = 0.84, 0.16, 0.5, 0.34, 0.165  # inches; a row of the legend
LINE = 90  # characters of a row of the legend, about
PNG_DPI = 160
INK, FAINT, GRID = "#333333", "#a3a3a3", "#e3e3e3"
# Okabe and Ito's colours (Color Universal Design, 2008), which the colour-blind tell apart, without yellow; of tiers.
TIERS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#5c5c00")
# Of Paul Tol's muted scheme (Technical note SRON/EPS/TN/09-002); of everything else.
OTHERS = ("#332288", "#117733", "#882255", "#44aa99", "#999933", "#aa4499")
STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "butt",
    "path.simplify": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "gapless",  # the same plot is the same file
    "text.parse_math": False,  # a $ is a $
    "xtick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.color": INK,
    "ytick.labelsize": 8.5,
}
Entry = tuple[str, Artist]  # of the legend: what is said, and of what
Dash = Literal["-", "--", ":", "-."]


@dataclass(frozen=True)
class Picture:
    """A plot. `name` is that of its file, without an ending; `about` says how to read it; `svg` is for a web page."""

    name: str
    title: str
    about: str
    svg: str
    png: bytes


def picture(name: str, title: str, about: str, draw: Callable[[Axes], Sequence[Entry]]) -> Picture:
    """Draw into axes of the house, and say above them what `draw` tells of the lines."""
    with style.context(STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT))
        axes = figure.add_axes((0.1, 0.1, 0.8, 0.8))
        axes.patch.set_gid(svg.AREA)
        _name(figure, axes, title, draw(axes))
        drawing, pixels = io.StringIO(), io.BytesIO()
        figure.savefig(drawing, format="svg", metadata={"Date": None})
        figure.savefig(pixels, format="png", dpi=PNG_DPI, metadata={"Title": title, "Description": about})
    return Picture(name, title, about, svg.inline(drawing.getvalue(), name, title, about), pixels.getvalue())


def nothing(axes: Axes, why: str) -> None:
    """Says why there is no line."""
    axes.text(0.5, 0.75, why, transform=axes.transAxes, ha="center", va="center", fontsize=10, color=INK)


def colours(tiers: Iterable[str]) -> dict[str, str]:
    """One for each tier, the same in all plots of a report."""
    return dict(zip(dict.fromkeys(tiers), cycle(TIERS), strict=False))


def _name(figure: Figure, axes: Axes, title: str, entries: Sequence[Entry]) -> None:
    """The title and, below it, the legend in as many rows as it takes; the axes get what is left."""
    longest = max((len(said) for said, _ in entries), default=0)
    columns = max(1, min(len(entries), LINE // (longest + 7)))
    rows = -(-len(entries) // columns)
    top = TITLE + ROW * rows + 0.1
    axes.set_position((LEFT / WIDTH, BOTTOM / HEIGHT, 1 - (LEFT + RIGHT) / WIDTH, 1 - (BOTTOM + top) / HEIGHT))
    left = 0.1 / WIDTH
    figure.text(left, 1 - 0.1 / HEIGHT, title, va="top", ha="left", fontsize=11, fontweight="bold", color=INK)
    if entries:
        figure.legend(
            [shown for _, shown in entries],
            [said for said, _ in entries],
            loc="upper left",
            bbox_to_anchor=(left, 1 - (TITLE - 0.02) / HEIGHT),
            ncols=columns,
            borderpad=0,
            borderaxespad=0,
            handlelength=2.2,
            columnspacing=1.6,
            labelspacing=0.35,
            labelcolor=INK,
        )
