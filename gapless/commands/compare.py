"""`gapless compare`: two recorded runs of the same load, metric by metric."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from config_gen.sla import quantity
from gapless.results import check_outputs, write_json
from loadtest import comparison_report, recording
from loadtest.comparison import compare
from loadtest.same_load import Asked, check, check_client

THRESHOLD = "5%"


def threshold_option() -> Any:
    """`--threshold 5%`, as a share."""
    return typer.Option(help="changes up to this share are none", parser=_share, metavar="SHARE")


def _share(text: str) -> float:
    try:
        return quantity.share(text)
    except quantity.QuantityError as error:
        raise typer.BadParameter(str(error)) from None


def run(
    before: Annotated[Path, typer.Argument(help="what `gapless loadtest --samples` wrote", metavar="BEFORE")],
    now: Annotated[Path, typer.Argument(help="the same of a later run", metavar="NOW")],
    threshold: Annotated[float, threshold_option()] = THRESHOLD,  # type: ignore[assignment]
    json_file: Annotated[Path | None, typer.Option("--json", help="write the comparison as JSON")] = None,
) -> None:
    """Exit 0 when nothing got worse beyond noise, 1 when something did, 2 on bad input."""
    check_outputs(before, now, json=json_file)
    runs = recording.read(before), recording.read(now)
    names = str(before), str(now)
    check(Asked.of(runs[0]), Asked.of(runs[1]), names)
    for one, name in zip(runs, names, strict=True):
        check_client(one, name)
    lines = compare(*runs, threshold)
    write_json(json_file, comparison_report.as_json(lines, threshold))
    comparison_report.show(lines, threshold, Console())
    raise typer.Exit(1 if comparison_report.regressions(lines) else 0)
