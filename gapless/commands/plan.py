"""`gapless plan`: from an SLA file to settings that keep its promises, with the reason for each; or why none do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from config_gen.sla.spec import schema
from gapless.errors import UsageError
from gapless.parts import REPOSITORY
from gapless.plan_report import as_json, show
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
    check_outputs(sla, json=json_file)
    console = Console(stderr=True)
    with console.status("planning") as status:
        found = planned(sla, repository, tell=lambda what, share: status.update(what))
    show(found, Console())
    write_json(json_file, as_json(found))
    raise typer.Exit(0 if found.held else 1)
