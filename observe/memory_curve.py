"""What the curve of one memory says: its peak, its teeth, growth that does not come back, what is reserved in vain.

A curve of used memory rises and falls. What stays is its lower envelope: the lows of the teeth where there are teeth
long enough to be told apart, else the lows of equal stretches of time, in which short teeth vanish. A leak is a slope
of these lows (Theil-Sen, with Sen's interval, widened where neighbouring lows are alike) that is above zero, that goes
on in the later half, and that matters. Fewer than four long teeth say nothing of a slope, except where the lows have
risen by more than a tooth is high.

Shapes: times (T,) int64 in ns, ascending; used, limit and reserved (T,) in one unit, NaN where unknown. Must not know
whose memory it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import theilslopes

Array = NDArray[np.float64]
Ruling = Literal["leak", "none", "unclear"]

STRETCHES, SAMPLES = 24, 4  # into which a curve is cut, and samples that each holds
BINS, LOWEST = 240, 0.05  # for finding teeth; share of a tooth that its low is the mean of
NEAR = 3  # samples whose mean is compared where a fall is looked for
LEAST_STRETCHES, LEAST_TEETH = 8, 4  # that say anything of a slope
GOES_ON = 0.4  # share of the slope that the later half has of a leak; what warms up slows down
MATTERS = 0.005  # growth over the curve, as a share of what is used
SIGMAS = 8.0  # that a fall is more than noise


@dataclass(frozen=True, slots=True)
class Teeth:
    """How often used memory fell back, by how much (median), and seconds from one low to the next (median)."""

    count: int
    height: float
    period: float


@dataclass(frozen=True, slots=True)
class Growth:
    """Of the lower envelope. Slopes a second, between `low` and `high` at 95 %; `late` is the later half's.

    `points` lows of `of`; `why` says what made it `unclear`. Slopes are NaN where there are too few.
    """

    ruling: Ruling
    slope: float
    low: float
    high: float
    late: float
    points: int
    of: Literal["stretches", "teeth"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """One memory over `seconds`. `reserved_unused`: share of what was reserved, at the peak; None where unknown."""

    seconds: float
    first: float
    last: float
    peak: float
    limit: float | None
    teeth: Teeth
    growth: Growth
    reserved_unused: float | None

    @property
    def until_full(self) -> float | None:
        """Seconds until the peaks of a leak reach the limit at its slope; None without both."""
        if self.limit is None or self.growth.ruling != "leak":
            return None
        return max(0.0, self.limit - self.peak) / self.growth.slope


def study(
    times: NDArray[np.int64], used: Array, limit: Array | None = None, reserved: Array | None = None
) -> Curve | None:
    """What a curve says; None where nothing was sampled."""
    there = ~np.isnan(used)
    if not there.any():
        return None
    seconds, level = (times[there] - times[there][0]) / 1e9, used[there]
    lows_at, lows = _lows_of_stretches(seconds, level)
    long = [fall for fall in _turns(lows, SIGMAS * _noise(lows)) if fall[1] - fall[0] < len(lows) // 2]  # not a decline
    falls = [lows[top] - lows[bottom] for top, bottom in long]
    bins_at, bins = _bins(seconds, level)
    least = max(SIGMAS * _noise(bins), float(np.median(falls)) / 2 if falls else 0.0)
    turns = _turns(bins, least)
    teeth = _teeth(bins_at, bins, turns)
    # Fewer than four teeth may be spikes, which vanish in the stretches; very many teeth do as well.
    if LEAST_TEETH <= len(turns) <= 2 * STRETCHES or (falls and 0 < len(turns) < LEAST_TEETH):
        begins = [_fall(seconds, level, bins_at[top], bins_at[bottom]) for top, bottom in turns]
        growth = _of_teeth(*_lows_of_teeth(seconds, level, begins), teeth, level)
    else:
        growth = _of_stretches(lows_at, lows, level)
    limits = None if limit is None or np.isnan(limit[there]).all() else float(np.nanmax(limit[there]))
    return Curve(
        float(seconds[-1]), level[0], level[-1], level.max(), limits, teeth, growth, _unused(level, there, reserved)
    )


def _unused(level: Array, there: NDArray[np.bool_], reserved: Array | None) -> float | None:
    """Share of what was reserved that was not used when most was used."""
    if reserved is None:
        return None
    at = int(level.argmax())
    held = reserved[there][at]
    return None if np.isnan(held) or held <= 0 else float(1 - level[at] / held)


def _of_stretches(at: Array, lows: Array, level: Array) -> Growth:
    """Growth of the lows of equal stretches of time."""
    if len(lows) < LEAST_STRETCHES:
        nothing = float("nan")
        why = f"{len(level)} samples are too few to say whether it grows"
        return Growth("unclear", nothing, nothing, nothing, nothing, len(lows), "stretches", why)
    slope, low, high = _slope(at, lows)
    late, late_low, _ = _slope(at[len(at) // 2 :], lows[len(at) // 2 :], 0.9)
    grows = low > 0 and late_low > 0 and _goes_on(slope, late, at, level)
    return Growth("leak" if grows else "none", slope, low, high, late, len(lows), "stretches")


def _of_teeth(at: Array, lows: Array, teeth: Teeth, level: Array) -> Growth:
    """Growth of the lows of teeth, each of them one low."""
    nothing = float("nan")
    if len(lows) < 2:
        why = f"it fell by itself only {'once' if teeth.count == 1 else 'at the end'}: watch it for longer"
        return Growth("unclear", nothing, nothing, nothing, nothing, len(lows), "teeth", why)
    slope, low, high = _slope(at, lows)
    half = max(0, min(len(lows) // 2, len(lows) - 3))
    late = _slope(at[half:], lows[half:])[0]
    ruling: Ruling = "none"
    why = ""
    if low > 0 and _goes_on(slope, late, at, level):
        if len(lows) >= LEAST_TEETH or lows[-1] - lows[0] > teeth.height:
            ruling = "leak"
        else:
            ruling, why = "unclear", f"its lows rise, but {len(lows)} teeth are too few to say so: watch it for longer"
    return Growth(ruling, slope, low, high, late, len(lows), "teeth", why)


def _goes_on(slope: float, late: float, at: Array, level: Array) -> bool:
    """The growth does not slow down, and matters, over the whole time."""
    grown = min(slope, late) * (at[-1] - at[0])
    return late >= GOES_ON * slope and bool(grown > MATTERS * np.median(np.abs(level)))


def _slope(at: Array, lows: Array, sure: float = 0.95) -> tuple[float, float, float]:
    """Theil and Sen's slope, and the bounds of its interval, `sure` as a share.

    Sen's interval takes lows for independent. Where neighbours deviate alike, it is widened as if there were fewer.
    """
    slope, intercept, low, high = (float(number) for number in theilslopes(lows, at, sure))
    rest = lows - intercept - slope * at
    spread = float((rest**2).sum())
    alike = float((rest[1:] * rest[:-1]).sum()) / spread if spread > 0 and len(lows) >= LEAST_STRETCHES else 0.0
    wider = np.sqrt((1 + alike) / (1 - alike)) if alike > 0 else 1.0
    return slope, slope - (slope - low) * wider, slope + (high - slope) * wider


def _lows_of_stretches(seconds: Array, level: Array) -> tuple[Array, Array]:
    """The tenth percentile of each of equal stretches of time, at its middle; the lowest sample may be an outlier."""
    count = max(1, min(STRETCHES, len(level) // SAMPLES))
    at, parts = _cut(seconds, level, count)
    return at, np.array([np.percentile(part, 10) for part in parts])


def _fall(seconds: Array, level: Array, top: float, bottom: float) -> int:
    """The sample with which a tooth begins: where, between these moments and one such stretch around, it falls most."""
    first, last = np.searchsorted(seconds, [2 * top - bottom, 2 * bottom - top])
    first, last = max(int(first), NEAR), min(int(last), len(level) - NEAR)
    if last <= first:
        return int(np.searchsorted(seconds, bottom))
    means = np.convolve(level, np.ones(NEAR) / NEAR, "valid")  # of each sample and those right after it
    return first + int((means[first - NEAR : last - NEAR] - means[first:last]).argmax())


def _lows_of_teeth(seconds: Array, level: Array, begins: list[int]) -> tuple[Array, Array]:
    """Of each tooth that begins in the curve: the mean of its lowest samples, as many of each."""
    edges = [*begins, len(level)]
    lengths = np.diff(edges)
    most = max(3, int(LOWEST * np.median(lengths)))
    count = min(most, max(int(lengths[-1]), most // 3))  # the last may have only begun
    found = [
        (seconds[a : a + count].mean(), np.sort(level[a:b])[:count].mean())
        for a, b in pairwise(edges)
        if b - a >= count
    ]
    at, lows = np.array(found).reshape(-1, 2).T
    return at, lows


def _bins(seconds: Array, level: Array) -> tuple[Array, Array]:
    """The middle sample of each of many equal stretches of time."""
    at, parts = _cut(seconds, level, max(1, min(BINS, len(level) // 2)))
    return at, np.array([np.partition(part, len(part) // 2)[len(part) // 2] for part in parts])


def _cut(seconds: Array, level: Array, count: int) -> tuple[Array, list[Array]]:
    """Equal stretches of time that hold samples: the middle and the samples of each."""
    edges = np.searchsorted(seconds, np.linspace(0, seconds[-1], count + 1)[1:-1])
    pairs = zip(np.split(seconds, edges), np.split(level, edges), strict=True)
    filled = [((when[0] + when[-1]) / 2, part) for when, part in pairs if len(part)]
    return np.array([when for when, _ in filled]), [part for _, part in filled]


def _noise(points: Array) -> float:
    """Standard deviation of what is neither a trend nor a tooth, from how much neighbours bend, which few falls do."""
    if len(points) < 3:
        return float("inf")
    bends = np.abs(np.diff(points, 2))
    return float(np.median(bends)) / (0.6745 * 6**0.5) + 1e-9 * float(np.abs(points).max())


def _turns(points: Array, least: float) -> list[tuple[int, int]]:
    """Falls of more than `least`: where each begins, at the top, and ends, at the bottom, before a rise as large.

    The last one may not have risen again.
    """
    found: list[tuple[int, int]] = []
    top = bottom = 0
    falling = False
    for at, value in enumerate(points):
        if falling:
            if value < points[bottom]:
                bottom = at
            elif value - points[bottom] > least:
                found.append((top, bottom))
                falling, top = False, at
        elif value > points[top]:
            top = at
        elif points[top] - value > least:
            falling, bottom = True, at
    return [*found, (top, bottom)] if falling else found


def _teeth(at: Array, points: Array, turns: list[tuple[int, int]]) -> Teeth:
    if not turns:
        return Teeth(0, 0.0, float("nan"))
    height = float(np.median([points[top] - points[bottom] for top, bottom in turns]))
    bottoms = np.array([at[bottom] for _, bottom in turns])
    return Teeth(len(turns), height, float(np.median(np.diff(bottoms))) if len(turns) > 1 else float("nan"))
