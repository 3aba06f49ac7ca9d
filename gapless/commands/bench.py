"""`gapless bench`: a workload file through the decode loop alone or through Triton, alternatives in turn."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.progress import Progress

from config_gen.percentiles import percentile
from decode import accuracy_gate, bench
from decode.assembly import build_executor, engine_config
from decode.config import Mode
from decode.executors.cost_model import Step
from decode.executors.model_config import ModelConfig, Precision
from decode.executors.torch_paged import TorchExecutor
from decode.options import ServiceOptions
from decode.workload import Workload
from gapless import bench_report, served
from gapless import law as laws
from gapless.commands import bench_batching, bench_generator, bench_plan, bench_tiers
from gapless.commands.bench_tiers import choices
from gapless.errors import UsageError
from gapless.machine import describe
from gapless.results import check_outputs, write_json

app = typer.Typer(no_args_is_help=True, help="Measure the engine on this machine.")
app.command("tiers")(bench_tiers.run)
app.command("batching")(bench_batching.run)
app.command("plan")(bench_plan.run)
app.command("generator")(bench_generator.run)


@app.command()
def engine(
    workload: Annotated[Path, typer.Argument(help="Workload file: prompt token ids and output lengths.")],
    model_dir: Annotated[Path, typer.Option(help="What `gapless build` wrote.")] = Path("model_repository/chat/1"),
    concurrency: Annotated[str, typer.Option(help="Values of max_num_seqs, comma separated.")] = "1,8,32",
    mode: Annotated[str, typer.Option(help="serial, static, continuous; comma separated.")] = "continuous",
    prefix_cache: Annotated[str, typer.Option(help="on, off; comma separated.")] = "on,off",
    weights: Annotated[str, typer.Option(help="fp32, int8, bf16, fp16; comma separated.")] = "fp32",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N.")] = "cpu",
    threads: Annotated[int, typer.Option(help="0 = all cores.")] = 0,
    max_num_batched_tokens: Annotated[int, typer.Option()] = 256,
    kv_cache_memory: Annotated[str, typer.Option(help="Memory of KV pages (CPU), as 512MiB or 2GiB.")] = "2GiB",
    limit: Annotated[int | None, typer.Option(help="Only the first N requests.", min=1)] = None,
    rate: Annotated[float | None, typer.Option(help="Poisson arrivals per second; default: all at once.")] = None,
    repeat: Annotated[int, typer.Option(help="Runs of each alternative, taken in turn.", min=1)] = 3,
    law: Annotated[
        Path | None, typer.Option(help="Fit what a step costs, for `gapless simulate`; write it here.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all results here.")] = None,
) -> None:
    """Replay a workload at each concurrency, mode, cache setting and weight format; print medians, write everything.

    Serial mode runs once: it takes one request at a time, whatever the concurrency.
    """
    check_outputs(json=json_file, law=law)
    if law is not None and "," in weights:
        raise UsageError(f"--law: {weights} has a law each; give --weights one of them")
    _check_rate(rate)
    numbers = _numbers("concurrency", concurrency)
    work = Workload.read(workload, limit, ModelConfig.read(model_dir).vocab_size)
    base = ServiceOptions.from_parameters(
        {
            "device": device,
            "threads": str(threads),
            "max_num_batched_tokens": str(max_num_batched_tokens),
        }
        | ({"kv_cache_memory": kv_cache_memory} if device == "cpu" else {})
    )
    cases = _cases(base, weights, mode, prefix_cache, numbers)
    console = Console()
    steps: list[Step] = []
    executors: dict[str, TorchExecutor] = {}
    results = _run_all(work, model_dir, cases, repeat, rate, console, steps, executors)
    console.print(bench_report.rates(results), bench_report.split(results), sep="\n\n")
    found = _report(work, workload, rate, results)
    if any(case.weights == "int8" for case in cases):
        found["int8_accuracy"] = accuracy_gate.gate(model_dir)
    try:
        if law is not None:
            model, case = ModelConfig.read(model_dir), cases[0]
            found["law"] = laws.write(law, steps, work, rate, model, case, executors[case.weights], console)
    finally:  # whatever becomes of the law, what was measured is kept
        write_json(json_file, found)


@app.command()
def triton(
    workload: Annotated[Path, typer.Argument(help="Workload file: prompt token ids and output lengths.")],
    repository: Annotated[Path, typer.Option(help="Model repository with a built `chat`.")] = Path("model_repository"),
    concurrency: Annotated[str, typer.Option(help="Values of max_num_seqs, comma separated.")] = "32",
    weights: Annotated[str, typer.Option(help="fp32, int8, bf16, fp16; comma separated.")] = "fp32",
    max_num_batched_tokens: Annotated[int, typer.Option()] = 256,
    limit: Annotated[int | None, typer.Option(help="Only the first N requests.", min=1)] = None,
    rate: Annotated[float | None, typer.Option(help="Poisson arrivals per second; default: all at once.")] = None,
    repeat: Annotated[int, typer.Option(help="Runs of each, engine and Triton in turn.", min=1)] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all results here.")] = None,
) -> None:
    """The same workload through the engine alone and through Triton's gRPC streaming, in turn, and their ratio."""
    check_outputs(json=json_file)
    _check_rate(rate)
    vocabulary = ModelConfig.read(repository / served.MODEL / "1").vocab_size
    work = Workload.read(workload, limit, vocabulary)
    base = ServiceOptions(max_num_batched_tokens=max_num_batched_tokens)
    cases = [
        replace(base, max_num_seqs=c, weights=w)
        for w, c in product(choices("weights", weights, get_args(Precision)), _numbers("concurrency", concurrency))
    ]
    console, results = Console(), []
    for case in cases:
        results.append(served.compare(work, repository, case, rate, repeat, console))
    console.print(served.table(results))
    write_json(json_file, _report(work, workload, rate, results))


