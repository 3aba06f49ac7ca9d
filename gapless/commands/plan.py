"""`gapless plan`: from an SLA file to settings that keep its promises, with the reason for each; or why none do."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from config_gen.plan import Plan
from config_gen.quantity import show_duration, show_percentile
from config_gen.spec import schema
from gapless.errors import UsageError
from gapless.parts import REPOSITORY
from gapless.planning import planned
from gapless.results import check_outputs, write_json


def run(
    sla: Annotated[Path | None, typer.Argument(help="SLA file", metavar="SLA.yaml")] = None,
    repository: Annotated[Path, typer.Option(help="Where the models were built, with --profile.")] = REPOSITORY,
    show_schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of SLA files.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the plan as JSON")] = None,
) -> None:
    """Exit 0 when every target is kept, 1 when none of the plans keeps all, 2 on bad input."""
    if show_schema:
        print(json.dumps(schema(), indent=2))
        return
    if sla is None:
        raise UsageError("SLA.yaml: is missing; name an SLA file, or ask for --schema")
    check_outputs(json=json_file)
    console = Console(stderr=True)
    with console.status("planning") as status:
        found = planned(sla, repository, tell=lambda what, share: status.update(what))
    show(found, Console())
    write_json(json_file, as_json(found))
    raise typer.Exit(0 if found.held else 1)


def show(plan: Plan, console: Console) -> None:
    """Promises, settings with reasons, and what would do where a promise is missed."""
    console.print(promises(plan))
    for model in plan.models:
        where = f"cards {', '.join(map(str, model.gpus))}" if model.gpus else "the CPU"
        settings = Table(
            title=f"{model.name}: {model.memory / 2**30:.2f} GiB on {where}", title_justify="left", box=None
        )
        for name in ("setting", "value", "why"):
            settings.add_column(name, overflow="fold", justify="left")
        for knob in model.knobs:
            settings.add_row(knob.name, knob.value if len(knob.value) <= 40 else "…", knob.reason)
        console.print()
        console.print(settings)
    if plan.held:
        console.print(f"\nEvery target is kept on {_hardware(plan)}.")
    else:
        console.print(f"\nNo plan keeps every target; this one on {_hardware(plan)} comes nearest. What would do:")
        for line in plan.advice or ("nothing that was tried: less traffic, looser targets, smaller weights, more",):
            console.print(f"  {line}", highlight=False)


def promises(plan: Plan) -> Table:
    """A line for each target."""
    table = Table(box=None, pad_edge=False)
    for name in ("model", "tier", "target", "predicted", "with headroom", "margin", "", "most of it"):
        table.add_column(name, justify="right" if name in ("predicted", "with headroom", "margin") else "left")
    for found in plan.predictions:
        table.add_row(
            found.model,
            found.tier,
            f"{found.metric} {show_percentile(found.q)} {show_duration(found.target)}",
            show_duration(found.predicted),
            show_duration(found.stressed),
            f"{found.margin:.0%}" if isfinite(found.margin) else "-∞",
            "kept" if found.held else "MISSED",
            found.binding,
        )
    return table


def _hardware(plan: Plan) -> str:
    return f"{plan.cards} card{'s' if plan.cards > 1 else ''}" if plan.cards else "the CPU"


def as_json(plan: Plan) -> dict[str, Any]:
    """Times in ns, infinite ones as null."""
    return {
        "held": plan.held,
        "cards": plan.cards,
        "predictions": [
            {
                "model": found.model,
                "tier": found.tier,
                "metric": found.metric,
                "at": show_percentile(found.q).lower(),
                "target_ns": found.target,
                "predicted_ns": _finite(found.predicted),
                "with_headroom_ns": _finite(found.stressed),
                "kept": found.held,
                "binding": found.binding,
            }
            for found in plan.predictions
        ],
        "models": [asdict(model) for model in plan.models],
        "flags": [asdict(flag) for flag in plan.flags],
        "advice": list(plan.advice),
    }


def _finite(ns: float) -> float | None:
    return ns if isfinite(ns) else None
