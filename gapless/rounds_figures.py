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
Taken = Mapping[str, tuple[str, str]]  # what a round took: under which load, and its name
SHARES: Taken = {
    "in steps, usual load": ("usual", "busy"),
    "GPUs, usual load": ("usual", "gpu"),
    "KV pages at most, flood": ("flood", "pages"),
}
MEMORY: Taken = {"the model's process, flood": ("flood", "memory"), "GPUs, flood": ("flood", "gpu_memory")}


def figures(measured: Sequence[Measured], rows: Sequence[Mapping[str, Any]], model: LlmModel) -> Iterator[Picture]:
    """Of one run of all rounds."""
    names = [f"{number}: {one.round.name}" for number, one in enumerate(measured, 1)]
    tiers = list(model.traffic)
    yield _served(names, rows, tiers)
    classes = [{one.tier: one for one in each.usual.classes(model)} for each in measured]
    latencies = {name: found[tiers[0]].latencies["e2e"] for name, found in zip(names, classes, strict=True)}
    drawn = distribution(f"{tiers[0]} under the usual load", "e2e", latencies, {}, colours(names))
    yield replace(drawn, name=tiers[0])
    yield _bars("taken", "What it took: time and KV pages", "%", names, rows, SHARES, 100)
    yield _bars("memory", "What it took: memory, at most", "GiB", names, rows, MEMORY, 1 / 2**30)


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


def _bars(
    name: str,
    title: str,
    unit: str,
    names: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    taken: Taken,
    scale: float,
) -> Picture:
    """A bar for each thing that was taken in each round; nothing for what is not there, as GPUs."""
    found = {what: [row[load]["use"][key] for row in rows] for what, (load, key) in taken.items()}
    known = {what: values for what, values in found.items() if any(value is not None for value in values)}
    shades = colours(known)

    def draw(axes: Axes) -> list[Entry]:
        width, seen = WIDE / max(1, len(known)), [0.0]
        for number, (what, values) in enumerate(known.items()):
            heights = [scale * (value or 0.0) for value in values]
            axes.bar(
                [at - WIDE / 2 + (number + 0.5) * width for at in range(len(rows))], heights, width, color=shades[what]
            )
            seen += heights
        axis.from_zero(axes, unit, seen)
        _named(axes, names)
        return [(what, Patch(color=shades[what])) for what in known]

    return picture(name, title, "As sampled while the load counted, of each round.", draw)


def _named(axes: Axes, names: Sequence[str]) -> None:
    """A bar or group for each name, in words that do not run into each other."""
    axes.set_xticks(range(len(names)), [fill(name, 19) for name in names])
    axes.grid(visible=False, axis="x")
