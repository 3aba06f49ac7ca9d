"""`gapless simulate`: the declared traffic on the virtual clock, through the scheduler that serves, and a verdict."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from config_gen.spec import LlmModel, Spec, load
from decode.config import EngineConfig, Policy, pages_in
from decode.executors.cost_model import Law, Measured
from decode.options import ServiceOptions
from gapless import simulation
from gapless.commands.loadtest import duration_option, pick_model
from gapless.errors import UsageError
from gapless.limits import options
from gapless.results import check_outputs, write_json
from loadtest import report


@dataclass(frozen=True)
class Machine:
    """What steps cost on it and what its memory holds, from wherever that is known; `told` is a sentence about that."""

    law: Law
    config: EngineConfig
    told: str


def run(
    sla: Annotated[Path, typer.Argument(help="SLA file", metavar="SLA.yaml")],
    law: Annotated[Path | None, typer.Option(help="what `gapless bench engine --law` wrote")] = None,
    duration: Annotated[int, duration_option()] = "10min",  # type: ignore[assignment]
    rate_scale: Annotated[float, typer.Option(help="multiply the declared rates", min=1e-6, max=1e6)] = 1.0,
    seed: Annotated[int, typer.Option(help="arrivals and lengths follow from it")] = 0,
    policy: Annotated[str | None, typer.Option(help="weighted, priority, fcfs")] = None,
    option: Annotated[list[str] | None, typer.Option(help="key=value: overrides an option of the model")] = None,
    model: Annotated[str | None, typer.Option(help="model to load; needed when the file declares several")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the report as JSON")] = None,
) -> None:
    """Exit 0 when all targets were kept, 1 when not, 2 on bad input."""
    check_outputs(json=json_file)
    spec = load(sla)
    name, declared = pick_model(spec, model)
    machine = measured(law, served(spec, declared, policy, option or []))
    began = time.perf_counter()
    result = simulation.run(name, declared, machine.config, machine.law, duration, rate_scale, seed, [machine.told])
    taken = time.perf_counter() - began
    console = Console()
    report.show(result.report, console)
    for line in result.lines():
        console.print(line, highlight=False)
    console.print(
        f"Simulated in {taken:.1f} s, {result.outcome.span / 1e9 / taken:.0f} times as fast as real time.",
        style="dim",
        highlight=False,
    )
    write_json(json_file, result.as_json())
    raise typer.Exit(0 if result.report.held else 1)


def served(spec: Spec, model: LlmModel, policy: str | None, words: list[str]) -> ServiceOptions:
    """The options that the file's limits and the command line make. Raises UsageError or ConfigError."""
    if policy is not None and policy not in get_args(Policy):
        raise UsageError(f"--policy: {policy!r} is not allowed; {', '.join(get_args(Policy))}")
    chosen = options(spec, model) | ({} if policy is None else {"policy": policy})
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--option: {word!r} is not allowed; key=value")
        chosen[key] = value
    return ServiceOptions.from_parameters(chosen)


def measured(path: Path | None, service: ServiceOptions) -> Machine:
    """A machine whose steps were measured. Raises UsageError, LawError or ConfigError."""
    if path is None:
        raise UsageError("--law is needed: what a step costs; `gapless bench engine WORKLOAD --law FILE` measures it")
    found = Measured.read(path)
    if found.weights != service.weights:
        raise UsageError(
            f"--law: {path} was measured with {found.weights} weights, and the model has {service.weights}; measure it "
            f"with --weights {service.weights}"
        )
    pages = pages_in(service.kv_cache_memory, service.page_size, found.kv_bytes_per_token)
    fit = found.law.fit
    told = (
        f"Steps cost what was measured on {found.machine}: off by {fit.median:.1%} at the median and {fit.p95:.1%} at "
        f"P95, on {fit.held_out} steps that the law was not fitted to."
    )
    return Machine(found.law, service.engine_config(pages, found.max_model_len), told)
