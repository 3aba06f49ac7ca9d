"""What `gapless rounds` says: a row a round, bars on the ratios between rounds, all of it as JSON.

Must not know servers or how rounds were made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from fractions import Fraction
from math import isfinite
from typing import Any

from rich.table import Table

from config_gen.percentiles import percentile
from config_gen.sla.spec import LlmModel, Spec
from gapless.bars import Bar, ratio
from gapless.rounds import Loaded, Measured
from loadtest.verdict import Latency
from observe.doctor import diagnosis
from observe.doctor.gather import DoctorError
from observe.use import Use

MORE = 3.75  # times the requests/s of round 1 that round 3 serves at saturation, as was told: 30 over 8
SOONER = 0.29  # of round 1's P99 that interactive has in round 4, as was told: 0.8 s over 2.8 s
UNHARMED = 0.95  # of round 3's background throughput that round 4 keeps
P50, P99 = Fraction(50, 100), Fraction(99, 100)


def row(measured: Measured, model: LlmModel, spec: Spec) -> dict[str, Any]:
    """The numbers of a round: requests and tokens per second, ms, shares of 1, bytes; None is infinite or unknown."""
    flood, usual = measured.flood, measured.usual
    classes = {one.tier: one for one in usual.classes(model)}
    first, last = next(iter(classes)), list(classes)[-1]
    everybody = sorted(value for one in classes.values() for value in one.latencies["e2e"].samples)
    background = usual.ended(last), usual.tokens(last)
    return {
        "round": measured.round.name,
        "options": dict(measured.options),
        "flood": {
            "served_per_s": flood.ended(),
            "output_tokens_per_s": flood.tokens(),
            "served_per_s_by_tier": {tier: flood.ended(tier) for tier in classes},
            "use": _use(Use.of(flood.seen)),
            "doctor": _diagnosis(flood, spec),
            "samples": str(flood.folder),
            "lagged": flood.lagged(model),
        },
        "usual": {
            "sent": len(usual.samples),
            "lost": sum(one.rejected + one.failed for one in classes.values()),
            "e2e_ms": {"p50": _ms(percentile(everybody, P50)), "p99": _ms(percentile(everybody, P99))},
            "first": {
                "tier": first,
                **{f"{metric}_ms": _percentiles(classes[first].latencies[metric]) for metric in ("ttft", "itl", "e2e")},
            },
            "background": {"tier": last, "served_per_s": background[0], "output_tokens_per_s": background[1]},
            "use": _use(Use.of(usual.seen)),
            "doctor": _diagnosis(usual, spec),
            "samples": str(usual.folder),
            "lagged": usual.lagged(model),
        },
        "told": {"served": measured.round.served, "p99": measured.round.p99, "other": measured.round.other},
    }


def _percentiles(latency: Latency) -> dict[str, float | None]:
    return {name: _ms(latency.at(q)) for name, q in (("p50", P50), ("p99", P99))}


def _ms(ns: float | None) -> float | None:
    return ns / 1e6 if ns is not None and isfinite(ns) else None


def _use(use: Use) -> dict[str, float | None]:
    return {name: value if isfinite(value) else None for name, value in asdict(use).items()}


def _diagnosis(loaded: Loaded, spec: Spec) -> str:
    """What is to be mended first."""
    try:
        told = diagnosis.diagnose(loaded.seen, spec)
    except DoctorError as error:
        return str(error)
    return "healthy" if told.healthy else told.findings[0].title


def bars(runs: Sequence[Sequence[dict[str, Any]]]) -> list[Bar]:
    """The three claims of the report, on the rows of every run."""
    more = [ratio(run[2]["flood"]["served_per_s"], run[0]["flood"]["served_per_s"]) for run in runs]
    sooner = [ratio(_p99(run[3]), _p99(run[0])) for run in runs]
    kept = [ratio(_background(run[3]), _background(run[2])) for run in runs]
    first = runs[0][0]["usual"]["first"]["tier"]
    return [
        Bar("requests/s served of a flood, round 3 over round 1", more, ">=", MORE),
        Bar(f"E2E P99 of {first} under the usual load, round 4 over round 1", sooner, "<=", SOONER),
        Bar("background tokens/s under the usual load, round 4 over round 3", kept, ">=", UNHARMED),
    ]


def _p99(found: dict[str, Any]) -> float | None:
    latency: float | None = found["usual"]["first"]["e2e_ms"]["p99"]
    return latency


def _background(found: dict[str, Any]) -> float:
    rate: float = found["usual"]["background"]["output_tokens_per_s"]
    return rate


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """A column a round: what was served of the flood, latencies under the usual load, what both took, what was told."""
    first = rows[0]["usual"]["first"]["tier"]
    shown = Table(box=None, padding=(0, 2, 0, 0))
    shown.add_column("")
    for number, one in enumerate(rows, 1):
        shown.add_column(f"{number}: {one['round']}", justify="right")
    lines: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("served of the flood, requests/s", lambda r: f"{r['flood']['served_per_s']:.2f}"),
        ("  output tokens/s", lambda r: f"{r['flood']['output_tokens_per_s']:.0f}"),
        ("  requests at once", lambda r: _number(r["flood"]["use"]["running"], "{:.1f}")),
        ("  prompt and output tokens a step", lambda r: _number(r["flood"]["use"]["tokens"], "{:.1f}")),
        ("  KV pages used, at most", lambda r: _number(r["flood"]["use"]["pages"], "{:.0%}")),
        ("  memory of the model", lambda r: _gib(r["flood"]["use"]["memory"])),
        ("  memory of GPUs", lambda r: _gib(r["flood"]["use"]["gpu_memory"])),
        ("  the doctor says", lambda r: r["flood"]["doctor"]),
        ("usual load: E2E P50", lambda r: _seconds(r["usual"]["e2e_ms"]["p50"])),
        ("  E2E P99", lambda r: _seconds(r["usual"]["e2e_ms"]["p99"])),
        (f"  {first}: TTFT P99", lambda r: _seconds(r["usual"]["first"]["ttft_ms"]["p99"])),
        ("    E2E P50", lambda r: _seconds(r["usual"]["first"]["e2e_ms"]["p50"])),
        ("    E2E P99", lambda r: _seconds(r["usual"]["first"]["e2e_ms"]["p99"])),
        ("  background tokens/s", lambda r: f"{r['usual']['background']['output_tokens_per_s']:.1f}"),
        ("  busy with steps", lambda r: _number(r["usual"]["use"]["busy"], "{:.0%}")),
        ("  GPUs busy", lambda r: _number(r["usual"]["use"]["gpu"], "{:.0%}")),
        ("  the doctor says", lambda r: r["usual"]["doctor"]),
        ("told: requests/s", lambda r: r["told"]["served"]),
        ("  P99", lambda r: r["told"]["p99"]),
        ("  more", lambda r: r["told"]["other"]),
    ]
    for name, cell in lines:
        cells = [cell(one) for one in rows]
        if set(cells) != {"-"}:  # of what is not there, as GPUs
            shown.add_row(name, *cells)
    return shown


def _gib(size: float | None) -> str:
    return "-" if size is None else f"{size / 2**30:.1f} GiB"


def _seconds(ms: float | None) -> str:
    return "∞" if ms is None else f"{ms / 1e3:.2f} s"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def lagged(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Why there is no verdict: a line for each load whose client lagged."""
    return [
        f"No verdict: round {number}, {load}: {reason}"
        for number, one in enumerate(rows, 1)
        for load in ("flood", "usual")
        if (reason := one[load]["lagged"]) is not None
    ]
