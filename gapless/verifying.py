"""One round of `gapless verify`: the planned repository served, loaded as declared, and laid beside what was predicted.

What the server itself counted becomes corrections for the next plan. Must not know how plans are made.
"""

from __future__ import annotations

import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Any

import tritonclient.grpc as triton

from config_gen.facts import Correction
from config_gen.plan import Plan
from config_gen.simulation.serving import FRONT, WAKING
from config_gen.sla.spec import LlmModel, Spec
from gapless.child import launched
from gapless.loads import Load, reported, send
from loadtest.report import Report

LOG = Path("out/verify/server.log")
P99 = Fraction(99, 100)
LEAST, MOST = 0.25, 4.0  # that one round may correct a model's times by


@dataclass(frozen=True, slots=True)
class Counted:
    """What the server counted of one model: sums in ns and how many they are of.

    `requests` from arrival to answer; `executions` of batches, `gaps` between tokens; `firsts` to the first token.
    """

    requests: tuple[float, int] = (0.0, 0)
    executions: tuple[float, int] = (0.0, 0)
    gaps: tuple[float, int] = (0.0, 0)
    firsts: tuple[float, int] = (0.0, 0)

    def since(self, before: Counted) -> Counted:
        """Without what was counted before."""
        pairs = {
            name: (now[0] - then[0], now[1] - then[1])
            for name in self.__slots__
            for now, then in [(getattr(self, name), getattr(before, name))]
        }
        return Counted(**pairs)


@dataclass(frozen=True)
class Line:
    """One metric of one tier: predicted and measured, in ns. `target` None: nothing is promised of it."""

    model: str
    tier: str
    metric: str
    target: int | None
    q: Fraction
    predicted: float
    measured: float | None
    predicted_p99: float
    measured_p99: float | None
    ruling: str

    @property
    def off(self) -> float | None:
        """Predicted P99 over measured P99, less 1."""
        return self.predicted_p99 / self.measured_p99 - 1 if self.measured_p99 else None


@dataclass(frozen=True)
class Round:
    """A plan, what it got, and what the server counted meanwhile."""

    plan: Plan
    report: Report
    lines: Sequence[Line]
    counted: Mapping[str, Counted]

    @property
    def held(self) -> bool:
        return self.report.held


def measure(plan: Plan, spec: Spec, load: Load, repository: Path) -> Round:
    """Serve and load the repository, which holds the plan. Raises ChildError or LoadtestError."""
    with launched(repository, [model.name for model in plan.models], {}, LOG) as ports:
        before = count(spec, ports)
        taken = send(load, f"127.0.0.1:{ports['grpc_port']}")
        after = count(spec, ports)
    report = reported(load, taken)
    counted = {name: found.since(before[name]) for name, found in after.items()}
    return Round(plan, report, compare(plan, report), counted)


def compare(plan: Plan, report: Report) -> list[Line]:
    """A line for each metric of each tier that was sent anything, promised or not."""
    promised = {(found.model, found.tier, found.metric): found for found in plan.predictions}
    expected = {(found.model, found.tier, found.metric): found for found in plan.expected}
    lines = []
    for model in report.models:
        rulings = {(verdict.tier, verdict.metric): verdict.ruling for verdict in model.verdicts}
        for summary in model.classes:
            for metric, latency in summary.latencies.items():
                key = (model.name, summary.tier, metric)
                if key not in expected or not latency.samples:
                    continue
                promise = promised.get(key)
                q = promise.q if promise else P99
                lines.append(
                    Line(
                        *key,
                        promise.target if promise else None,
                        q,
                        promise.predicted if promise else expected[key].p99,
                        latency.at(q),
                        expected[key].p99,
                        latency.at(P99),
                        rulings.get((summary.tier, metric), ""),
                    )
                )
    return lines


def count(spec: Spec, ports: Mapping[str, int]) -> dict[str, Counted]:
    """What the server has counted so far of every model of the file."""
    client = triton.InferenceServerClient(f"127.0.0.1:{ports['grpc_port']}")
    page = _page(ports["metrics_port"])
    try:
        return {
            name: _of_llm(page, name) if isinstance(model, LlmModel) else _of_batches(client, name)
            for name, model in spec.models.items()
        }
    finally:
        client.close()


def _of_batches(client: Any, name: str) -> Counted:
    [found] = client.get_inference_statistics(name).model_stats
    spent = runs = 0
    for batch in found.batch_stats:
        runs += batch.compute_infer.count
        spent += batch.compute_infer.ns + batch.compute_input.ns + batch.compute_output.ns
    served = found.inference_stats.success
    return Counted(requests=(served.ns, served.count), executions=(spent, runs))


def _of_llm(page: Mapping[tuple[str, str], float], name: str) -> Counted:
    def sums(metric: str) -> tuple[float, int]:
        return page[f"{metric}_sum", name] * 1e9, int(page[f"{metric}_count", name])

    return Counted(sums("gapless_e2e_seconds"), gaps=sums("gapless_itl_seconds"), firsts=sums("gapless_ttft_seconds"))


def _page(port: int) -> Mapping[tuple[str, str], float]:
    """Values of a metrics page, summed over all labels but the model."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[tuple[str, str], float] = defaultdict(float)
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        name, _, labels = series.partition("{")
        for label in labels.rstrip("}").split(","):
            if label.startswith('model="'):
                found[name, label[7:-1]] += float(value)
    return found


def corrected(done: Round, old: Mapping[str, Correction]) -> dict[str, Correction]:
    """Corrections with which the same plan would have predicted the mean times that were measured."""
    return {model.name: _correct(done, model.name, old.get(model.name, Correction())) for model in done.plan.models}


def _correct(done: Round, name: str, old: Correction) -> Correction:
    counted = done.counted[name]
    simulated: float | None
    if counted.executions[1]:
        seen, simulated = counted.executions, done.plan.executing.get(name)
        client, server = _mean(done, name, "e2e"), counted.requests
    elif counted.gaps[1]:
        seen, simulated = counted.gaps, _expected_gap(done, name)
        client, server = _mean(done, name, "ttft"), counted.firsts
    else:
        return old
    factor = old.factor
    if simulated:
        factor *= min(MOST, max(LEAST, seen[0] / seen[1] / simulated))
    around = (
        max(0, int(client - server[0] / server[1]) - FRONT - WAKING) if client is not None and server[1] else old.around
    )
    return replace(old, factor=factor, around=around)


def _mean(done: Round, name: str, metric: str) -> float | None:
    """Mean ns that clients measured, of requests that were answered."""
    [model] = [model for model in done.report.models if model.name == name]
    values = [
        value for summary in model.classes for value in summary.latencies[metric].samples if value != float("inf")
    ]
    return sum(values) / len(values) if values else None


def _expected_gap(done: Round, name: str) -> float | None:
    """Mean ns between two tokens, over the tiers as they sent."""
    [model] = [model for model in done.report.models if model.name == name]
    weights = {summary.tier: len(summary.latencies["itl"].samples) for summary in model.classes}
    means = {
        found.tier: found.mean
        for found in done.plan.expected
        if found.model == name and found.metric == "itl" and isfinite(found.mean)
    }
    total = sum(weights[tier] for tier in means if tier in weights)
    return sum(means[tier] * weights[tier] for tier in means if tier in weights) / total if total else None
