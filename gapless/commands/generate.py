"""`gapless generate`: an SLA file and what was built into the configuration of Triton's model repository."""

from __future__ import annotations

import sys
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

from config_gen.plan import Knob, ModelPlan, Plan, Prediction
from config_gen.quantity import show_duration, show_percentile
from config_gen.repository import CONFIG, FLAGS
from config_gen.repository_files import Change, write
from config_gen.serve_args import flags
from gapless.generation import pending
from gapless.parts import REPOSITORY
from gapless.planning import planned
from gapless.results import check_outputs, write_json


def run(
    sla: Annotated[Path, typer.Argument(help="SLA file", metavar="SLA.yaml")],
    out: Annotated[Path, typer.Option(help="The model repository, with the models built in it.")] = REPOSITORY,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite files changed by hand, and write a plan that misses targets.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Write nothing; show what would change, and exit 1 if anything would.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the plan and the files as JSON.")] = None,
) -> None:
    """Write config.pbtxt for each model and the launch flags. Exit 1 when a target would be missed, 2 on bad input."""
    check_outputs(json=json_file)
    plan = planned(sla, out)
    wanted = pending(plan, out, sla)
    for line in missed(plan):  # beside what a diff prints
        print(line, file=sys.stderr)
    refused = not plan.held and not force
    if diff:
        print("".join(change.diff() for change in wanted), end="")
    elif refused:
        print("Nothing was written; --force writes what comes nearest.", file=sys.stderr)
    else:
        write(wanted, force=force)
        for line in told(plan, out, wanted):
            print(line)
    changed = [] if diff or refused else [str(change.path) for change in wanted]
    write_json(json_file, as_json(plan, wanted, changed))
    raise typer.Exit(1 if refused or (diff and wanted) else 0)


def missed(plan: Plan) -> list[str]:
    """A line for each promise that would not be kept, and what would do."""
    if plan.held:
        return []
    lines = []
    for found in plan.predictions:
        if found.predicted > found.target:
            got = show_duration(found.predicted) if isfinite(found.predicted) else "refused"
            lines.append(
                f"{found.model}, {found.tier}: {found.metric.upper()} {show_percentile(found.q)} {got}, promised "
                f"{show_duration(found.target)}; {found.binding}"
            )
    return [*lines, *plan.advice]


def told(plan: Plan, out: Path, wanted: list[Change]) -> list[str]:
    """What became of each file, and which models of the repository are not of the plan."""
    names = [model.name for model in plan.models]
    changed = {change.path: "written" if change.old is None else "changed" for change in wanted}
    paths = [*(out / name / CONFIG for name in names), out / FLAGS]
    lines = [f"{path}: {changed.get(path, 'as it was')}" for path in paths]
    others = sorted(path.parent.name for path in out.glob(f"*/{CONFIG}") if path.parent.name not in names)
    return [*lines, *([f"Not in the file, and left alone: {', '.join(others)}"] if others else [])]


def as_json(plan: Plan, wanted: list[Change], written: list[str]) -> dict[str, Any]:
    """The plan in ns and bytes; a prediction that is null is a refusal."""
    return {
        "held": plan.held,
        "models": {model.name: _model(model) for model in plan.models},
        "flags": [_knob(knob) for knob in flags(plan)],
        "predictions": [_prediction(found) for found in plan.predictions],
        "advice": list(plan.advice),
        "pending": [str(change.path) for change in wanted],
        "written": written,
    }


def _model(model: ModelPlan) -> dict[str, Any]:
    return {"gpus": list(model.gpus), "memory": model.memory, "knobs": [_knob(knob) for knob in model.knobs]}


def _knob(knob: Knob) -> dict[str, str]:
    return {"name": knob.name, "value": knob.value, "reason": knob.reason}


def _prediction(found: Prediction) -> dict[str, Any]:
    return {
        "model": found.model,
        "tier": found.tier,
        "metric": found.metric,
        "at": show_percentile(found.q),
        "target": found.target,
        "predicted": found.predicted if isfinite(found.predicted) else None,
        "binding": found.binding,
    }
