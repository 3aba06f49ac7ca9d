"""`gapless generate`: an SLA file and what was built into the configuration of Triton's model repository."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from config_gen.plan import Plan
from config_gen.triton.repository import CONFIG, FLAGS
from config_gen.triton.repository_files import Change, write
from gapless.generation import pending
from gapless.parts import REPOSITORY
from gapless.plan_report import as_json, missed
from gapless.planning import planned
from gapless.results import check_outputs, write_json
from gapless.signals import leave_like_an_exception


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
    """Write config.pbtxt for each model and the launch flags.

    Exit 1 when a target would be missed, and nothing is written then; 2 on bad input.
    """
    leave_like_an_exception()  # so that nothing half written stays
    check_outputs(sla, json=json_file)
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
    paths = {"pending": [str(change.path) for change in wanted], "written": changed}
    write_json(json_file, as_json(plan) | paths)
    raise typer.Exit(bool(wanted) if diff else refused)


def told(plan: Plan, out: Path, wanted: list[Change]) -> list[str]:
    """What became of each file, and which models of the repository are not of the plan."""
    names = [model.name for model in plan.models]
    changed = {change.path: "written" if change.old is None else "changed" for change in wanted}
    paths = [*(out / name / CONFIG for name in names), out / FLAGS]
    lines = [f"{path}: {changed.get(path, 'as it was')}" for path in paths]
    others = sorted(path.parent.name for path in out.glob(f"*/{CONFIG}") if path.parent.name not in names)
    return [*lines, *([f"Not in the file, and left alone: {', '.join(others)}"] if others else [])]
