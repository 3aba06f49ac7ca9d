"""Alerts of a model that answers in one piece, from what Triton publishes of it: there, tiers are not told apart.

Must not know who reads the alerts.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from config_gen.sla.quantity import show_duration, show_percentile
from config_gen.sla.spec import OnnxModel, Targets, Tier
from observe import triton_metrics
from observe.alert import MINUTE, WINDOW, Alert, number, series, span
from observe.amounts import listed

QUANTILES = tuple(map(Fraction, ("0.5", "0.9", "0.95", "0.99", "0.999")))  # that Triton publishes unless told otherwise


def unary_alerts(name: str, model: OnnxModel, tiers: dict[str, Tier], pace: float) -> Iterator[Alert]:
    """Those that its targets and its tiers' bounds give reason for. All durations are multiplied by `pace`."""
    if model.targets:
        yield _late(name, model, pace)
    bounds = [tiers[tier] for tier in {**model.traffic, **model.targets}]
    timeouts = [tier.queue_timeout for tier in bounds if tier.queue_timeout is not None]
    if timeouts:
        yield _timed_out(name, min(timeouts), pace)
    if bounds and all(tier.max_queue is not None for tier in bounds):
        yield _queue_full(name, sum(tier.max_queue or 0 for tier in bounds), pace)
    yield _stuck(name, pace)
    yield _failed(name, pace)


def quantile(at: Fraction) -> Fraction:
    """The percentile that Triton publishes next to `at`, not above it where there is one: over a limit, so is `at`."""
    return max((published for published in QUANTILES if published <= at), default=QUANTILES[0])


def bound(targets: dict[str, Targets]) -> tuple[float, Fraction]:
    """Seconds and percentile that all requests together keep if every tier keeps its own: the loosest of each."""
    return max(promised.e2e or 0 for promised in targets.values()) / 1e9, min(
        promised.at for promised in targets.values()
    )


def _late(name: str, model: OnnxModel, pace: float) -> Alert:
    limit, at = bound(model.targets)
    shown, published = show_duration(limit * 1e9), quantile(at)
    promises = [
        f"{tier} {show_percentile(promised.at)} ≤ {show_duration(promised.e2e or 0)}"
        for tier, promised in model.targets.items()
    ]
    others = sorted(set(model.traffic) - set(model.targets))
    blind = ""
    if others:
        blind = (
            f"Triton does not tell tiers apart: the requests of {listed(others)}, promised nothing, are among them. "
        )
    elif len(model.targets) > 1:
        blind = "Triton does not tell tiers apart: one broke its promise, and a stricter one can without this alert. "
    asked = "" if published == at else f" (the nearest to {show_percentile(at)} that Triton publishes)"
    rates = ", ".join(f"{tier} {traffic.rate:g}/s" for tier, traffic in model.traffic.items()) or "none"
    summary = series(triton_metrics.SUMMARY, model=name, quantile=number(float(published)))
    return Alert(
        "GaplessE2eOverTarget",
        f"max by (model) ({summary}) / 1e6 > {number(limit)}",
        2 * MINUTE * pace,
        "warning" if others else "critical",
        f"{name}: E2E {show_percentile(published)} is over {shown}",
        f"{show_percentile(published)}{asked} of the whole request in the server over its last minute was "
        f"{{{{ $value | humanizeDuration }}}}. Promised: {'; '.join(promises)}. {blind}If "
        f"{triton_metrics.spent('queue')} grows fastest, more comes than was planned for (declared: "
        f"{rates}): correct the file and run gapless plan; else the engine computes slower than profiled. Needs "
        "--metrics-config=summary_latencies=true, which gapless generate writes.",
        {"model": name},
    )


def _timed_out(name: str, shortest: int, pace: float) -> Alert:
    window = span(WINDOW * pace)
    wanted = series(triton_metrics.FAILED, model=name, reason="REJECTED")
    return Alert(
        "GaplessRefusals",
        f"sum by (model) (increase({wanted}[{window}])) > 0",
        MINUTE * pace,
        "warning",
        f"{name}: requests waited too long and were refused",
        f"{{{{ $value | humanize }}}} requests in {window}; the shortest queue_timeout is {show_duration(shortest)}. "
        "More comes than is served: let clients try again later, or plan for the rate that really comes. Triton "
        "does not count those that a full queue turns away.",
        {"model": name},
    )


def _queue_full(name: str, places: int, pace: float) -> Alert:
    return Alert(
        "GaplessQueueFull",
        f"{series(triton_metrics.PENDING, model=name)} >= {places}",
        MINUTE * pace,
        "warning",
        f"{name}: every queue is full",
        f"{{{{ $value }}}} requests wait and the tiers have {places} places (max_queue) together, so that others "
        "are turned away with 503, which Triton does not count. Plan for the rate that really comes, or raise "
        "max_queue if the wait is still worth it.",
        {"model": name},
    )


def _stuck(name: str, pace: float) -> Alert:
    pending, done = (series(metric, model=name) for metric in (triton_metrics.PENDING, triton_metrics.RUNS))
    window = span(MINUTE * pace)
    return Alert(
        "GaplessStarving",
        f"min_over_time({pending}[{window}]) > 0 and increase({done}[{window}]) == 0",
        MINUTE * pace,
        "critical",
        f"{name}: requests wait and nothing is computed",
        "At least {{ $value }} waited all the time, and no batch ended. The model's process hangs, or its instances "
        "are held by the rate limiter: read the launcher's output and the server's log, keep both, restart.",
        {"model": name},
    )


def _failed(name: str, pace: float) -> Alert:
    window = span(WINDOW * pace)
    wanted = series(triton_metrics.FAILED, model=name, reason="~BACKEND|OTHER")
    return Alert(
        "GaplessRequestFailed",
        f"sum by (model, instance) (increase({wanted}[{window}])) > 0",
        0.0,
        "warning",
        f"{name}: requests failed",
        f"{{{{ $value | humanize }}}} in {window}: items that the model cannot read, or memory that ran out. The "
        "server's log has the message: keep it. If it was memory: fewer instances or a smaller max_batch_size.",
        {"model": name},
    )
