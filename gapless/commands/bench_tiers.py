"""`gapless bench tiers`: mixed traffic of several tiers under each policy in turn, on the real server."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from config_gen.planning.llm_options import options
from config_gen.sla.spec import Targets
from config_gen.sla.spec import load as read_spec
from decode.config import Policy
from decode.executors.model_config import Precision
from gapless import tiers, tiers_load
from gapless.commands.loadtest import duration_option
from gapless.errors import UsageError
from gapless.machine import describe
from gapless.parts import find_prompts, pick_llm
from gapless.results import check_outputs, write_json


def run(
    sla: Annotated[Path, typer.Argument(help="SLA file with the traffic, the tiers and the targets.")] = Path(
        "sla/tiers.yaml"
    ),
    scenario: Annotated[str, typer.Option(help="mixed, overload, promise; comma separated.")] = "mixed",
    policies: Annotated[
        str, typer.Option(help="fcfs, priority, weighted; comma separated.")
    ] = "fcfs,priority,weighted",
    weights: Annotated[str, typer.Option(help="fp32, int8, bf16, fp16; comma separated.")] = "fp32",
    load: Annotated[float | None, typer.Option(help="Times capacity; default 1.3, promise 0.9.", min=0.01)] = None,
    duration: Annotated[int, duration_option()] = "60s",  # type: ignore[assignment]
    repeat: Annotated[int, typer.Option(help="Rounds of all policies in turn.", min=1)] = 1,
    repository: Annotated[Path, typer.Option(help="Model repository with a built `chat`.")] = Path("model_repository"),
    itl: Annotated[int | None, duration_option("ITL target of the first tier, in place of the file's.")] = None,
    seed: Annotated[int, typer.Option(help="Arrivals, lengths and prompts; one more each round.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all results here.")] = None,
) -> None:
    """Mixed traffic of several tiers under each policy, on the real server. Exit 1 when a bar is missed."""
    check_outputs(sla, json=json_file)
    spec = read_spec(sla)
    _, model = pick_llm(spec, tiers.MODEL)
    if itl is not None:
        first = next(iter(model.traffic))
        promised = (model.targets.get(first) or Targets(itl=itl)).model_copy(update={"itl": itl})
        model = model.model_copy(update={"targets": {**model.targets, first: promised}})
    prompts = find_prompts(tiers.MODEL, repository / tiers.MODEL / "1" / "tokenizer.json")
    runs = tiers.Bench(repository, model, options(spec, model) | tiers.LIMITS, prompts, duration, seed)
    chosen = choices("policies", policies, get_args(Policy))
    cases = product(
        choices("weights", weights, get_args(Precision)), choices("scenario", scenario, get_args(tiers_load.Scenario))
    )
    console = Console()
    console.print(f"{describe()}\nPrompts: {prompts.measure}", highlight=False, soft_wrap=True)
    results = [tiers.measure(runs, w, s, load or tiers_load.LOADS[s], chosen, repeat, console) for w, s in cases]
    write_json(json_file, {"machine": describe(), "sla": sla.name, "results": results})
    held = all(bar["held"] for found in results for bar in found["bars"])
    raise typer.Exit(0 if held and not any(found["no_verdict"] for found in results) else 1)


def choices(name: str, text: str, allowed: tuple[str, ...]) -> list[Any]:
    """The values of a comma-separated option. Raises UsageError on one that is not allowed."""
    values = text.split(",")
    for value in values:
        if value not in allowed:
            raise UsageError(f"--{name}: {value!r} is not allowed; {', '.join(allowed)}")
    return values
