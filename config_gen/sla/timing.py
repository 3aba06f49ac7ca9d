"""How arrivals spread over a run: how uneven their gaps are, and how their rate moves.

Gaps are drawn in operational time, in which the rate is the declared one throughout, and brought to the clock through
the inverse of the integrated rate: so any unevenness goes with any movement. Must not know tiers, lengths or texts.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import inf, sqrt
from random import Random
from typing import NamedTuple

from config_gen.sla import quantity

BURSTS = 3.0  # coefficient of variation, unless another is given
MOST_UNEVEN, MOST_TIMES = 100.0, 1e6
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?|\.\d{1,9}", re.ASCII)


class TimingError(ValueError):
    """Text that says no timing; one line with the value and what is allowed."""

    exit_status = 2


class Point(NamedTuple):
    """From or to here the rate is `factor` times the declared one; `at` in s since the run began."""

    at: float
    factor: float


@dataclass(frozen=True)
class Rates:
    """Multiples of the declared rates over a run: straight lines between points, the first at 0, level after the last.

    Two points at the same time are a step.
    """

    points: tuple[Point, ...] = (Point(0.0, 1.0),)

    def integral(self, seconds: float) -> float:
        """Of the factor from 0 to `seconds`: how many seconds at the declared rates send as much."""
        at = bisect_right(self.points, seconds, key=lambda point: point.at) - 1
        start, gone = self.points[at], seconds - self.points[at].at
        return self._integrals[at] + gone * (start.factor + self._slope(at) * gone / 2)

    def moment(self, spent: float) -> float:
        """The inverse: when the integral passes `spent`, in s; infinite if it never does."""
        at = bisect_right(self._integrals, spent) - 1
        start, slope, due = self.points[at], self._slope(at), spent - self._integrals[at]
        if slope == 0:
            return start.at + due / start.factor if start.factor else inf
        # Of the two ways to write the root, the one that subtracts nothing of its own size.
        root = sqrt(max(0.0, start.factor**2 + 2 * slope * due))
        return start.at + (2 * due / (start.factor + root) if due else 0.0)

    @cached_property
    def _integrals(self) -> tuple[float, ...]:
        """Up to each point."""
        sums = [0.0]
        for one, two in pairwise(self.points):
            sums.append(sums[-1] + (two.at - one.at) * (one.factor + two.factor) / 2)
        return tuple(sums)

    def _slope(self, at: int) -> float:
        """Behind point `at`, per s. A step takes no time, so no moment lies inside it."""
        if at + 1 == len(self.points):
            return 0.0
        one, two = self.points[at : at + 2]
        return (two.factor - one.factor) / (two.at - one.at)


@dataclass(frozen=True)
class Timing:
    """`cv` is the coefficient of variation of the gaps: 0 = all alike, 1 = a Poisson process, more = bursts."""

    cv: float = 1.0
    rates: Rates = field(default_factory=Rates)

    def moments(self, random: Random, own: Random, rate: float, duration: int) -> Iterator[int]:
        """Arrivals in ns before `duration`, `rate` per second of operational time; each is drawn when it is asked for.

        One exponential gap is drawn from `random` for each, needed or not, so that what else is drawn from it in
        between is the same for every timing; what other gaps need comes from `own`.
        """
        spent, first = 0.0, True
        while True:
            spent += self._gap(random.expovariate(1.0), own, first) / rate
            at = self.rates.moment(spent) * 1e9
            if at >= duration:
                return
            yield int(at)
            first = False

    def _gap(self, exponential: float, own: Random, first: bool) -> float:
        """Of mean 1, gamma distributed.

        The run begins at a random moment of a process that has gone on for ever: at an arrival, every tier would
        begin with a burst, and send more than is declared. The gap that holds a random moment is one of those drawn
        in proportion to their length, and the moment lies anywhere in it.
        """
        if self.cv == 1:
            return exponential
        if self.cv == 0:
            return own.random() if first else 1.0
        shape, scale = self.cv**-2, self.cv**2
        return own.random() * own.gammavariate(shape + 1, scale) if first else own.gammavariate(shape, scale)


def unevenness(text: str) -> float:
    """The `cv` that `poisson`, `constant`, `bursts` or `bursts:CV` means. Raises TimingError."""
    kind, colon, value = text.partition(":")
    if not colon and kind in (known := {"poisson": 1.0, "constant": 0.0, "bursts": BURSTS}):
        return known[kind]
    if kind == "bursts" and _NUMBER.fullmatch(value) and 0 < float(value) <= MOST_UNEVEN:
        return float(value)
    raise TimingError(
        f"{text!r} is not allowed; poisson, constant, bursts or bursts:CV, a coefficient of variation of the gaps of "
        f"more than 0 and at most {MOST_UNEVEN:g} ({BURSTS:g} unless it is given; 1 is poisson)"
    )


def rates(text: str) -> Rates:
    """`0s:1,60s:50` is a ramp, `30s:1,30s:50` a step: before the first point the rate is level. Raises TimingError."""
    points = [_point(word) for word in text.split(",")]
    if len(points) < 2:
        raise TimingError(f"{text!r} is one point, and nothing moves; give two or more, or --rate-scale")
    for one, two in pairwise(points):
        if two.at < one.at:
            raise TimingError(f"{two.at:g}s comes after {one.at:g}s; points go forward in time")
    for one, _, three in zip(points, points[1:], points[2:], strict=False):
        if three.at == one.at:
            raise TimingError(f"{one.at:g}s is given three times; a step is two points at one time")
    if not any(point.factor for point in points):
        raise TimingError(f"{text!r} sends nothing; at least one factor > 0")
    return Rates((Point(0.0, points[0].factor), *points) if points[0].at else tuple(points))


def _point(word: str) -> Point:
    time, colon, factor = word.strip().partition(":")
    if not colon:
        raise TimingError(f"{word.strip()!r} is no point; write TIME:FACTOR as 30s:2, points separated by commas")
    try:
        at = quantity.duration(time, least=0) / 1e9
    except quantity.QuantityError as error:
        raise TimingError(str(error)) from None
    if not _NUMBER.fullmatch(factor) or float(factor) > MOST_TIMES:
        raise TimingError(f"{factor!r} is no factor; a number from 0 to {MOST_TIMES:g}, as in {time}:2")
    return Point(at, float(factor))
