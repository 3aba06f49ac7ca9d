"""`gapless bench generator`: from command line words to gapless.generator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from config_gen.sla.quantity import show_duration
from gapless import generator
from gapless.commands.loadtest import duration_option
from gapless.machine import describe
from gapless.results import check_outputs, write_json


def run(
    rate: Annotated[float, typer.Option(help="Texts per second that are answered in one piece.", min=0, max=1e5)] = 500,
    streams: Annotated[int, typer.Option(help="Token streams that are open at once.", min=0, max=10_000)] = 64,
    pace: Annotated[float, typer.Option(help="Tokens per second of each stream.", min=0.1, max=1e4)] = 20,
    duration: Annotated[int, duration_option("of each round")] = "20s",  # type: ignore[assignment]
    repeat: Annotated[int, typer.Option(help="Rounds, one after another.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="When texts are sent.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all results here.")] = None,
) -> None:
    """Load idle models from one process of the load generator. Exit 1 when it lags, and so is the bottleneck."""
    check_outputs(json=json_file)
    console, bench = Console(), generator.Bench(rate, streams, pace, duration, repeat, seed)
    requests = generator.planned(bench)
    mine, others = generator.cores()
    console.print(describe(), highlight=False, soft_wrap=True)
    console.print(
        f"{rate:g} texts/s and {streams} streams of {pace:g} tokens/s; the load generator on core {_names(mine)}, "
        f"the server on {_names(others)}",
        highlight=False,
        soft_wrap=True,
    )
    rounds = generator.measure(bench, requests, console)
    console.print(generator.table(rounds))
    held, limit = all(one.held for one in rounds), show_duration(generator.LAG)
    console.print(
        f"Its lag stays below {limit} at P99."
        if held
        else f"The load generator is the bottleneck: at this load its lag is not below {limit} at P99 in every round.",
        style="bold green" if held else "bold red",
        highlight=False,
    )
    write_json(json_file, {"machine": describe(), "held": held, "rounds": generator.as_json(rounds)})
    raise typer.Exit(0 if held else 1)


def _names(cores: set[int]) -> str:
    return ", ".join(map(str, sorted(cores)))
