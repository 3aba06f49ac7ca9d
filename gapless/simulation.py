"""Declared traffic through the simulator, and its outcome in the words of a load test: summaries, verdicts, a report.

Wires `loadtest` and `decode.simulator`; must not know where a law comes from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, overload

from config_gen.spec import LlmModel
from decode.config import EngineConfig
from decode.executors.cost_model import Law
from decode.simulator import GAP, Outcome, TierRecord, Timed, simulate
from decode.types import Request, SamplingParams
from loadtest import report, verdict
from loadtest.arrivals import Arrival, arrivals
from loadtest.run import LoadtestError


class Counted(Sequence[float]):
    """Ascending values, each with how often it stands there: a sequence that is as long as their sum."""

    def __init__(self, counts: Mapping[float, int], unit: float = 1.0) -> None:
        self._values = sorted(counts)
        self._ends = list(accumulate(counts[value] for value in self._values))
        self._unit = unit

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, at: int) -> float: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[float]: ...
    def __getitem__(self, at: int | slice) -> float | Sequence[float]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        return self._values[bisect_right(self._ends, at % len(self))] * self._unit


def requests(drawn: Iterable[Arrival], tiers: Sequence[str]) -> Iterator[Timed]:
    """Token ids for arrivals: a tier's system prompt is the same ids every time, a request's own text starts with an id
    that nobody else has, so that a prefix cache is hit where a shared prefix is meant and nowhere else."""
    ranks = {tier: at + 1 for at, tier in enumerate(tiers)}
    for at, arrival in enumerate(drawn):
        rank = ranks[arrival.tier]
        prompt = (rank,) * arrival.shared + (len(tiers) + 1 + at,) + (0,) * (arrival.own - 1)
        name = f"{arrival.tier}-{arrival.number}"
        yield arrival.at, Request(name, prompt, _sampling(arrival.output), arrival.tier)


@cache
def _sampling(output: int) -> SamplingParams:
    return SamplingParams(max_tokens=output, temperature=0, ignore_eos=True, seed=0)


@dataclass(frozen=True)
class Simulated:
    """A report and what only a simulation knows."""

    report: report.Report
    outcome: Outcome

    def lines(self) -> list[str]:
        """The machine over the whole run."""
        seen = self.outcome
        share = seen.busy / max(1, seen.span)
        return [
            f"Machine: busy {share:.0%} of {seen.span / 1e9:.1f} s, {seen.steps} steps of {seen.running:.1f} sequences "
            f"on average; pages {seen.pages:.0%} in use on average, {seen.pages_peak:.0%} at most; "
            f"{seen.preemptions} preemptions."
        ]

    def as_json(self) -> dict[str, Any]:
        seen = self.outcome
        told = report.as_json(self.report)
        for tier, record in seen.tiers.items():
            if tier in told["classes"]:
                told["classes"][tier] |= {
                    "prompt_tokens": record.prompt_tokens,
                    "cached_tokens": record.cached_tokens,
                    "output_tokens": record.output_tokens,
                    "preemptions": record.preemptions,
                }
        machine = {
            "span_s": seen.span / 1e9,
            "busy": seen.busy / max(1, seen.span),
            "steps": seen.steps,
            "running": seen.running,
            "pages": seen.pages,
            "pages_peak": seen.pages_peak,
            "preemptions": seen.preemptions,
        }
        return told | {"machine": machine}


def run(
    name: str, model: LlmModel, config: EngineConfig, law: Law, duration: int, scale: float, seed: int, notes: list[str]
) -> Simulated:
    """Simulate `duration` ns of the traffic of `model` and judge it. Raises LoadtestError when nothing would arrive."""
    drawn = arrivals(model.traffic, duration, scale, seed, config.max_model_len)
    outcome = simulate(config, law, requests(drawn, [tier.name for tier in config.tiers]), duration)
    if not any(record.sent for record in outcome.tiers.values()):
        raise LoadtestError(
            f"--duration: no request falls into {duration / 1e9:g} s at these rates; load longer or faster"
        )
    classes = [summarize(tier, outcome.tiers[tier], duration) for tier in model.traffic]
    verdicts = verdict.judge(classes, model.targets, model.traffic, None)
    return Simulated(report.Report(name, duration, seed, scale, None, classes, verdicts, notes), outcome)


def summarize(tier: str, record: TierRecord, duration: int) -> verdict.ClassSummary:
    """The same numbers as of a load test's samples; gaps between tokens are exact to a microsecond."""
    seconds = duration / 1e9
    return verdict.ClassSummary(
        tier=tier,
        sent=record.sent,
        ok=record.sent - record.rejected - record.failed,
        rejected=record.rejected,
        failed=record.failed,
        offered=record.sent / seconds,
        achieved=record.in_time / seconds,
        output_rate=record.tokens_in_time / seconds,
        latencies={
            "ttft": verdict.Latency(sorted(record.ttft)),
            "itl": verdict.Latency(Counted(record.gaps, GAP)),
            "e2e": verdict.Latency(sorted(record.e2e)),
        },
        errors=dict(record.errors),
    )
