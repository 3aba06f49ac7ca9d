"""`gapless bench plan`: from command line words to gapless.planbench."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from config_gen.planning.plans import plan
from config_gen.sla.spec import OnnxModel, Spec, SpecError, load
from gapless import batching, corrections, planbench
from gapless.commands.loadtest import duration_option
from gapless.machine import describe
from gapless.parts import REPOSITORY, at_rates, pick_parts
from gapless.planning import facts
from gapless.results import check_outputs, write_json


def run(
    sla: Annotated[Path, typer.Argument(help="SLA file", metavar="SLA.yaml")],
    name: Annotated[
        str | None, typer.Argument(help="A model of kind onnx: its grid. Default: all, beside defaults.")
    ] = None,
    duration: Annotated[int, duration_option("of each load")] = "20s",  # type: ignore[assignment]
    rate_scale: Annotated[float, typer.Option(help="multiply the declared rates", min=1e-6, max=1e6)] = 1.0,
    repeat: Annotated[int, typer.Option(help="Runs of the plan and of what it is compared with, in turn.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="What is sent.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all results here.")] = None,
) -> None:
    """Goodput of the plan made for these rates, measured beside others. Exit 1 when a bar is missed."""
    check_outputs(sla, json=json_file)
    spec = scaled(load(sla), name, rate_scale)
    known, fixed = facts(spec, sla, REPOSITORY), corrections.read(REPOSITORY)
    began = time.perf_counter()
    found = plan(spec, known, fixed, advice=False)
    planning = time.perf_counter() - began
    console = Console()
    console.print(describe(), highlight=False, soft_wrap=True)
    bench = planbench.Bench(pick_parts(spec, name), REPOSITORY, duration, 1.0, repeat, seed, console)
    rows = planbench.against_defaults(bench, found) if name is None else planbench.against_grid(bench, found, planning)
    console.print(batching.table({"rows": rows}))
    write_json(json_file, {"machine": describe(), "rows": rows})
    raise typer.Exit(0 if all(row["held"] is not False for row in rows) else 1)


def scaled(spec: Spec, name: str | None, scale: float) -> Spec:
    """The file with its rates multiplied, and with the one model `name` alone where it is given. Raises SpecError."""
    if name is not None and not isinstance(spec.models.get(name), OnnxModel):
        batchable = [one for one, model in spec.models.items() if isinstance(model, OnnxModel)]
        raise SpecError(f"{name}: has no grid; models of kind onnx: {', '.join(batchable) or 'none'}")
    wanted = spec if name is None else spec.model_copy(update={"models": {name: spec.models[name]}})
    return at_rates(wanted, scale)
