"""`gapless demo`: builds, configures and serves the models of a file, measures what they sustain, loads 60 %, judges.

Wires the other commands; the server it starts is gone when it ends, however it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from config_gen.facts import Facts
from config_gen.percentiles import samples_needed
from config_gen.plan import Plan
from config_gen.planning.plans import plan
from config_gen.sla.spec import LlmModel, Spec, load
from gapless import loads
from gapless.child import server
from gapless.commands.build import build, build_law, build_onnx
from gapless.commands.loadtest import duration_option, tell, write_samples
from gapless.generation import generate_repository
from gapless.loads import progress_bar
from gapless.parts import REPOSITORY, at_rates, loaded, pick_parts
from gapless.planning import facts
from gapless.results import check_outputs
from gapless.signals import leave_like_an_exception
from loadtest import capacity
from loadtest.schedule import Part, schedule

BURST = 12 * 10**9  # ns of the capacity measurement
BURST_REQUESTS = 20_000  # more than a burst can end
SHARE = 0.6  # of the capacity, that the load asks for
MINUTE = 60 * 10**9  # ns
LONGEST = 5 * MINUTE
MOST_TIMES = 8.0  # the declared rates: each doubling is a plan of its own
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
    check_outputs(sla, samples=samples, json=json_file)
    spec = load(sla)
    parts = built(console, spec, sla)
    times, chosen = farthest(console, spec, facts(spec, sla, REPOSITORY))
    generate_repository(chosen, REPOSITORY, sla)
    console.print("Starting the server …")
    with server(REPOSITORY, list(spec.models), {}, LOG) as url:
        sustained, scale = fit(console, url, parts, seed)
        duration = duration or long_enough(parts, scale, seed)
        console.print(f"Loading it for {duration / 1e9:g} s …", highlight=False)
        sent = loads.declared(parts, duration, scale, seed)
        taken = loads.send(sent, url)
    write_samples(samples, taken)
    result = loads.reported(sent, taken)
    planned_for = f"Settings planned for {times:g} times the declared rates"
    if not chosen.held:
        planned_for = "By prediction no plan keeps every target at the declared rates; the nearest was loaded"
    note = (
        f"{planned_for}. Capacity measured: {sustained:.2f} requests/s of "
        f"this mix. Declared rates scaled by {scale:.2f}, to {SHARE:.0%} of it."
    )
    console.print()
    result = replace(result, notes=[*result.notes, note])
    tell(result, json_file)
    raise typer.Exit(0 if result.held else 1)


def built(console: Console, spec: Spec, sla: Path) -> list[Part]:
    """Build every model of the file; those that have traffic, with texts counted by what was built."""
    loaded(spec, None)  # raises what cannot be done before minutes are spent on building
    for name, model in spec.models.items():
        console.print(f"Building {name} from {model.source} …", highlight=False)
        if isinstance(model, LlmModel):
            build(name, model.source, REPOSITORY / name / "1")
            build_law(name, model, spec, REPOSITORY / name / "1")
        else:
            build_onnx(name, model, REPOSITORY / name / "1", sla, profile=True)
    return pick_parts(spec, None)


def farthest(console: Console, spec: Spec, known: Mapping[str, Facts]) -> tuple[float, Plan]:
    """The plan for the most times the declared rates, by doubling, at which one keeps every target; or for the rates.

    Which machine this is nobody knows yet: the load that follows may be far above what the file declares.
    """
    times, best = 1.0, plan(spec, known)
    console.print("Planning …")
    while best.held and times < MOST_TIMES and (more := plan(at_rates(spec, 2 * times), known, advice=False)).held:
        times, best = 2 * times, more
    return times, best


def fit(console: Console, url: str, parts: Sequence[Part], seed: int) -> tuple[float, float]:
    """Capacity of the declared mix in requests/s, and the scale at which the declared rates are SHARE of it."""
    declared = sum(part.rate for part in parts)
    long = int(BURST_REQUESTS / declared * 1e9)
    # Another seed than that of the load: its prompts must not be in the cache already.
    mix = schedule(parts, long, 1.0, seed + 1)
    console.print(f"Measuring capacity for {BURST / 1e9:g} s …", highlight=False)
    with progress_bar("Measuring capacity", BURST) as seen:
        sustained = capacity.measure(url, mix, BURST, seen)
    scale = SHARE * sustained / declared
    console.print(
        f"It sustains {sustained:.2f} requests/s of this mix; the declared {declared:g}/s are scaled by {scale:.2f} to "
        f"{SHARE * sustained:.2f}/s, {SHARE:.0%} of that.",
        highlight=False,
    )
    return sustained, scale


def long_enough(parts: Sequence[Part], scale: float, seed: int) -> int:
    """A minute in ns, or more on a slow machine: every tier with targets must send enough requests to be judged."""
    duration = MINUTE
    while duration < LONGEST and not all(_enough(part, duration, scale, seed) for part in parts):
        duration += MINUTE // 6
    return duration


def _enough(part: Part, duration: int, scale: float, seed: int) -> bool:
    targets, traffic = part.model.targets, part.model.traffic
    sent = Counter(arrival.tier for arrival in part.arrivals(duration, scale, seed))
    return all(sent[tier] >= samples_needed(promised.at) for tier, promised in targets.items() if tier in traffic)
