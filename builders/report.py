"""What a build has to say: every precision with its size, accuracy and latency, which one was taken, and why.

Must not know how any of it was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from builders.gate import Score
from builders.latency import Latency, knee
from builders.precisions import Candidate
from engines.stamp import Stamp

WORTH = 1.3  # times the rate of fp32, or a lower precision is not worth its error


@dataclass(frozen=True, slots=True)
class Row:
    """A precision. `size` in bytes, 0 when there is no graph; `latencies` empty: not measured here."""

    precision: str
    size: int
    score: Score
    latencies: tuple[Latency, ...]
    verdict: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """What was built, or was found built already. `asked` and `precision` differ after a fallback."""

    model: str
    source: str
    out: Path
    asked: str
    precision: str
    runtime: str
    rows: tuple[Row, ...]
    knee: int | None  # of the batch sizes; None: not measured here
    seconds: float = 0.0
    up_to_date: bool = False


Measured = Mapping[str, Sequence[Latency]]  # by precision


def knee_of(rows: Sequence[Latency]) -> int:
    """The batch that is worth its median latency."""
    return knee([(row.batch, row.p50) for row in rows])


def gain(precision: str, measured: Measured) -> float:
    """Rate of `precision` over that of fp32, both at the knee of fp32, so that all are compared at one batch."""
    at = knee_of(measured["fp32"])
    rates = {name: next(row.rate for row in measured[name] if row.batch == at) for name in (precision, "fp32")}
    return rates[precision] / rates["fp32"]


def choose(passing: Sequence[str], measured: Measured) -> str:
    """The fastest that passed and is worth it; where nothing was measured, the first, which is what was asked for."""
    if not measured:
        return passing[0]
    worth = [name for name in passing if name == "fp32" or gain(name, measured) >= WORTH]
    return max(worth, key=lambda name: gain(name, measured))


def verdict(candidate: Candidate, score: Score, chosen: str, measured: Measured) -> str:
    """What became of a candidate, in a few words."""
    precision = candidate.precision
    if not score.passed:
        return f"failed the gate: {score.reason}"
    if precision == "fp32" and precision != chosen:
        return "is the reference"
    if precision not in measured:
        return "is taken; its speed is not measured here" if precision == chosen else "passed"
    rate = f": {gain(precision, measured):.2f} times fp32's rate at batch {knee_of(measured['fp32'])}"
    told = "" if precision == "fp32" else rate
    if precision == chosen:
        return f"is taken{told}"
    return f"is not worth it{told}" if gain(precision, measured) < WORTH else f"passed, slower than another{told}"


def built_from(stamp: Stamp, out: Path) -> Built:
    """The report that a stamp carries."""
    return Built(
        model=stamp.model,
        source=stamp.source,
        out=out,
        asked=stamp.gate["asked"],
        precision=stamp.precision,
        runtime=stamp.runtime,
        rows=TypeAdapter(tuple[Row, ...]).validate_python(stamp.gate["rows"]),
        knee=stamp.gate["knee"],
    )
