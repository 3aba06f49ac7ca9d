"""How long an engine takes for batches of several sizes, beside others in turn, and the batch that is worth it.

Must not know sources, precision or the SLA file.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from builders.progress import Progress, quiet
from engines.session import Arrays, Session

WARM_RUNS = 3
FEWEST_RUNS, MOST_RUNS = 9, 100
SECONDS = 0.6  # of each engine at each shape
MARGIN = 1.1  # added items must be served that much faster than those before them: less is noise


@dataclass(frozen=True, slots=True)
class Latency:
    """One engine at one shape. Times in ms; `spread` is the distance between quartiles; `rate` in items/s."""

    batch: int
    length: int  # tokens of each text; 0 for what has none
    p50: float
    p99: float
    spread: float
    rate: float
    runs: int


def measure(
    sessions: Mapping[str, Session],
    shapes: Sequence[tuple[int, int]],
    inputs: Callable[[int, int], Arrays],
    tell: Progress = quiet,
    seconds: float = SECONDS,
    fewest: int = FEWEST_RUNS,
) -> dict[str, list[Latency]]:
    """Every session at every shape (batch, length), run in turn so that all meet the same machine.

    Each runs for `seconds` at each shape, at least `fewest` times.
    """
    found: dict[str, list[Latency]] = {name: [] for name in sessions}
    for at, (batch, length) in enumerate(shapes):
        tell("measuring latency", at, len(shapes))
        arrays = inputs(batch, length)
        times: dict[str, list[float]] = {name: [] for name in sessions}
        for session in sessions.values():
            warm = time.perf_counter() + seconds
            for run in range(WARM_RUNS):
                if run == 0 or time.perf_counter() < warm:
                    session.run(arrays)
        until = time.perf_counter() + seconds * len(sessions)
        while min(map(len, times.values())) < fewest or (
            time.perf_counter() < until and max(map(len, times.values())) < MOST_RUNS
        ):
            for name, session in sessions.items():
                began = time.perf_counter()
                session.run(arrays)
                times[name].append((time.perf_counter() - began) * 1e3)
        for name, taken in times.items():
            found[name].append(_latency(batch, length, taken))
    return found


def _latency(batch: int, length: int, taken: Sequence[float]) -> Latency:
    cuts = statistics.quantiles(taken, n=100, method="inclusive")
    middle = statistics.median(taken)
    return Latency(batch, length, middle, cuts[98], cuts[74] - cuts[24], batch / middle * 1e3, len(taken))


def knee(latencies: Sequence[tuple[int, float]]) -> int:
    """The largest batch worth its latency, of (batch, latency) pairs in ascending order of batch.

    From one batch to the next, the added items take the added time. As long as they are served faster than the items
    before them, waiting for them serves everyone; from where they are not, a larger batch only makes them wait.
    """
    best, best_time = latencies[0]
    for batch, taken in latencies[1:]:
        added = taken - best_time
        if added > 0 and (batch - best) / added < MARGIN * best / best_time:
            break
        best, best_time = batch, taken
    return best


def batches(largest: int) -> list[int]:
    """1, 2, 4, … and the largest."""
    return [*(2**at for at in range(largest.bit_length()) if 2**at < largest), largest]


def as_json(rows: Sequence[Latency]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]
