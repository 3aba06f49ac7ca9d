"""Rows of the tables of a report: what is written in each cell and, of numbers, the number itself.

Must not know HTML, nor how a run is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite

from config_gen.percentiles import percentile
from config_gen.sla.quantity import show_duration, show_percentile
from loadtest import error_kinds
from loadtest.intervals import Interval
from loadtest.recording import Recording
from loadtest.report import WORD, Report
from loadtest.samples import Sample
from loadtest.verdict import METRICS, SHOWN, ClassSummary, Ruling

NOTHING = "–"
P50, P95, ALL = Fraction(1, 2), Fraction(95, 100), Fraction(1)


@dataclass(frozen=True)
class Cell:
    """`value` in seconds, per second or as a count; None where there is no finite one. `within`: its interval."""

    text: str
    value: float | None = None
    within: str = ""


@dataclass(frozen=True)
class Promise:
    """A target, and what became of it."""

    model: str
    tier: str
    promise: str
    measured: Cell
    ruling: Ruling
    word: str
    reason: str


@dataclass(frozen=True)
class Row:
    """Of a model's tier, or of a metric of it."""

    model: str
    tier: str
    what: str
    cells: Sequence[Cell]


def promises(report: Report) -> Iterator[Promise]:
    """In the order of the SLA file. The reason that all of a run has no verdict is not told here."""
    for model in report.models:
        latencies = {one.tier: one.latencies for one in model.classes}
        for one in model.verdicts:
            found = latencies.get(one.tier, {}).get(one.metric)
            measured = _duration(found.at(one.q) if found else None, one.interval)
            promise = f"{one.metric.upper()} {show_percentile(one.q)} ≤ {show_duration(one.target)}"
            reason = one.reason if report.void is None else ""
            yield Promise(model.name, one.tier, promise, measured, one.ruling, WORD[one.ruling], reason)


COUNTS = ("sent", "ok", "rejected", "failed", "offered/s", "achieved/s", "goodput/s", "output tokens/s")


def counts(report: Report) -> Iterator[Row]:
    """What became of the requests of each tier, under COUNTS."""
    for model in report.models:
        for one in model.classes:
            whole = [Cell(f"{count:,}", count) for count in (one.sent, one.ok, one.rejected, one.failed)]
            rates = [one.offered, one.achieved, one.goodput, one.output_rate if "itl" in one.latencies else None]
            yield Row(model.name, one.tier, "", [*whole, *map(_rate, rates)])


PERCENTILES = ("samples", *map(show_percentile, SHOWN))


def percentiles(report: Report) -> Iterator[Row]:
    """Of each metric of each tier, under PERCENTILES."""
    for model in report.models:
        for one in model.classes:
            for metric in METRICS:
                if metric in one.latencies:
                    yield Row(model.name, one.tier, metric.upper(), list(_percentiles(one, metric)))


def _percentiles(summary: ClassSummary, metric: str) -> Iterator[Cell]:
    latency = summary.latencies[metric]
    yield Cell(f"{len(latency.samples):,}", len(latency.samples))
    for q in SHOWN:
        yield _duration(latency.at(q), latency.interval(q))


_THREE = ("P50", "P95", "max")
LENGTHS = (*(f"prompt {it}" for it in _THREE), "cached", *(f"output {it}" for it in _THREE))


def lengths(taken: Recording) -> Iterator[Row]:
    """Tokens of the prompts that were answered, the share that the cache had, and tokens asked for, under LENGTHS."""
    for (model, tier), sent in taken.sent.items():
        samples = taken.of(model, tier)
        if sent.tokens and samples:
            answered = [one for one in samples if one.outcome == "ok"]
            prompts, asked = ([one.prompt_tokens for one in answered], [one.asked for one in samples])
            yield Row(model, tier, "", [*_spread(prompts), _cached(answered), *_spread(asked)])


def errors(report: Report) -> Iterator[Row]:
    """How often each kind of error came, and its words; of a tier's many the most frequent, then all others."""
    for model in report.models:
        for one in model.classes:
            shown = error_kinds.most(one.errors)
            if told := error_kinds.more(one.errors):
                shown.append((told, sum(one.errors.values()) - sum(count for _, count in shown)))
            for error, count in shown:
                yield Row(model.name, one.tier, error, [Cell(f"{count:,}", count)])


def _spread(counts: Sequence[int]) -> list[Cell]:
    if not counts:
        return [Cell(NOTHING)] * len(_THREE)
    found = (percentile(sorted(counts), q) for q in (P50, P95, ALL))
    return [Cell(f"{count:,}", count) for count in found]


def _cached(samples: Sequence[Sample]) -> Cell:
    total = sum(one.prompt_tokens for one in samples)
    if not total:
        return Cell(NOTHING)
    share = sum(one.cached_tokens for one in samples) / total
    return Cell(f"{share:.0%}", share)


def _duration(ns: float | None, within: Interval | None) -> Cell:
    if ns is None:
        return Cell(NOTHING)
    told = "" if within is None or within.low == inf else str(within)  # what is surely infinite needs no bounds
    return Cell(show_duration(ns), ns / 1e9 if isfinite(ns) else None, told)


def _rate(rate: float | None) -> Cell:
    return Cell(NOTHING) if rate is None else Cell(f"{rate:,.2f}", rate)
