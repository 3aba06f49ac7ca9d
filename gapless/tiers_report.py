"""What `bench tiers` says: a table of each policy and tier, and the bars with what was reached.

Must not know servers or how runs were made.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from rich.table import Table

from gapless.bars import Bar, line, ratio

OVERLOADED = 0.1  # of the output asked for that an overload leaves undone when it ends

Round = dict[str, dict[str, Any]]  # by policy, what `tiers.under` found


def bars(scenario: str, rounds: Sequence[Round], first: str, last: str) -> list[Bar]:
    """The claims that the policies that were run allow to judge."""
    ran = set(rounds[0])
    found = []

    def against(name: str, other: str, read: Callable[[dict[str, Any]], float | None], *claim: Any) -> None:
        if {"weighted", other} <= ran:
            values = [ratio(read(r["weighted"]), read(r[other])) for r in rounds]
            found.append(Bar(f"{name}, weighted over {other}", values, *claim))

    if scenario == "mixed":
        against(f"TTFT P99 of {first}", "fcfs", lambda r: _latency(r, first, "ttft"), "<=", 0.35)
        against(f"ITL P99 of {first}", "fcfs", lambda r: _latency(r, first, "itl"), "<=", 0.6)
        against("output tokens/s of all tiers", "fcfs", lambda r: float(r["output_tokens_per_s"]), ">=", 0.95)
    if scenario == "overload":
        against(f"output tokens/s of {last}", "priority", lambda r: _rate(r, last), ">=", 1.5)
    if scenario == "promise" and "weighted" in ran:
        for metric, what in (("ttft", "requests"), ("itl", "gaps"), ("e2e", "requests")):
            key = f"{metric}_over_target"
            if key in rounds[0]["weighted"]["tiers"][first]:
                shares = [r["weighted"]["tiers"][first][key] for r in rounds]
                found.append(Bar(f"share of {first} {what} over the {metric.upper()} target", shares, "<", 0.01))
    return found


def _latency(run: dict[str, Any], tier: str, metric: str) -> float | None:
    value: float | None = run["tiers"][tier][f"{metric}_ms"]["p99"]
    return value


def _rate(run: dict[str, Any], tier: str) -> float:
    return float(run["tiers"][tier]["output_tokens_per_s"])


def table(rounds: Sequence[Round]) -> Table:
    """Medians over the rounds, a row for each policy and tier; latencies P50/P99, rates while the load lasted."""
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("policy", "tier", "sent", "lost", "TTFT ms", "ITL ms", "tokens/s", "service/s"):
        shown.add_column(name, justify="left" if name in ("policy", "tier") else "right")
    for policy in rounds[0]:
        runs = [r[policy] for r in rounds]
        for tier in runs[0]["tiers"]:
            of = [run["tiers"][tier] for run in runs]
            sent, refused, failed = (f"{_median(t[key] for t in of):.0f}" for key in ("sent", "rejected", "failed"))
            latencies = [_spread([t[f"{metric}_ms"] for t in of]) for metric in ("ttft", "itl")]
            rate = _median(t["output_tokens_per_s"] for t in of)
            service = _median(run["service_tokens_per_s"].get(tier, 0.0) for run in runs)
            shown.add_row(policy, tier, sent, f"{refused}+{failed}", *latencies, f"{rate:.1f}", f"{service:.0f}")
        total = _median(run["output_tokens_per_s"] for run in runs)
        service = _median(sum(run["service_tokens_per_s"].values()) for run in runs)
        shown.add_row(policy, "all", "", "", "", "", f"{total:.1f}", f"{service:.0f}")
    return shown


def _median(values: Any) -> float:
    return statistics.median(float("inf") if value is None else value for value in values)


def _spread(found: list[dict[str, float | None]]) -> str:
    """P50/P99; ∞ where the request of that rank never got there."""
    if not found[0]:
        return "-"
    texts = [_median(f[q] for f in found) for q in ("p50", "p99")]
    return "/".join("∞" if value == float("inf") else f"{value:.0f}" for value in texts)


def predictions(rounds: Sequence[Round]) -> Table:
    """How far the simulator was off in each run, with a law of the other runs' steps or of its own: medians."""
    columns = ("TTFT P50", "TTFT P99", "E2E P50", "E2E P99", "tokens/s", "step P50/P95")
    shown = Table(title="Simulated over measured", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("policy", "law of", "tier", *columns):
        shown.add_column(name, justify="left" if name in ("policy", "law of", "tier") else "right", no_wrap=True)
    for policy, law in product(rounds[0], ("others", "own")):
        runs = [r[policy]["simulated"][law] for r in rounds]
        for tier in runs[0]["errors"]:
            of = [run["errors"][tier] for run in runs]
            cells = [_share([e.get(name.lower()) for e in of]) for name in columns[:-1]]
            steps = [f"{_median(run['steps'][q] for run in runs):.1%}" for q in ("median", "p95")]
            shown.add_row(policy, law, tier, *cells, "/".join(steps) if tier == "all" else "")
    return shown


def _share(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):+.1%}" if known else "-"


def lines(found: Sequence[Bar], rounds: Sequence[Round]) -> list[str]:
    """What the numbers depend on, then one line a bar: name, value, each round, limit, ruling."""
    runs = [(policy, run) for r in rounds for policy, run in r.items()]
    evicted = ", ".join(f"{policy} {run['server'].get('gapless_preemptions_total', 0):.0f}" for policy, run in runs)
    undone = ", ".join(f"{policy} {run['undone']:.0%}" for policy, run in runs)
    return [
        "Latencies P50/P99 in ms, of requests from their intended time; tokens of output and of service (output and",
        "prompts not cached) per second while the load lasted; lost: requests refused + failed.",
        f"Preemptions: {evicted}. Of the output asked for, not there when the load ended: {undone}.",
        *(f"No verdict on {policy}: {run['client']['lagged']}" for policy, run in runs if run["client"]["lagged"]),
        *map(line, found),
    ]


def quiet(scenario: str, rounds: Sequence[Round]) -> str | None:
    """Why this was no overload, or None: other work on the machine ended after its capacity was measured."""
    run = rounds[0].get("fcfs") or next(iter(rounds[0].values()))
    if scenario == "promise" or run["undone"] >= OVERLOADED:
        return None
    return (
        f"No verdict: of the output asked for only {run['undone']:.0%} was not there when the load ended, under "
        f"{OVERLOADED:.0%}, so this was no overload; measure on a machine without other work"
    )
