"""`gapless loadtest`: the declared traffic of all models against a running server, and a verdict per promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from config_gen.sla import quantity
from config_gen.sla.spec import LlmModel, load
from gapless.parts import notes, pick_parts
from gapless.results import check_outputs, write_json
from loadtest import report, verdict
from loadtest.run import Client, Job, LoadtestError
from loadtest.run import Progress as Seen
from loadtest.run import run as run_job
from loadtest.samples import Sample
from loadtest.schedule import Part, schedule

DRAIN = 30 * 10**9  # ns


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
    model: Annotated[str | None, typer.Option(help="model to load alone; default: all that have traffic")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json that counts the tokens of texts")] = None,
    samples: Annotated[Path | None, typer.Option(help="write raw samples, one JSON line a request")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the report as JSON")] = None,
) -> None:
    """Exit 0 when all targets were kept, 1 when not or when the run gives no verdict, 2 on bad input."""
    check_outputs(samples=samples, json=json_file)
    parts = pick_parts(load(sla), model, tokenizer)
    result = load_models(parts, url, duration, rate_scale, seed, samples)
    tell(result, json_file)
    raise typer.Exit(0 if result.held else 1)


def load_models(
    parts: Sequence[Part], url: str, duration: int, rate_scale: float, seed: int, samples: Path | None = None
) -> report.Report:
    """Send the declared traffic of all parts together and judge each."""
    planned = schedule(parts, duration, rate_scale, seed)
    if not planned:
        raise LoadtestError(
            f"--duration: no request falls into {duration / 1e9:g} s at these rates; load longer or faster"
        )
    with progress_bar("Loading", duration) as seen:
        taken, client = run_job(Job(url, planned, duration, DRAIN), samples, seen)
    models = [judged(part, [s for s in taken if s.model == part.name], duration, client) for part in parts]
    return report.Report(duration, seed, rate_scale, client, models, notes(parts))


def judged(part: Part, taken: Sequence[Sample], duration: int, client: Client) -> report.ModelReport:
    """The numbers of one model's samples, and a verdict on each of its promises."""
    model = part.model
    classes = verdict.summarize(taken, list(model.traffic), duration, isinstance(model, LlmModel), model.targets)
    return report.ModelReport(part.name, classes, verdict.judge(classes, model.targets, model.traffic, client))


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
