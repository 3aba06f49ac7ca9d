"""What answers of a real Triton say about its batcher, and how a simulation of the same load compares."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import exp
from statistics import fmean
from typing import NamedTuple

from sleeping_triton import Answer

from config_gen.batching import Batching
from config_gen.percentiles import percentile
from config_gen.simulation.batcher import Arrived, Race, simulate

MS = 1_000_000
SEEDS = 10  # simulations of the same load
RATE_BAR, P50_BAR, P99_BAR = 0.05, 0.10, 0.20
HALF, LAST = Fraction(1, 2), Fraction(99, 100)

# What was measured


def executions(answers: Sequence[Answer]) -> list[tuple[int, int, int, int]]:
    """When each began and ended, its rows, and when the first of its requests was sent."""
    sent: dict[tuple[int, int, int], int] = {}
    for answer in answers:
        if not answer.reason:
            key = answer.began, answer.done, answer.rows
            sent[key] = min(answer.sent, sent.get(key, answer.sent))
    return sorted((*key, first) for key, first in sent.items())


def idle_gaps(answers: Sequence[Answer], waited: int) -> list[int]:
    """ns from each end of an execution to the next begin, where a request for that one had waited for `waited` ns."""
    runs = executions(answers)
    begins = [run[0] for run in runs]
    gaps = []
    for _, end, _, _ in runs:
        place = bisect(begins, end)
        if place < len(runs) and runs[place][3] < end - waited:
            gaps.append(begins[place] - end)
    return gaps


def lost_share(answers: Sequence[Answer], delay: int) -> float:
    """How often the batcher looked too early: the next execution came only with the next arrival, or later.

    Some arrivals come so soon that it cannot be told; how many follows from their rate.
    """
    gaps, near = idle_gaps(answers, delay + 2 * MS), 4 * MS
    admitted = [answer.sent for answer in answers if answer.reason != "queue full"]
    rate = len(admitted) / (max(admitted) - min(admitted))
    return min(1.0, sum(gap > near for gap in gaps) / len(gaps) / exp(-rate * (near - MS)))


def joined_share(answers: Sequence[Answer], batching: Batching) -> float:
    """The same of one instance with prefetching and a delay: how often a scheduled batch grew when an execution ended.

    That is told by the first request that came after the batch was scheduled, and well before the end.
    """
    near, most = 3 * MS, batching.max_batch_size
    joined = []
    for (before, ended, _, _), (began, _, _, first) in pairwise(executions(answers)):
        scheduled = max(first + batching.delay, before)
        since = sorted((one.sent, one.size, one.began) for one in answers if first <= one.sent < ended - near)
        held = sum(size for sent, size, _ in since if sent < scheduled)
        later = [one for one in since if one[0] >= scheduled - near]
        if later and later[0][0] > scheduled + near and held < most and held + later[0][1] <= most:
            joined.append(later[0][2] == began)
    return fmean(joined)


def measured_cost(answers: Sequence[Answer], row: float, overhead: float) -> Callable[[Sequence[Arrived]], float]:
    """Mean ns an execution of so many rows took and the Python backend's own time; `row` ns for each it never had."""
    times = defaultdict(list)
    for began, ended, rows, _ in executions(answers):
        times[rows].append(ended - began)
    means = {rows: fmean(found) for rows, found in times.items()}

    def cost(batch: Sequence[Arrived]) -> float:
        rows = sum(request.size for request in batch)
        near = min(means, key=lambda seen: abs(seen - rows))
        return means[near] + (rows - near) * row + overhead

    return cost


# The comparison


class Ended(NamedTuple):
    level: int
    sent: int
    ended: int
    reason: str


class Numbers(NamedTuple):
    rate: float  # answers in a second
    p50: float  # ms
    p99: float
    refused: float  # share of all requests
    level_p50: dict[int, float]

    def __str__(self) -> str:
        return f"{self.rate:6.1f}/s {self.p50:6.1f} {self.p99:7.1f} ms, refused {self.refused:5.1%}"


def numbers(runs: Sequence[Sequence[Ended]]) -> Numbers:
    """Of several runs of one load together."""
    answered = [one for run in runs for one in run if not one.reason]
    spans = sum(max(one.ended for one in run) - min(one.sent for one in run) for run in runs)
    levels = defaultdict(list)
    for one in answered:
        levels[one.level].append((one.ended - one.sent) / MS)
    latencies = sorted((one.ended - one.sent) / MS for one in answered)
    refused = 1 - len(answered) / sum(map(len, runs))
    halves = {level: percentile(sorted(found), HALF) for level, found in levels.items()}
    return Numbers(
        len(answered) / spans * 1e9, percentile(latencies, HALF), percentile(latencies, LAST), refused, halves
    )


@dataclass(frozen=True)
class Compared:
    name: str
    real: Numbers
    simulated: Numbers
    lost: float

    @property
    def misses(self) -> list[str]:
        real, simulated = self.real, self.simulated
        pairs = [
            ("rate", real.rate, simulated.rate, RATE_BAR),
            ("P50", real.p50, simulated.p50, P50_BAR),
            ("P99", real.p99, simulated.p99, P99_BAR),
        ]
        pairs += [(f"P50 {i}", real.level_p50[i], simulated.level_p50[i], P50_BAR) for i in real.level_p50]
        found = [f"{what}: {is_} simulated {was}" for what, is_, was, bar in pairs if abs(was / is_ - 1) > bar]
        return found + ["refused"] * (abs(real.refused - simulated.refused) > RATE_BAR)

    def __str__(self) -> str:
        return f"{self.name:24} real {self.real}   simulated {self.simulated}   lost {self.lost:.2f}"


def compare(
    name: str, batching: Batching, answers: Sequence[Answer], cost: Callable[[Sequence[Arrived]], float], race: Race
) -> Compared:
    """The load of `answers` simulated, from the moments they were sent at."""
    begin = min(answer.sent for answer in answers)
    arrivals = [Arrived(one.sent - begin, one.level, one.size) for one in sorted(answers, key=lambda one: one.sent)]
    runs = []
    for seed in range(SEEDS):
        ends = simulate(batching, arrivals, cost, Race(race.lost, race.late, seed))
        runs.append([Ended(request.level, request.at, moment, reason) for request, moment, reason in ends])
    seen = [Ended(one.level, one.sent, one.ended, one.reason) for one in answers]
    return Compared(name, numbers([seen]), numbers(runs), race.lost)
