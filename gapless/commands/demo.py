"""`gapless demo`: builds the model, serves it, measures what this machine sustains, loads it with 60 % of that, judges.

Wires the other commands; the server it starts is gone when it ends, however it ends.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from config_gen.spec import LlmModel, load
from gapless.child import server
from gapless.commands.build import build
from gapless.commands.loadtest import (
    REPOSITORY,
    duration_option,
    find_prompts,
    load_model,
    pick_model,
    progress_bar,
    tell,
)
from gapless.limits import options
from gapless.results import check_outputs
from gapless.signals import leave_like_an_exception
from loadtest import capacity
from loadtest.arrivals import schedule
from loadtest.percentiles import samples_needed
from loadtest.prompts import Prompts

BURST = 12 * 10**9  # ns of the capacity measurement
BURST_REQUESTS = 2000  # more than a burst can end
SHARE = 0.6  # of the capacity, that the load asks for
MINUTE = 60 * 10**9  # ns
LONGEST = 5 * MINUTE
LOG = Path("out/demo/server.log")


def run(
    sla: Annotated[Path, typer.Argument(help="SLA file", metavar="SLA.yaml")],
    duration: Annotated[int | None, duration_option()] = None,
    seed: Annotated[int, typer.Option(help="arrivals, lengths and prompts follow from it")] = 0,
    samples: Annotated[Path | None, typer.Option(help="write raw samples, one JSON line a request")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the report as JSON")] = None,
) -> None:
    """Exit 0 when all targets were kept, 1 when not, 2 on bad input."""
    leave_like_an_exception()  # so that the server is stopped
    console = Console()
    check_outputs(samples=samples, json=json_file)
    spec = load(sla)
    name, model = pick_model(spec, None)
    console.print(f"Building {name} from {model.source} …", highlight=False)
    build(model.source, REPOSITORY / name / "1")
    prompts = find_prompts(name, None)
    console.print("Starting the server …")
    with server(REPOSITORY, name, options(spec, model), LOG) as url:
        sustained, scale = fit(console, url, name, model, prompts, seed)
        duration = duration or long_enough(model, scale, seed, prompts)
        console.print(f"Loading it for {duration / 1e9:g} s …", highlight=False)
        result = load_model(name, model, prompts, url, duration, scale, seed, samples)
    note = (
        f"Capacity measured: {sustained:.2f} requests/s of this mix. Declared rates scaled by {scale:.2f}, to "
        f"{SHARE:.0%} of it."
    )
    console.print()
    result = replace(result, notes=[*result.notes, note])
    tell(result, json_file)
    raise typer.Exit(0 if result.held else 1)


def fit(console: Console, url: str, name: str, model: LlmModel, prompts: Prompts, seed: int) -> tuple[float, float]:
    """Capacity of the declared mix in requests/s, and the scale at which the declared rates are SHARE of it."""
    declared = sum(shape.rate for shape in model.traffic.values())
    long = int(BURST_REQUESTS / declared * 1e9)
    # Another seed than that of the load: its prompts must not be in the cache already.
    mix = schedule(model.traffic, long, 1.0, seed + 1, prompts, model.max_model_len)
    console.print(f"Measuring capacity for {BURST / 1e9:g} s …", highlight=False)
    with progress_bar("Measuring capacity", BURST) as seen:
        sustained = capacity.measure(url, name, mix, BURST, seen)
    scale = SHARE * sustained / declared
    console.print(
        f"It sustains {sustained:.2f} requests/s of this mix; the declared {declared:g}/s are scaled by {scale:.2f} to "
        f"{SHARE * sustained:.2f}/s, {SHARE:.0%} of that.",
        highlight=False,
    )
    return sustained, scale


def long_enough(model: LlmModel, scale: float, seed: int, prompts: Prompts) -> int:
    """A minute in ns, or more on a slow machine: every tier with targets must send enough requests to be judged."""
    needed = {tier: samples_needed(promised.at) for tier, promised in model.targets.items() if tier in model.traffic}
    duration = MINUTE
    while duration < LONGEST:
        planned = schedule(model.traffic, duration, scale, seed, prompts, model.max_model_len)
        if all(sum(request.tier == tier for request in planned) >= count for tier, count in needed.items()):
            break
        duration += MINUTE // 6
    return duration
