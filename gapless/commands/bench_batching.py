"""`gapless bench batching`: from command line words to gapless.batching."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from config_gen.sla.spec import OnnxModel, SpecError, load
from gapless import batching
from gapless.commands.loadtest import duration_option
from gapless.machine import describe
from gapless.parts import REPOSITORY, pick_parts
from gapless.results import check_outputs, write_json


def run(
    name: Annotated[str, typer.Argument(help="A built model of kind onnx.")],
    sla: Annotated[Path, typer.Option(help="SLA file that declares it.")] = Path("sla/demo.yaml"),
    duration: Annotated[int, duration_option("of each run through Triton")] = "10s",  # type: ignore[assignment]
    repeat: Annotated[int, typer.Option(help="Runs of each alternative, in turn.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="What is sent.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all results here.")] = None,
) -> None:
    """Precision, runner and batching of a built engine, each beside its alternative. Exit 1 when a bar is missed."""
    check_outputs(sla, json=json_file)
    (part,) = pick_parts(load(sla), name)
    if not isinstance(part.model, OnnxModel):
        raise SpecError(f"models.{name}.kind: '{part.model.kind}' is not allowed here; onnx")
    console = Console()
    console.print(describe(), highlight=False, soft_wrap=True)
    bench = batching.Bench(name, part.model, part, REPOSITORY, duration, repeat, seed)
    results = batching.measure_all(bench, console)
    console.print(batching.table(results))
    write_json(json_file, {"machine": describe(), **results})
    raise typer.Exit(0 if all(row["held"] is not False for row in results["rows"]) else 1)
