"""What a plan says: promises and settings as tables, all of it as JSON. Must not know how it was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from rich.console import Console
from rich.table import Table

from config_gen.plan import Plan, Prediction
from config_gen.sla.quantity import show_duration, show_percentile
from config_gen.triton.serve_args import flags

LONGEST = 40  # characters of a value that is shown


def show(plan: Plan, console: Console) -> None:
    """Model by model what is promised and what it gets, settings with reasons; what would do where one is missed."""
    for model in plan.models:
        cards = ", ".join(map(str, model.gpus))
        where = f"card{'s' if len(model.gpus) > 1 else ''} {cards}" if cards else "the CPU"
        console.print(f"{model.name} on {where}, {model.memory / 2**30:.2f} GiB", style="bold", highlight=False)
        if mine := [found for found in plan.predictions if found.model == model.name]:
            console.print(promises(mine))
            for found in mine:
                told = f"  {found.tier} {found.metric.upper()}: most of it {found.binding}"
                console.print(told, style="dim", highlight=False, soft_wrap=True)
            console.print()
        for knob in model.knobs:
            value = knob.value if len(knob.value) <= LONGEST else "…"
            console.print(f"  {knob.name} {value}".rstrip(), end=": ", style="cyan", highlight=False, soft_wrap=True)
            console.print(knob.reason, highlight=False, soft_wrap=True)
        console.print()
    for note in plan.notes:
        console.print(note, style="yellow", highlight=False, soft_wrap=True)
    if plan.held:
        console.print(f"Every target is kept on {_hardware(plan)}.", style="bold green")
    else:
        console.print(f"No plan keeps every target; this one on {_hardware(plan)} comes nearest. What would do:")
        for line in plan.advice or ("nothing that was tried",):
            console.print(f"  {line}", highlight=False, soft_wrap=True)


def missed(plan: Plan) -> list[str]:
    """A line for each promise that would not be kept, then what would do."""
    return [
        f"models.{found.model}.targets.{found.tier}.{found.metric}: {show_duration(found.target)} at "
        f"{show_percentile(found.q)} is missed: {show_duration(found.predicted)}, "
        f"{show_duration(found.stressed)} with headroom; {found.binding}"
        for found in plan.predictions
        if not found.held
    ] + list(plan.advice)


def promises(predictions: Sequence[Prediction]) -> Table:
    """A line for each target of one model."""
    table = Table(box=None, pad_edge=False)
    for name in ("  tier", "target", "predicted", "headroom", "margin", ""):
        right = name in ("predicted", "headroom", "margin")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for found in predictions:
        table.add_row(
            f"  {found.tier}",
            f"{found.metric.upper()} {show_percentile(found.q)} ≤ {show_duration(found.target)}",
            show_duration(found.predicted),
            show_duration(found.stressed),
            f"{found.margin:.0%}" if isfinite(found.margin) else "-∞",
            "kept" if found.held else "MISSED",
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
        "models": {model.name: asdict(model) for model in plan.models},
        "flags": [asdict(flag) for flag in flags(plan)],
        "advice": list(plan.advice),
        "notes": list(plan.notes),
    }


def _finite(ns: float) -> float | None:
    return ns if isfinite(ns) else None
