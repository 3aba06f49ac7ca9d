"""`gapless loadtest`: the declared traffic against a running server, and a verdict per promise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from config_gen import quantity
from config_gen.spec import LlmModel, Spec, SpecError, load
from gapless.results import check_outputs, write_json
from loadtest import prompts, report, verdict
from loadtest.arrivals import schedule
from loadtest.run import Job, LoadtestError
from loadtest.run import Progress as Seen
from loadtest.run import run as run_job

DRAIN = 30 * 10**9  # ns
REPOSITORY = Path("model_repository")


def duration_option(what: str = "how long to send") -> Any:
    """`--duration 60s`, in ns."""
    return typer.Option(help=what, parser=_duration, metavar="TIME")


def _duration(text: str) -> int:
    try:
        return quantity.duration(text)
    except quantity.QuantityError as error:
        raise typer.BadParameter(str(error)) from None


def run(
    sla: Annotated[Path, typer.Argument(help="SLA file", metavar="SLA.yaml")],
    url: Annotated[str, typer.Option(help="gRPC endpoint of the server")] = "127.0.0.1:8001",
    duration: Annotated[int, duration_option()] = "60s",  # type: ignore[assignment]
    rate_scale: Annotated[float, typer.Option(help="multiply the declared rates", min=1e-6, max=1e6)] = 1.0,
    seed: Annotated[int, typer.Option(help="arrivals, lengths and prompts follow from it")] = 0,
    model: Annotated[str | None, typer.Option(help="model to load; needed when the file declares several")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json that counts prompt tokens")] = None,
    samples: Annotated[Path | None, typer.Option(help="write raw samples, one JSON line a request")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the report as JSON")] = None,
) -> None:
    """Exit 0 when all targets were kept, 1 when not or when the run gives no verdict, 2 on bad input."""
    check_outputs(samples=samples, json=json_file)
    name, declared = pick_model(load(sla), model)
    drawn = find_prompts(name, tokenizer)
    result = load_model(name, declared, drawn, url, duration, rate_scale, seed, samples)
    tell(result, json_file)
    raise typer.Exit(0 if result.held else 1)


def pick_model(spec: Spec, wanted: str | None) -> tuple[str, LlmModel]:
    """The model to load. Raises SpecError when it is not there or has no traffic."""
    names = ", ".join(spec.models)
    if wanted is None and len(spec.models) > 1:
        raise SpecError(f"--model is needed; the file declares {names}")
    name = wanted or next(iter(spec.models))
    if name not in spec.models:
        raise SpecError(f"--model: '{name}' is not in the file; it declares {names}")
    model = spec.models[name]
    if not isinstance(model, LlmModel):
        raise SpecError(f"models.{name}.kind: '{model.kind}' cannot be loaded alone; allowed: llm")
    if not model.traffic:
        raise SpecError(f"models.{name}.traffic: is empty; declare what at least one tier sends")
    return name, model


def find_prompts(model: str, tokenizer: Path | None) -> prompts.Prompts:
    """Prompts counted by the given tokenizer, by that of the model repository, or else by words."""
    built = REPOSITORY / model / "1" / "tokenizer.json"
    path = tokenizer or (built if os.path.exists(built) else None)
    if path is None:
        return prompts.by_words()
    return prompts.by_tokenizer(path)


def load_model(
    name: str,
    declared: LlmModel,
    drawn: prompts.Prompts,
    url: str,
    duration: int,
    rate_scale: float,
    seed: int,
    samples: Path | None = None,
) -> report.Report:
    """Send the declared traffic and judge it."""
    planned = schedule(declared.traffic, duration, rate_scale, seed, drawn, declared.max_model_len)
    if not planned:
        raise LoadtestError(
            f"--duration: no request falls into {duration / 1e9:g} s at these rates; load longer or faster"
        )
    with progress_bar("Loading", duration) as seen:
        taken, client = run_job(Job(url, name, planned, duration, DRAIN), samples, seen)
    classes = verdict.summarize(taken, list(declared.traffic), duration)
    verdicts = verdict.judge(classes, declared.targets, declared.traffic, client)
    return report.Report(name, duration, seed, rate_scale, client, classes, verdicts, [f"Prompts: {drawn.measure}."])


def tell(result: report.Report, json_file: Path | None) -> None:
    """Print the report, and write it where asked."""
    report.show(result, Console())
    write_json(json_file, report.as_json(result))


@contextmanager
def progress_bar(what: str, duration: int) -> Iterator[Callable[[Seen], None]]:
    """A bar of `duration` ns on stderr; the yielded function moves it."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[seen]}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task(what, total=duration, seen="")

        def move(seen: Seen) -> None:
            text = f"{seen.ended} ended, {seen.in_flight} in flight, {seen.failed} refused or failed"
            bars.update(bar, completed=min(seen.now, duration), seen=text)

        yield move
