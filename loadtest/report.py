"""What a run says: a table per model and traffic class for people, JSON for machines. Must not judge or measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from config_gen.sla.quantity import show_duration, show_percentile
from loadtest import client_report, error_kinds
from loadtest.intervals import Interval
from loadtest.run import Client
from loadtest.verdict import METRICS, SHOWN, ClassSummary, Verdict, lag_reason

STYLE = {"kept": "green", "missed": "bold red", "none": "yellow"}
WORD = {"kept": "kept", "missed": "MISSED", "none": "no verdict"}


@dataclass(frozen=True)
class ModelReport:
    """What a run says of one of its models."""

    name: str
    classes: Sequence[ClassSummary]
    verdicts: Sequence[Verdict]

    @property
    def held(self) -> bool:
        """Every target was kept, and there was something to keep."""
        return bool(self.verdicts) and all(verdict.ruling == "kept" for verdict in self.verdicts)

    def lagged(self, client: Client | None) -> str | None:
        """Why the load generator was too slow for a verdict on this model, or None."""
        return lag_reason(client, [verdict.target for verdict in self.verdicts])


@dataclass(frozen=True)
class Report:
    """A whole run. `duration` in ns; `notes` are sentences about how the load was made. A simulation has no client.

    `closed_users` is how many asked in a closed loop, 0 of an open one. Promises are of requests that come when they
    come: a user of a closed loop waits out a slow answer before it asks again, so where the server is slow few requests
    meet it, and no percentile of them answers for a promise.
    """

    duration: int
    seed: int
    rate_scale: float
    client: Client | None
    models: Sequence[ModelReport]
    notes: Sequence[str]
    closed_users: int = 0

    @property
    def held(self) -> bool:
        """Every target of every model was kept, the run counts, and there was something to keep."""
        return all(model.held for model in self._promising) and bool(self._promising) and self.void is None

    @property
    def void(self) -> str | None:
        """Why the run gives no verdict at all, or None."""
        return closed(self.closed_users) if self.closed_users else self.lagged

    @property
    def lagged(self) -> str | None:
        """Why the load generator was too slow for any verdict, or None."""
        reasons = [model.lagged(self.client) for model in self._promising or self.models]
        return reasons[0] if all(reasons) else None

    @property
    def conclusion(self) -> str:
        if self.void is not None:
            return f"No verdict: {self.void}."
        verdicts = [verdict for model in self.models for verdict in model.verdicts]
        if not verdicts:
            names = " and ".join(f"models.{model.name}.targets" for model in self.models)
            return f"No verdict: {names} {'declares' if len(self.models) == 1 else 'declare'} none."
        missed = sum(verdict.ruling == "missed" for verdict in verdicts)
        unknown = sum(verdict.ruling == "none" for verdict in verdicts)
        if missed or unknown:
            parts = [f"{missed} missed"] * (missed > 0) + [f"{unknown} without a verdict"] * (unknown > 0)
            told = "Not all promises were kept" if missed else "Not every promise has a verdict"
            return f"{told}: of {len(verdicts)}, {' and '.join(parts)}."
        return "The promise was kept." if len(verdicts) == 1 else f"All {len(verdicts)} promises were kept."

    @property
    def _promising(self) -> list[ModelReport]:
        """The models that have targets."""
        return [model for model in self.models if model.verdicts]


def closed(users: int) -> str:
    """Why a closed loop of so many users gives no verdict."""
    who = "1 user waits" if users == 1 else f"{users} users wait"
    return (
        f"{who} for each answer before the next request (a closed loop), so a slow server is asked less; these "
        "latencies are not those of an open loop, where requests come when they come, and promises are of those"
    )


def show(report: Report, console: Console) -> None:
    """Print the report; the name of a model only where there are several."""
    for model in report.models:
        if len(report.models) > 1:
            console.print(Text(model.name, style="bold underline"), end="\n\n")
        for summary in model.classes:
            console.print(_headline(summary), highlight=False)
            console.print(_table(model, summary, report.void is not None))
            for error, count in error_kinds.most(summary.errors):
                console.print(f"  {count} × {error}", style="red", markup=False, highlight=False)
            if told := error_kinds.more(summary.errors):
                console.print(f"  {told}", style="red", highlight=False)
            console.print()
    console.print(explained(report), style="dim", highlight=False)
    for model in report.models:
        _show_unsent(model, f"{model.name} " if len(report.models) > 1 else "", console)
    for note in report.notes:
        console.print(note, style="dim", highlight=False)
    console.print(report.conclusion, style="bold green" if report.held else "bold red", highlight=False)


def _show_unsent(model: ModelReport, whose: str, console: Console) -> None:
    """Promises to tiers that sent nothing, and so have no table."""
    tiers = [summary.tier for summary in model.classes]
    for verdict in model.verdicts:
        if verdict.tier not in tiers:
            what = f"{whose}{verdict.tier} {verdict.metric.upper()}:"
            console.print(what, _told(verdict, void=False), highlight=False)


def explained(report: Report) -> str:
    tokens = any(_has_tokens(summary) for model in report.models for summary in model.classes)
    itl = "ITL is per token (a message of n tokens is n equal gaps); " if tokens or not report.models else ""
    since = "when its user was free to send" if report.closed_users else "the intended send time"
    told = f"Latency counts from {since}; {itl}refused and failed requests count as ∞."
    return f"{told} {client_report.sentence(report.client)}".rstrip()


def _has_tokens(summary: ClassSummary) -> bool:
    return "itl" in summary.latencies


def _headline(summary: ClassSummary) -> str:
    good = "" if summary.goodput is None else f", goodput {summary.goodput:.2f}/s"
    tokens = f", {summary.output_rate:.1f} output tokens/s" if _has_tokens(summary) else ""
    return (
        f"[bold]{summary.tier}[/bold]: sent {summary.sent}, ok {summary.ok}, rejected {summary.rejected}, failed "
        f"{summary.failed}\noffered {summary.offered:.2f}/s, "
        f"achieved {summary.achieved:.2f}/s while it lasted{good}{tokens}"
    )


def _table(model: ModelReport, summary: ClassSummary, void: bool) -> Table:
    """One row per metric: its percentiles, what was promised of it, within what it was measured, and the verdict."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("")
    for q in SHOWN:
        table.add_column(show_percentile(q), justify="right", no_wrap=True)
    table.add_column("promise", no_wrap=True)
    if measured := any(latency.owners is not None for latency in summary.latencies.values()):
        table.add_column("95 % within", no_wrap=True)
    table.add_column("verdict")
    for metric in [metric for metric in METRICS if metric in summary.latencies]:
        values = [summary.latencies[metric].at(q) for q in SHOWN]
        verdict = next((v for v in model.verdicts if (v.tier, v.metric) == (summary.tier, metric)), None)
        promise = f"{show_percentile(verdict.q)} ≤ {show_duration(verdict.target)}" if verdict else ""
        told = _told(verdict, void) if verdict else ""
        shown = ["–" if value is None else show_duration(value) for value in values]
        within = [str(verdict.interval or "") if verdict else ""] * measured
        table.add_row(metric.upper(), *shown, promise, *within, told, style="" if verdict else "dim")
    return table


