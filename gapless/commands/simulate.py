"""`gapless simulate`: the declared traffic on the virtual clock, through the scheduler that serves, and a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.progress import Progress

from config_gen.planning.llm_options import options
from config_gen.sla.arrivals import chance
from config_gen.sla.spec import LlmModel, Spec, load
from decode.assembly import CPU_KV_MEMORY
from decode.config import EngineConfig, Policy, pages_in
from decode.executors.cost_model import Law, Measured
from decode.executors.gpu_cost import GpuLaw, GpuMemory, ModelShape, gpu_table
from decode.executors.model_config import ModelConfig
from decode.options import ServiceOptions
from gapless import rounds_simulated as case
from gapless import simulation
from gapless.commands.loadtest import duration_option
from gapless.errors import UsageError
from gapless.parts import REPOSITORY, pick_llm
from gapless.results import check_outputs, write_json
from loadtest import report


@dataclass(frozen=True)
class Machine:
    """What steps cost on it and what its memory holds, from wherever that is known; `told` is a sentence about that."""

    law: Law
    config: EngineConfig
    told: str
    memory: GpuMemory | None = None  # of a GPU


def run(
    sla: Annotated[Path, typer.Argument(help="SLA file", metavar="SLA.yaml")],
    law: Annotated[Path | None, typer.Option(help="what `gapless bench engine --law` wrote")] = None,
    gpu: Annotated[str | None, typer.Option(help="instead of a law: the type of a GPU, as a100-80gb")] = None,
    model_dir: Annotated[Path | None, typer.Option(help="folder with the model's config.json; with --gpu")] = None,
    duration: Annotated[int, duration_option()] = "10min",  # type: ignore[assignment]
    rate_scale: Annotated[float, typer.Option(help="multiply the declared rates", min=1e-6, max=1e6)] = 1.0,
    seed: Annotated[int, typer.Option(help="arrivals and lengths follow from it")] = 0,
    policy: Annotated[str | None, typer.Option(help="weighted, priority, fcfs")] = None,
    option: Annotated[list[str] | None, typer.Option(help="key=value: overrides an option of the model")] = None,
    model: Annotated[str | None, typer.Option(help="model to load; needed when the file declares several LLMs")] = None,
    replicas: Annotated[int, typer.Option(help="machines alike, that get the requests in turn", min=1)] = 1,
    rounds: Annotated[bool, typer.Option("--rounds", help="the reported case: four configurations in turn")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the report as JSON")] = None,
) -> None:
    """Exit 0 when all targets were kept, 1 when not, 2 on bad input."""
    check_outputs(sla, json=json_file)
    if gpu is not None and law is not None:
        raise UsageError("--law and --gpu both say what a step costs; give one of them")
    spec = load(sla)
    name, declared = pick_llm(spec, model)
    service = served(spec, declared, policy, option or [])
    machine = modelled(gpu, model_dir or REPOSITORY / name / "1", service) if gpu else measured(law, service)
    traffic = simulation.Load(name, declared, duration, rate_scale, seed, chance(spec.models, name))
    if rounds:
        with share_bar("Simulating") as seen:
            found = case.run(traffic, machine.config, machine.law, machine.memory, seen)
        Console().print(case.table(found), machine.told, sep="\n\n", highlight=False)
        write_json(json_file, case.as_json(found))
        return
    began = time.perf_counter()
    with share_bar("Simulating") as seen:
        result = simulation.run(traffic, machine.config, machine.law, replicas, [machine.told], seen)
    taken = time.perf_counter() - began
    console = Console()
    report.show(result.report, console)
    for line in result.lines():
        console.print(line, highlight=False)
    real = result.outcome.span / 1e9 * replicas
    console.print(
        f"Simulated in {taken:.1f} s, {real / taken:.0f} times as fast as real time.",
        style="dim",
        highlight=False,
    )
    write_json(json_file, result.as_json())
    raise typer.Exit(0 if result.report.held else 1)


@contextmanager
def share_bar(what: str) -> Iterator[Callable[[float], None]]:
    """A bar on stderr; the yielded function moves it to a share from 0 to 1."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task(what, total=1.0)
        yield lambda share: bars.update(bar, completed=share)


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
    service = ServiceOptions.from_parameters(chosen)
    known = [tier.name for tier in service.tiers]
    if lost := [tier for tier in model.traffic if tier not in known]:
        raise UsageError(f"--option: tiers: {', '.join(known)} leaves out {lost[0]}, which has traffic in the file")
    return service


def measured(path: Path | None, service: ServiceOptions) -> Machine:
    """A machine whose steps were measured. Raises UsageError, LawError or ConfigError."""
    if path is None:
        raise UsageError(
            "--law or --gpu is needed: what a step costs; `gapless bench engine WORKLOAD --law FILE` measures it here"
        )
    found = Measured.read(path)
    if found.weights != service.weights:
        raise UsageError(
            f"--law: {path} was measured with {found.weights} weights, and the model has {service.weights}; measure it "
            f"with --weights {service.weights}"
        )
    pages = pages_in(service.kv_cache_memory or CPU_KV_MEMORY, service.page_size, found.kv_bytes_per_token)
    told = f"Steps cost what was measured on {found.machine}: {found.told()}"
    return Machine(found.law, service.engine_config(pages, found.max_model_len), told)


def modelled(gpu: str, model_dir: Path, service: ServiceOptions) -> Machine:
    """A GPU whose operators were measured. Raises GpuError, ModelError or ConfigError."""
    model, table = ModelConfig.read(model_dir), gpu_table(gpu)
    law = GpuLaw(table, ModelShape.of(model), service.weights)
    memory = law.memory()
    room = service.kv_cache_memory or memory.tokens(service.gpu_memory_utilization) * memory.kv_per_token
    pages = pages_in(room, service.page_size, memory.kv_per_token)
    how = "estimated from the datasheet" if table.raw["estimated"] else "put together from measured operators"
    told = f"Steps of a {table.name} are {how}; what the host needs between steps is not in them."
    return Machine(law, service.engine_config(pages, model.max_position_embeddings), told, memory)