def _cases(
    base: ServiceOptions, weights: str, mode: str, prefix_cache: str, numbers: list[int]
) -> list[ServiceOptions]:
    """Every alternative that the words of the command line ask for. Raises UsageError."""
    return [
        replace(base, mode=m, max_num_seqs=c, prefix_cache=p == "on", weights=w)
        for w, m, p in product(
            choices("weights", weights, get_args(Precision)),
            choices("mode", mode, get_args(Mode)),
            choices("prefix-cache", prefix_cache, ("on", "off")),
        )
        for c in ([1] if m == "serial" else numbers)
    ]


def _report(work: Workload, path: Path, rate: float | None, results: list[dict[str, Any]]) -> dict[str, Any]:
    head = {"machine": describe(), "workload": path.name, "requests": len(work.requests), "rate_per_s": rate}
    return {**head, "results": results}


@app.command()
def scheduler(
    running: Annotated[int, typer.Option(help="Sequences that decode.", min=1)] = 1000,
    waiting: Annotated[int, typer.Option(help="Requests that wait.", min=0)] = 10_000,
    steps: Annotated[int, typer.Option(help="Steps to measure.", min=1, max=200)] = 100,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result here.")] = None,
) -> None:
    """What a step costs the scheduler (plan and commit) at scale, without a model."""
    check_outputs(json=json_file)
    taken = sorted(bench.scheduling(running, waiting, steps))
    shown = {f"p{q}": round(percentile(taken, Fraction(q, 100)) * 1e3, 3) for q in (50, 95, 99)}
    Console().print(
        f"{running} running, {waiting} waiting: plan and commit take {shown['p50']} ms a step at the median, "
        f"{shown['p99']} ms at P99, over {steps} steps",
        highlight=False,
    )
    if json_file is not None:
        write_json(json_file, {"machine": describe(), "running": running, "waiting": waiting, "ms": shown})


def _check_rate(rate: float | None) -> None:
    if rate is not None and not 1e-6 <= rate <= 1e6:
        raise UsageError(f"--rate: {rate:g} is not allowed; arrivals per second from 1e-06 to 1e+06")


def _numbers(name: str, text: str) -> list[int]:
    if not re.fullmatch(r"0*[1-9][0-9]{0,5}(,0*[1-9][0-9]{0,5})*", text, re.ASCII):
        raise UsageError(f"--{name}: {text[:60]!r} is not allowed; whole numbers from 1 to 999999, comma separated")
    return [int(part) for part in text.split(",")]


def _run_all(
    work: Workload,
    model_dir: Path,
    cases: list[ServiceOptions],
    repeat: int,
    rate: float | None,
    console: Console,
    steps: list[Step],
    executors: dict[str, TorchExecutor],
) -> list[dict[str, Any]]:
    """Every case once, then every case again …: noise of the machine falls on all alike.

    What `steps` and `executors` (by weights) hold at the end is for the caller.
    """
    model = ModelConfig.read(model_dir)
    runs: list[list[dict[str, Any]]] = [[] for _ in cases]
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("replaying", total=repeat * len(cases))
        for _ in range(repeat):
            for at, case in enumerate(cases):
                config = engine_config(model, case)
                if case.weights not in executors:
                    executors[case.weights] = build_executor(model_dir, config, case)
                progress.update(task, description=bench_report.name(case))
                run = bench.measure(work, config, executors[case.weights], rate, steps)
                runs[at].append(bench.summary(run, work, percentile))
                progress.advance(task)
    return [bench_report.merge(case, group) for case, group in zip(cases, runs, strict=True)]
