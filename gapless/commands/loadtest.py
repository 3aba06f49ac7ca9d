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
from gapless.baseline import Baseline
from gapless.commands.compare import THRESHOLD, threshold_option
from gapless.parts import notes, pick_parts
from gapless.results import check_outputs, write_json, write_text
from loadtest import comparison_report, recording, report, verdict
from loadtest.recording import Recording, Sent
from loadtest.run import Client, Job, LoadtestError
from loadtest.run import Progress as Seen
from loadtest.run import run as run_job
from loadtest.same_load import Asked
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
    baseline: Annotated[
        Path | None, typer.Option(help="samples of an earlier run to compare with; written when it does not exist")
    ] = None,
    threshold: Annotated[float, threshold_option()] = THRESHOLD,  # type: ignore[assignment]
    json_file: Annotated[Path | None, typer.Option("--json", help="write the report as JSON")] = None,
) -> None:
    """Exit 0 when all targets were kept and nothing got worse than the baseline, 1 when not, 2 on bad input.

    A run that gives no verdict exits with 1, too.
    """
    check_outputs(samples=samples, json=json_file)
    before = Baseline.open(baseline, (samples, json_file)) if baseline is not None else None
    parts = pick_parts(load(sla), model, tokenizer)
    taken = load_models(parts, url, duration, rate_scale, seed, before.check if before else lambda _: None)
    write_samples(samples, taken)
    result, console = reported(parts, taken), Console()
    report.show(result, console)
    lines = before.finish(taken, threshold, console) if before else []
    compared = {"comparison": comparison_report.as_json(lines, threshold)} if lines else {}
    write_json(json_file, report.as_json(result) | compared)
    raise typer.Exit(0 if result.held and not comparison_report.regressions(lines) else 1)


def load_models(
    parts: Sequence[Part],
    url: str,
    duration: int,
    rate_scale: float,
    seed: int,
    check: Callable[[Asked], None] = lambda _: None,
) -> Recording:
    """Send the declared traffic of all parts together; `check` may raise before it begins."""
    planned = schedule(parts, duration, rate_scale, seed)
    if not planned:
        raise LoadtestError(
            f"--duration: no request falls into {duration / 1e9:g} s at these rates; load longer or faster"
        )
    sent = {
        (part.name, tier): Sent(isinstance(part.model, LlmModel), part.model.targets.get(tier))
        for part in parts
        for tier in part.model.traffic
    }
    check(Asked.planned(planned, sent, duration))
    with progress_bar("Loading", duration) as seen:
        taken, client = run_job(Job(url, planned, duration, DRAIN), seen)
    return Recording(duration, seed, rate_scale, client, sent, taken)


def write_samples(path: Path | None, taken: Recording) -> None:
    """Where asked. Raises UsageError when it cannot be written."""
    if path is not None:
        write_text(path, recording.dumps(taken), "samples")


def reported(parts: Sequence[Part], taken: Recording) -> report.Report:
    """The numbers of what was sent to `parts`, and a verdict on each promise."""
    models = [
        judged(part, [one for one in taken.samples if one.model == part.name], taken.duration, taken.client)
        for part in parts
    ]
    return report.Report(taken.duration, taken.seed, taken.rate_scale, taken.client, models, notes(parts))


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
