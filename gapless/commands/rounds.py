"""`gapless rounds`: the reported case on the real server, four configurations in turn under the same load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from config_gen.planning.llm_options import options
from config_gen.sla.spec import load as read_spec
from decode.executors.model_config import ModelConfig
from gapless import bars, rounds, rounds_figures, rounds_report
from gapless.commands.loadtest import duration_option
from gapless.machine import describe
from gapless.parts import REPOSITORY, find_prompts, pick_llm
from gapless.results import check_outputs, write_json
from gapless.signals import leave_like_an_exception

OUT = Path("out/rounds")


def run(
    sla: Annotated[Path, typer.Argument(help="SLA file with the traffic and the tiers.")] = Path("sla/rounds.yaml"),
    duration: Annotated[int, duration_option("of the usual load")] = "2min",  # type: ignore[assignment]
    load: Annotated[float, typer.Option(help="Usual load: times what round 1 serves.", min=0.01, max=100)] = 1.0,
    repeat: Annotated[int, typer.Option(help="Runs of all rounds.", min=1, max=100)] = 1,
    repository: Annotated[Path, typer.Option(help="Model repository with a built `chat`.")] = REPOSITORY,
    seed: Annotated[int, typer.Option(help="Arrivals, lengths and prompts; one more each run.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all results here.")] = None,
) -> None:
    """One at a time; continuous; prefix cache; tiers: what each serves, and how soon. Exit 1 when a bar is missed."""
    leave_like_an_exception()  # so that servers are stopped
    check_outputs(sla, json=json_file)
    spec = read_spec(sla)
    _, model = pick_llm(spec, rounds.MODEL)
    built = repository / rounds.MODEL / "1"
    longest = ModelConfig.read(built).max_position_embeddings
    prompts = find_prompts(rounds.MODEL, built / "tokenizer.json")
    console = Console()
    console.print(f"{describe()}\nPrompts: {prompts.measure}", highlight=False, soft_wrap=True)

    def told(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    runs = []
    for at in range(repeat):
        case = rounds.Case(
            repository, model, options(spec, model), longest, prompts, duration, load, seed + at * 10, OUT / str(at + 1)
        )
        measured = rounds.measure(case, told)
        runs.append([rounds_report.row(one, model, spec) for one in measured])
        for picture in rounds_figures.figures(measured, runs[-1], model):
            (case.out / f"{picture.name}.png").write_bytes(picture.png)
        console.print(rounds_report.table(runs[-1]), *rounds_report.lagged(runs[-1]), sep="\n", highlight=False)
    told(f"Pictures, raw samples and what was sampled of the server: {OUT}")
    claims = rounds_report.bars(runs)
    for claim in claims:
        told(bars.line(claim))
    void = any(rounds_report.lagged(rows) for rows in runs)
    found = {"machine": describe(), "sla": sla.name, "load": load, "duration_s": duration / 1e9, "seed": seed}
    write_json(json_file, found | {"runs": runs, "bars": [claim.as_json() for claim in claims]})
    raise typer.Exit(0 if all(claim.held for claim in claims) and not void else 1)