def _told(verdict: Verdict, void: bool) -> Text:
    reason = "" if void else f": {verdict.reason}"
    return Text(f"{WORD[verdict.ruling]}{reason}", style=STYLE[verdict.ruling])


def as_json(report: Report) -> dict[str, Any]:
    """The report with times in seconds; a percentile that is infinite or has no samples is null.

    So is an end of an interval that is infinite or that the samples are too few for.
    """
    return {
        "held": report.held,
        "conclusion": report.conclusion,
        "duration_s": report.duration / 1e9,
        "seed": report.seed,
        "rate_scale": report.rate_scale,
        "closed_users": report.closed_users,
        "notes": list(report.notes),
        "client": client_report.as_json(report.client),
        "models": {model.name: _model_json(model) for model in report.models},
    }


def _model_json(model: ModelReport) -> dict[str, Any]:
    return {
        "held": model.held,
        "classes": {summary.tier: _class_json(summary) for summary in model.classes},
        "verdicts": [
            {
                "tier": verdict.tier,
                "metric": verdict.metric,
                "at": show_percentile(verdict.q).lower(),
                "target_s": verdict.target / 1e9,
                "interval_s": _ends(verdict.interval),
                "verdict": verdict.ruling,
                "reason": verdict.reason,
            }
            for verdict in model.verdicts
        ],
    }


def _class_json(summary: ClassSummary) -> dict[str, Any]:
    counts = {name: getattr(summary, name) for name in ("sent", "ok", "rejected", "failed")}
    rates = {"offered_per_s": summary.offered, "achieved_per_s": summary.achieved}
    if summary.goodput is not None:
        rates["goodput_per_s"] = summary.goodput
    if _has_tokens(summary):
        rates["output_tokens_per_s"] = summary.output_rate
    latencies = {
        f"{metric}_s": {show_percentile(q).lower(): _seconds(latency.at(q)) for q in SHOWN}
        | {"samples": len(latency.samples)}
        for metric, latency in summary.latencies.items()
    }
    return counts | rates | latencies | {"errors": dict(summary.errors)}


def _ends(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [_seconds(interval.low), _seconds(interval.high)]


def _seconds(ns: float | None) -> float | None:
    return ns / 1e9 if ns is not None and isfinite(ns) else None
