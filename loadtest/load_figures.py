"""Plots of a model's load over time, as its clients saw it: rates, tokens, requests in flight, errors.

Must not know servers or verdicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from loadtest import axis
from loadtest.canvas import Dash, Entry, Picture, picture
from loadtest.samples import Outcome, Sample
from loadtest.windows import Numbers, Windows, in_flight

RATES = 30  # windows of a load, at most
LOST: dict[Outcome, Dash] = {"rejected": "-", "failed": ":"}
ByTier = Mapping[str, Sequence[Sample]]


@dataclass(frozen=True)
class Frame:
    """What the plots of a report share. The load lasted `loaded` s, its last answer came after `ended` s."""

    loaded: float
    ended: float
    colours: Mapping[str, str]  # by tier

    @staticmethod
    def of(duration: int, samples: Sequence[Sample], colours: Mapping[str, str]) -> Frame:
        """`duration` in ns."""
        last = max((moment for one in samples for moment in (one.sent, one.end or 0)), default=0)
        return Frame(duration / 1e9, max(duration, last) / 1e9, colours)

    def windows(self, most: int) -> Windows:
        return Windows.of(self.loaded, self.ended, most)


def figures(model: str, tiers: ByTier, frame: Frame, tokens: bool) -> Iterator[Picture]:
    """Of one model, whose samples come by tier; `tokens`: it answers token by token. Errors where there were any."""
    yield _rates(model, tiers, frame)
    if tokens:
        yield _tokens(model, tiers, frame)
    yield _in_flight(model, tiers, frame)
    if any(sample.outcome != "ok" for sample in chain(*tiers.values())):
        yield _errors(model, tiers, frame)


def line(label: str, colour: str, style: Dash = "-", width: float = 1.6) -> Entry:
    return label, Line2D([], [], color=colour, linestyle=style, linewidth=width)


def steps(
    axes: Axes, edges: Numbers, values: Numbers, colour: str, style: Dash = "-", width: float = 1.6, alpha: float = 1.0
) -> None:
    """A level for each stretch between two edges; nothing where it is NaN."""
    ends = np.append(values, values[-1:])
    axes.plot(edges, ends, drawstyle="steps-post", color=colour, linestyle=style, linewidth=width, alpha=alpha)


def _rates(model: str, tiers: ByTier, frame: Frame) -> Picture:
    windows = frame.windows(RATES)

    def draw(axes: Axes) -> list[Entry]:
        entries, seen = [], [0.0]
        for tier, samples in tiers.items():
            colour = frame.colours[tier]
            asked = windows.rate(sample.intended / 1e9 for sample in samples)
            asked[windows.edges[:-1] >= frame.loaded] = np.nan  # no more is offered
            given = windows.rate(sample.end / 1e9 for sample in samples if sample.outcome == "ok" and sample.end)
            steps(axes, windows.edges, asked, colour, "--", 1.0)
            steps(axes, windows.edges, given, colour)
            seen += [*np.nan_to_num(asked), *given]
            entries += [line(f"{tier}, answered", colour), line(f"{tier}, offered", colour, "--", 1.0)]
        axis.from_zero(axes, "requests per second", seen)
        axis.over_time(axes, frame.loaded, frame.ended)
        return entries

    about = f"Requests by when they should have been sent, and good answers by when they ended, {_each(windows)}."
    return picture(f"{model}-rate", f"{model}: rate", about, draw)


def _tokens(model: str, tiers: ByTier, frame: Frame) -> Picture:
    windows = frame.windows(RATES)

    def draw(axes: Axes) -> list[Entry]:
        seen = [0.0]
        for tier, samples in tiers.items():
            came = [message for sample in samples for message in sample.messages]
            rate = windows.rate((time / 1e9 for time, _ in came), (count for _, count in came))
            steps(axes, windows.edges, rate, frame.colours[tier])
            seen += [*rate]
        axis.from_zero(axes, "tokens per second", seen)
        axis.over_time(axes, frame.loaded, frame.ended)
        return [line(tier, frame.colours[tier]) for tier in tiers]

    return picture(f"{model}-tokens", f"{model}: output tokens", f"Tokens as they came, {_each(windows)}.", draw)


def _in_flight(model: str, tiers: ByTier, frame: Frame) -> Picture:
    def draw(axes: Axes) -> list[Entry]:
        seen = [0.0]
        for tier, samples in tiers.items():
            ends = [frame.ended if sample.end is None else sample.end / 1e9 for sample in samples]
            moments, numbers = in_flight([sample.sent / 1e9 for sample in samples], ends, frame.ended)
            axes.plot(moments, numbers, drawstyle="steps-post", color=frame.colours[tier], linewidth=1.2)
            seen += [*numbers]
        axis.from_zero(axes, "requests", seen)
        axis.over_time(axes, frame.loaded, frame.ended)
        return [line(tier, frame.colours[tier]) for tier in tiers]

    about = "Requests that were sent and whose answer has not ended."
    return picture(f"{model}-in-flight", f"{model}: in flight", about, draw)


def _errors(model: str, tiers: ByTier, frame: Frame) -> Picture:
    windows = frame.windows(RATES)

    def draw(axes: Axes) -> list[Entry]:
        entries, seen = [], [0.0]
        for tier, samples in tiers.items():
            for outcome, style in LOST.items():
                lost = [(sample.end or sample.intended) / 1e9 for sample in samples if sample.outcome == outcome]
                if lost:
                    rate = windows.rate(lost)
                    steps(axes, windows.edges, rate, frame.colours[tier], style, 1.8)
                    seen += [*rate]
                    entries.append(line(f"{tier}, {outcome}: {len(lost)}", frame.colours[tier], style, 1.8))
        axis.from_zero(axes, "requests per second", seen)
        axis.over_time(axes, frame.loaded, frame.ended)
        return entries

    about = f"Requests that the server refused and those that failed, by when that was known, {_each(windows)}."
    return picture(f"{model}-errors", f"{model}: errors", about, draw)


def _each(windows: Windows) -> str:
    return f"in windows of {windows.length:g} s"
