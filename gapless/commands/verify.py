"""`gapless verify`: plan, generate, serve, load as declared, and lay what was measured beside what was predicted.

With --tune what the server showed goes into the next plan, until the targets are kept and the plan stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from config_gen.plan import Plan
from config_gen.sla.quantity import show_duration, show_percentile
from config_gen.sla.spec import load
from gapless import corrections, loads
from gapless.commands.loadtest import duration_option
from gapless.generation import generate_repository
from gapless.parts import REPOSITORY, pick_parts
from gapless.planning import planned
from gapless.results import check_outputs, write_json
from gapless.signals import leave_like_an_exception
from gapless.verifying import P99, Line, Round, corrected, measure
from loadtest import report

ROUNDS = 3


def run(
    sla: Annotated[Path, typer.Argument(help="SLA file", metavar="SLA.yaml")],
    duration: Annotated[int, duration_option()] = "2min",  # type: ignore[assignment]
    seed: Annotated[int, typer.Option(help="arrivals, lengths and prompts follow from it")] = 0,
    tune: Annotated[bool, typer.Option("--tune", help="Feed what was measured back and plan again.")] = False,
    rounds: Annotated[int, typer.Option(help="With --tune: loads at most.", min=1, max=20)] = ROUNDS,
    force: Annotated[bool, typer.Option("--force", help="Overwrite configuration that was changed by hand.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all rounds as JSON.")] = None,
) -> None:
    """Exit 0 when every target was kept as measured, whatever was predicted; 1 when not, 2 on bad input."""
    leave_like_an_exception()  # so that the server is stopped
    check_outputs(sla, json=json_file)
    console = Console()
    spec = load(sla)
    parts = pick_parts(spec, None)
    sent = loads.declared(parts, duration, 1.0, seed)  # that there are requests is known before a server is started
    known = corrections.read(REPOSITORY)
    plan = planned(sla, REPOSITORY, known)
    done: list[Round] = []
    while True:
        if not plan.held:
            console.print("No plan keeps every target by prediction; loading the one that comes nearest.")
        generate_repository(plan, REPOSITORY, sla, force=force)
        told = f"Round {len(done) + 1}: " if tune else ""
        console.print(f"{told}serving it, and loading it for {duration / 1e9:g} s …", highlight=False)
        done.append(measure(plan, spec, sent, REPOSITORY))
        show(done[-1], console)
        if not tune:
            break
        seen = corrected(done[-1], known)
        following = planned(sla, REPOSITORY, seen)
        if same := settings(following) == settings(plan):
            console.print("What was measured leads to the same plan.", highlight=False)
            generate_repository(following, REPOSITORY, sla, force=force)  # its reasons hold other numbers
        elif len(done) == rounds:
            console.print("What was measured would change the plan again; the one that was loaded stays.")
        if same or len(done) < rounds:
            known = seen
        if same or len(done) == rounds:
            corrections.write(REPOSITORY, known)
            break
        plan = following
    write_json(json_file, {"held": done[-1].held, "rounds": [as_json(one) for one in done]})
    raise typer.Exit(0 if done[-1].held else 1)


def settings(plan: Plan) -> object:
    """What of a plan a server would see; reasons and predictions may differ."""
    return [replace(model, knobs=(), memory=0) for model in plan.models], [(f.name, f.value) for f in plan.flags]


def show(done: Round, console: Console) -> None:
    """A table for each model, and the verdict."""
    for model in done.plan.models:
        table = Table(title=model.name, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for name in ("  tier", "", "predicted", "measured", "off", "target", ""):
            table.add_column(name, justify="left" if name in ("  tier", "") else "right", no_wrap=True)
        for line in done.lines:
            if line.model == model.name:
                for row in _rows(line):
                    table.add_row(*row)
        console.print(table, "", sep="\n")
    console.print(done.report.conclusion, style="bold green" if done.held else "bold red", highlight=False)


def _rows(line: Line) -> Iterator[list[str]]:
    """At the percentile of the promise with its verdict, and at P99."""
    what, tier = line.metric.upper(), f"  {line.tier}"
    if line.target is not None:
        verdict = {"kept": "kept", "missed": "MISSED"}.get(line.ruling, "no verdict")
        off = _off(line.predicted, line.measured)
        numbers = [show_duration(line.predicted), _shown(line.measured), off, show_duration(line.target), verdict]
        yield [tier, f"{what} {show_percentile(line.q)}", *numbers]
    if line.target is None or line.q != P99:
        off = _off(line.predicted_p99, line.measured_p99)
        yield [tier, f"{what} P99", show_duration(line.predicted_p99), _shown(line.measured_p99), off, "", ""]


def _off(predicted: float, measured: float | None) -> str:
    if not measured or not isfinite(predicted) or not isfinite(measured):
        return ""
    return f"{predicted / measured - 1:+.0%}"


def _shown(ns: float | None) -> str:
    return "" if ns is None else show_duration(ns)


def as_json(done: Round) -> dict[str, Any]:
    """Times in ns."""
    return {
        "held": done.held,
        "predicted_held": done.plan.held,
        "lines": [_line(line) for line in done.lines],
        "report": report.as_json(done.report),
    }


def _line(line: Line) -> dict[str, Any]:
    numbers = {
        "predicted_ns": line.predicted,
        "measured_ns": line.measured,
        "predicted_p99_ns": line.predicted_p99,
        "measured_p99_ns": line.measured_p99,
        "p99_off": line.off,
    }
    return {
        "model": line.model,
        "tier": line.tier,
        "metric": line.metric,
        "at": show_percentile(line.q).lower(),
        "target_ns": line.target,
        "ruling": line.ruling,
    } | {name: value if value is not None and isfinite(value) else None for name, value in numbers.items()}
