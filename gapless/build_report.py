"""What `gapless build` says of an engine: a table for people, an object for machines. Must not measure or judge."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from builders.report import Built, Row

SHOWN = (1, 8, 16, 32)  # batch sizes


def show_engine(built: Built, console: Console) -> None:
    """Print the report."""
    state = "up to date" if built.up_to_date else f"built in {built.seconds:.0f} s"
    console.print(
        f"{built.model}: {built.source}, {state}, in {built.out}", style="bold", highlight=False, markup=False
    )
    console.print(_table(built))
    for row in built.rows:
        console.print(f"{row.precision} {row.verdict}", highlight=False, markup=False)
        for note in row.notes:
            console.print(f"  {note}", style="dim", highlight=False, markup=False)
    asked = "" if built.precision == built.asked else f", not {built.asked}, which was asked for"
    worth = f"; the batch that is worth its latency is {built.knee}" if built.knee else ""
    console.print(f"{built.model} runs in {built.precision}{asked}, with {built.runtime}{worth}.\n", highlight=False)


def _table(built: Built) -> Table:
    metric = next((row.score.metric for row in built.rows if row.score.metric != "reference"), "accuracy")
    table = Table(box=None, pad_edge=False)
    for name in ("precision", "MB", f"{metric} mean", "worst", *(f"ms at {batch}" for batch in SHOWN)):
        table.add_column(name, justify="left" if name == "precision" else "right", no_wrap=True)
    for row in built.rows:
        size = f"{row.size / 1e6:.1f}" if row.size else "–"
        worst = None if row.score.metric == "top1" else row.score.worst  # an item agrees or does not
        scores = ["–" if value is None else f"{value:.4f}" for value in (row.score.mean, worst)]
        table.add_row(row.precision, size, *scores, *(_latency(row, batch) for batch in SHOWN))
    return table


def _latency(row: Row, batch: int) -> str:
    return next((f"{found.p50:.1f}" for found in row.latencies if found.batch == batch), "–")


def engine_json(built: Built) -> dict[str, Any]:
    """The report with every latency measured."""
    return {**asdict(built), "out": str(built.out)}
