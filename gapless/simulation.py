"""Declared traffic through the simulator, and its outcome in the words of a load test: summaries, verdicts, a report.

Wires `loadtest` and `decode.simulator`; must not know where a law comes from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from config_gen.percentiles import Counted
from config_gen.simulation.llm_load import requests
from config_gen.sla.arrivals import Arrival, arrivals
from config_gen.sla.spec import LlmModel
from decode.config import EngineConfig
from decode.executors.cost_model import Law
from decode.outcome import GAP, Outcome, TierRecord
from decode.simulator import simulate
from loadtest import report, verdict
from loadtest.run import LoadtestError


@dataclass(frozen=True)
class Simulated:
    """A report and what only a simulation knows."""

    report: report.Report
    outcome: Outcome

    def lines(self) -> list[str]:
        """The machine over the whole run."""
        seen = self.outcome
        machine = "Machine" if seen.replicas == 1 else f"{seen.replicas} machines, requests in turn"
        return [
            f"{machine}: busy {seen.utilization:.0%} of {seen.span / 1e9:.1f} s, {seen.steps} steps of "
            f"{seen.running:.1f} sequences on average; pages {seen.pages:.0%} in use on average, "
            f"{seen.pages_peak:.0%} at most; {seen.preemptions} preemptions."
        ]

    def as_json(self) -> dict[str, Any]:
        seen = self.outcome
        told = report.as_json(self.report)
        [model] = told["models"].values()
        for tier, record in seen.tiers.items():
            if tier in model["classes"]:
                model["classes"][tier] |= {
                    "prompt_tokens": record.prompt_tokens,
                    "cached_tokens": record.cached_tokens,
                    "output_tokens": record.output_tokens,
                    "preemptions": record.preemptions,
                }
        machine = {
            "replicas": seen.replicas,
            "span_s": seen.span / 1e9,
            "busy": seen.utilization,
            "steps": seen.steps,
            "running": seen.running,
            "pages": seen.pages,
            "pages_peak": seen.pages_peak,
            "preemptions": seen.preemptions,
        }
        return told | {"machine": machine}


@dataclass(frozen=True)
class Load:
    """`duration` ns of the traffic of `model`, at `scale` times the declared rates; `chance`: see `schedule.chance`."""

    name: str
    model: LlmModel
    duration: int
    scale: float
    seed: int
    chance: str = ""


def run(
    load: Load,
    config: EngineConfig,
    law: Law,
    replicas: int = 1,
    notes: Sequence[str] = (),
    seen: Callable[[float], None] = lambda share: None,
) -> Simulated:
    """Simulate `load`, dealt in turn to so many machines alike, and judge it; `seen` hears which share is done.

    Raises LoadtestError when nothing would arrive.
    """
    model, duration = load.model, load.duration
    drawn = arrivals(model.traffic, duration, load.scale, load.seed, config.max_model_len, load.chance)
    if replicas == 1:
        outcome = _serve(config, law, _watched(drawn, duration, seen), duration)
    else:
        outcome = _serve_all(config, law, drawn, duration, replicas, seen)
    if not any(record.sent for record in outcome.tiers.values()):
        raise LoadtestError(
            f"--duration: no request falls into {duration / 1e9:g} s at these rates; load longer or faster"
        )
    classes = [summarize(tier, outcome.tiers[tier], duration) for tier in model.traffic]
    verdicts = verdict.judge(classes, model.targets, model.traffic, None)
    model_report = report.ModelReport(load.name, classes, verdicts)
    told = report.Report(duration, load.seed, load.scale, None, [model_report], notes)
    return Simulated(told, outcome)


def _watched(drawn: Iterable[Arrival], duration: int, seen: Callable[[float], None]) -> Iterator[Arrival]:
    for arrival in drawn:
        seen(arrival.at / duration)
        yield arrival


def _serve(config: EngineConfig, law: Law, drawn: Iterable[Arrival], duration: int) -> Outcome:
    return simulate(config, law, requests(drawn, [tier.name for tier in config.tiers]), duration)


def _serve_all(
    config: EngineConfig,
    law: Law,
    drawn: Iterable[Arrival],
    duration: int,
    replicas: int,
    seen: Callable[[float], None],
) -> Outcome:
    """Replicas do not disturb each other: one after the other, on all cores."""
    dealt: list[list[Arrival]] = [[] for _ in range(replicas)]
    for at, arrival in enumerate(drawn):
        dealt[at % replicas].append(arrival)
    total = Outcome({tier.name: TierRecord() for tier in config.tiers}, replicas=0)
    with ProcessPoolExecutor(min(replicas, len(os.sched_getaffinity(0)))) as pool:
        runs = [pool.submit(_serve, config, law, part, duration) for part in dealt]
        dealt.clear()
        for done, one in enumerate(runs):
            total.add(one.result())
            seen((done + 1) / replicas)
    return total


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
