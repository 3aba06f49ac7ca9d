"""`gapless rounds`: the reported case on the real server, four configurations in turn under the same load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from config_gen.planning.llm_options import options
from config_gen.sla.spec import Spec
from config_gen.sla.spec import load as read_spec
from decode.executors.model_config import ModelConfig
from gapless import bars, rounds, rounds_figures, rounds_report
from gapless.commands.loadtest import duration_option
from gapless.machine import describe
from gapless.parts import REPOSITORY, find_prompts, pick_llm
from gapless.results import check_folder, check_outputs, write_folder, write_json
from gapless.signals import leave_like_an_exception

OUT = Path("out/rounds")


def run(
    sla: Annotated[Path, typer.Argument(help="SLA file with the traffic and the tiers.")] = Path("sla/rounds.yaml"),
    duration: Annotated[int, duration_option("of the usual load")] = "2min",  # type: ignore[assignment]
    load: Annotated[float, typer.Option(help="Usual load: times what round 1 serves.", min=0.01, max=100)] = 1.0,
    repeat: Annotated[int, typer.Option(help="Runs of all rounds.", min=1, max=100)] = 1,
    repository: Annotated[Path, typer.Option(help="Model repository with a built `chat`.")] = REPOSITORY,
    seed: Annotated[int, typer.Option(help="Arrivals, lengths and prompts; one more each run.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of pictures, raw samples, samples of the server.")] = OUT,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all results here.")] = None,
) -> None:
    """One at a time; continuous; prefix cache; tiers: what each serves, and how soon. Exit 1 when a bar is missed."""
    leave_like_an_exception()  # so that servers are stopped
    check_outputs(sla, json=json_file)
    check_folder("out", out)
    spec = read_spec(sla)
    _, model = pick_llm(spec, rounds.MODEL)
    built = repository / rounds.MODEL / "1"
    longest = ModelConfig.read(built).max_position_embeddings
    prompts = find_prompts(rounds.MODEL, built / "tokenizer.json")
    tell(f"{describe()}\nPrompts: {prompts.measure}")
    common = rounds.Case(repository, model, options(spec, model), longest, prompts, duration, load, seed, out)
    cases = [replace(common, seed=seed + 10 * at, out=out / str(at + 1)) for at in range(repeat)]
    runs = [_measured(case, spec) for case in cases]
    tell(f"Pictures, raw samples and what was sampled of the server: {out}")
    claims = rounds_report.bars(runs)
    for claim in claims:
        tell(bars.line(claim))
    void = any(rounds_report.lagged(rows) for rows in runs)
    found = {"machine": describe(), "sla": sla.name, "load": load, "duration_s": duration / 1e9, "seed": seed}
    write_json(json_file, found | {"runs": runs, "bars": [claim.as_json() for claim in claims]})
    raise typer.Exit(0 if all(claim.held for claim in claims) and not void else 1)


def _measured(case: rounds.Case, spec: Spec) -> list[dict[str, Any]]:
    """One run of all rounds, told and drawn."""
    measured = rounds.measure(case, tell)
    rows = [rounds_report.row(one, case.model, spec) for one in measured]
    pictures = {f"{one.name}.png": one.png for one in rounds_figures.figures(measured, rows, case.model)}
    write_folder(case.out, pictures, "out")
    Console().print(rounds_report.table(rows), *rounds_report.lagged(rows), sep="\n", highlight=False)
    return rows


def tell(line: str) -> None:
    Console().print(line, highlight=False, soft_wrap=True, markup=False)
