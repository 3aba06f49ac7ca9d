"""The pictures of `gapless rounds`: what each served, how soon, and what it took. Must not know how rounds ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from config_gen.sla.spec import LlmModel
from gapless.rounds import Measured
from loadtest import axis
from loadtest.canvas import INK, Entry, Picture, colours, picture
from loadtest.latency_figures import distribution

WIDE = 0.7  # of the distance of two bars, or groups of them
TAKEN = {  # what a round took, and under which load
    "busy with steps, usual load": ("usual", "busy"),
    "KV pages used at most, flood": ("flood", "pages"),
}


def figures(measured: Sequence[Measured], rows: Sequence[Mapping[str, Any]], model: LlmModel) -> Iterator[Picture]:
    """Of one run of all rounds."""
    names = [f"{number}: {one.round.name}" for number, one in enumerate(measured, 1)]
    tiers = list(model.traffic)
    yield _served(names, rows, tiers)
    classes = [{one.tier: one for one in each.usual.classes(model)} for each in measured]
    latencies = {name: found[tiers[0]].latencies["e2e"] for name, found in zip(names, classes, strict=True)}
    drawn = distribution(f"{tiers[0]} under the usual load", "e2e", latencies, {}, colours(names))
    yield replace(drawn, name=tiers[0])
    yield _taken(names, rows)


def _served(names: Sequence[str], rows: Sequence[Mapping[str, Any]], tiers: Sequence[str]) -> Picture:
    shades = colours(tiers)

    def draw(axes: Axes) -> list[Entry]:
        below = [0.0] * len(rows)
        for tier in tiers:
            served = [row["flood"]["served_per_s_by_tier"][tier] for row in rows]
            axes.bar(range(len(rows)), served, WIDE, below, color=shades[tier])
            below = [low + more for low, more in zip(below, served, strict=True)]
        for at, total in enumerate(below):
            axes.annotate(
                f"{total:.2f}", (at, total), (0, 3), textcoords="offset points", ha="center", fontsize=9, color=INK
            )
        axis.from_zero(axes, "requests per second", below)
        _named(axes, names)
        return [(tier, Patch(color=shades[tier])) for tier in tiers]

    about = "Requests that ended well while more were sent than any round can serve; the same ones to each."
    return picture("served", "Served of the flood", about, draw)


def _taken(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Picture:
    shades = colours(TAKEN)

    def draw(axes: Axes) -> list[Entry]:
        width, seen = WIDE / len(TAKEN), [0.0]
        for number, (what, (load, share)) in enumerate(TAKEN.items()):
            values = [100 * (row[load]["use"][share] or 0.0) for row in rows]
            places = [at - WIDE / 2 + (number + 0.5) * width for at in range(len(rows))]
            axes.bar(places, values, width, color=shades[what])
            seen += values
        axis.from_zero(axes, "%", seen)
        _named(axes, names)
        return [(what, Patch(color=shades[what])) for what in TAKEN]

    about = "Share of the time in which a step ran, and of KV memory that was leased."
    return picture("taken", "What it took", about, draw)


def _named(axes: Axes, names: Sequence[str]) -> None:
    """A bar or group for each name, in words that do not run into each other."""
    axes.set_xticks(range(len(names)), [fill(name, 19) for name in names])
    axes.grid(visible=False, axis="x")
