"""`gapless loadtest`: traffic against a running server, declared or recorded, and a verdict per promise."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from config_gen.sla import quantity
from config_gen.sla.spec import Spec, load
from config_gen.sla.timing import Timing, TimingError, unevenness
from config_gen.sla.timing import rates as rates_of
from gapless import loads
from gapless.addresses import address_to_bind
from gapless.baseline import Baseline, missing, there
from gapless.commands.compare import THRESHOLD, threshold_option
from gapless.errors import UsageError
from gapless.parts import pick_parts
from gapless.results import check_apart, check_outputs, write_json, write_text
from gapless.signals import leave_like_an_exception
from loadtest import comparison_report, recording, report
from loadtest.comparison import Line
from loadtest.recording import Recording
from loadtest.replay import Choice
from loadtest.run import Crew
from loadtest.schedule import Part

if TYPE_CHECKING:
    from gapless.load_report import LoadReport

MINUTE = 60 * 10**9  # ns
MOST_USERS = 1000
WORKERS = "load generator processes that share the requests, where one is too small"
BIND = "wait here for these workers, `gapless loadworker` on other machines, instead; trusted networks only"
ARRIVALS = "poisson; constant: evenly spaced; bursts[:CV]: gaps with this coefficient of variation, 3 unless given"
RATES = (
    "how the rates move, as TIME:FACTOR points: straight lines between them, level before and after; two at one time "
    "are a step. 0s:1,60s:50 is a ramp, 30s:1,30s:50 a step, 30s:1,30s:50,40s:50,40s:1 a spike"
)
TRACE = (
    "replay a CSV file or JSON lines instead: timestamp, model, tier, prompt_tokens, output_tokens, or the columns of "
    "Azure's public LLM traces"
)
PAGE = "write a page, report.html, with all numbers and plots, and each plot as PNG"
METRICS = "of --report: Triton's metrics page, looked at meanwhile; default: port 8002 of the host of --url"


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
    duration: Annotated[int | None, duration_option("how long to send; 60s, or all of a trace, unless given")] = None,
    rate_scale: Annotated[float, typer.Option(help="multiply the rates", min=1e-6, max=1e6)] = 1.0,
    arrivals: Annotated[str | None, typer.Option(help=ARRIVALS, metavar="KIND")] = None,
    rates: Annotated[str | None, typer.Option(help=RATES, metavar="SHAPE")] = None,
    trace: Annotated[Path | None, typer.Option(help=TRACE)] = None,
    tier: Annotated[str | None, typer.Option(help="of a trace without this column: the tier of all its rows")] = None,
    users: Annotated[
        int | None,
        typer.Option(help="a closed loop instead, for comparison; gives no verdict", min=1, max=MOST_USERS),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(help="arrivals and lengths follow from it; words are others each run: caches outlive it"),
    ] = 0,
    model: Annotated[str | None, typer.Option(help="model to load alone; default: all that have traffic")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json that counts the tokens of texts")] = None,
    workers: Annotated[int, typer.Option(help=WORKERS, min=1, max=64)] = 1,
    bind: Annotated[str | None, typer.Option(help=BIND, metavar="HOST:PORT")] = None,
    ui: Annotated[bool, typer.Option("--ui", help="show locust's web page on a free local port meanwhile")] = False,
    samples: Annotated[Path | None, typer.Option(help="write raw samples, one JSON line a request")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="samples of an earlier run to compare with; written when it does not exist")
    ] = None,
    threshold: Annotated[float, threshold_option()] = THRESHOLD,  # type: ignore[assignment]
    json_file: Annotated[Path | None, typer.Option("--json", help="write the report as JSON")] = None,
    report_folder: Annotated[Path | None, typer.Option("--report", help=PAGE, metavar="DIR")] = None,
    metrics: Annotated[str | None, typer.Option(help=METRICS, metavar="URL")] = None,
) -> None:
    """Exit 0 when all targets were kept and nothing got worse than the baseline, 1 when not, 2 on bad input.

    A run that gives no verdict exits with 1, too.
    """
    leave_like_an_exception()  # so that the load generator ends, too
    check_outputs(sla, trace, tokenizer, there(baseline), samples=samples, json=json_file, baseline=missing(baseline))
    moving = Moving(arrivals, rates)
    _check_together(moving, trace, tier, users, rate_scale, baseline is not None)
    crew = _crew(workers, bind, users)
    before = Baseline.open(baseline) if baseline is not None else None
    spec = load(sla)
    parts = [replace(part, words=f"{time.time_ns()}/") for part in pick_parts(spec, model, tokenizer)]
    if trace is not None:
        chosen = loads.replayed(Choice(trace, parts, model is not None, tier, rate_scale, duration), seed)
    elif users is not None:
        chosen = loads.closed(parts, users, duration or MINUTE, seed)
    else:
        chosen = moving.load(parts, duration or MINUTE, rate_scale, seed)
    if before is not None:
        before.check(chosen.asked)
    page = _page(report_folder, metrics, url, sla, spec, samples=samples, json=json_file, baseline=baseline)
    with page.recording(chosen.duration) if page else nullcontext():
        taken = loads.send(chosen, url, ui, crew)
    write_samples(samples, taken)
    result, console = loads.reported(chosen, taken), Console()
    lines: list[Line] = []
    try:  # what is printed comes last: a terminal that is gone, or a full disk, costs no more than it must
        lines = before.finish(taken, threshold) if before else []
        write_json(json_file, report.as_json(result) | _compared(lines, threshold))
        drawn = page.finish(result, taken) if page else None
    finally:
        report.show(result, console)
    if drawn is not None:
        console.print(f"Report: {drawn}", markup=False, highlight=False)
    if before is not None:
        before.tell(taken, lines, threshold, console)
    raise typer.Exit(0 if result.held and not comparison_report.regressions(lines) else 1)


def _compared(lines: Sequence[Line], threshold: float) -> dict[str, object]:
    """What the report as JSON has besides, when the run was compared."""
    return {"comparison": comparison_report.as_json(lines, threshold)} if lines else {}


def _page(
    folder: Path | None, metrics: str | None, url: str, sla: Path, spec: Spec, **files: Path | None
) -> LoadReport | None:
    """What --report asks for, in a folder apart from the `files` that options name. Raises UsageError."""
    if folder is None:
        if metrics is not None:
            raise UsageError("--metrics: is shown in a report; give --report, or leave it out")
        return None
    from gapless.load_report import WRITTEN, LoadReport  # what samples and draws takes a second to import

    check_apart("report", folder, WRITTEN, **files)
    return LoadReport(folder, metrics, url, sla, spec)


def _crew(workers: int, bind: str | None, users: int | None) -> Crew:
    """Who sends. Raises UsageError."""
    if users is not None and users < workers:
        raise UsageError(f"--workers: {workers} are more than the {users} of --users that they share; at most {users}")
    return Crew(workers, "{}:{}".format(*address_to_bind("--bind", bind)) if bind is not None else "")


def write_samples(path: Path | None, taken: Recording) -> None:
    """Where asked. Raises UsageError when it cannot be written."""
    if path is not None:
        write_text(path, recording.dumps(taken), "samples")


def tell(result: report.Report, json_file: Path | None) -> None:
    """Write the report where asked, and print it."""
    write_json(json_file, report.as_json(result))
    report.show(result, Console())


@dataclass(frozen=True)
class Moving:
    """What --arrivals and --rates were given."""

    arrivals: str | None
    rates: str | None

    def timing(self, duration: int) -> Timing:
        """For a run of `duration` ns. Raises UsageError."""
        try:
            cv = unevenness(self.arrivals or "poisson")
        except TimingError as error:
            raise UsageError(f"--arrivals: {error}") from None
        if self.rates is None:
            return Timing(cv)
        try:
            moved = rates_of(self.rates)
        except TimingError as error:
            raise UsageError(f"--rates: {error}") from None
        if (last := moved.points[-1].at) > duration / 1e9:
            raise UsageError(f"--rates: {last:g}s is after the end; --duration {last:g}s or longer")
        return Timing(cv, moved)

    def load(self, parts: Sequence[Part], duration: int, scale: float, seed: int) -> loads.Load:
        """The declared traffic so. Raises UsageError, LoadtestError."""
        return loads.declared(parts, duration, scale, seed, self.timing(duration), self.notes())

    def notes(self) -> list[str]:
        """How the load differs from what the file means by a rate, a sentence each."""
        told = [] if self.arrivals is None else [f"Arrivals: {self.arrivals}."]
        return told if self.rates is None else [*told, f"Rates, times the declared ones: {self.rates}."]


def _check_together(
    moving: Moving, trace: Path | None, tier: str | None, users: int | None, scale: float, compared: bool
) -> None:
    """Raise UsageError naming an option that would mean nothing beside another."""
    given: dict[str, object] = {
        "--arrivals": moving.arrivals,
        "--rates": moving.rates,
        "--users": users,
        "--tier": tier,
    }
    given["--rate-scale"] = None if scale == 1 else scale
    given["--baseline"] = True if compared else None
    if trace is not None:
        beside: tuple[str, ...] = ("--arrivals", "--rates", "--users")
        why = "--trace sends each request when it was recorded; leave it out"
    elif users is not None:
        beside = ("--arrivals", "--rates", "--rate-scale", "--tier", "--baseline")
        why = "--users send when they are free; leave it out"
    else:
        beside, why = ("--tier",), "is the tier of a trace's rows; give --trace"
    for option in beside:
        if given[option] is not None:
            raise UsageError(f"{option}: {why}")
