"""Loads of a running server: which requests, sent how, and what is said of them afterwards. Must not know options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from config_gen.sla.arrivals import DECLARED, Timing
from config_gen.sla.spec import LlmModel
from gapless.parts import notes
from loadtest import replay, report, verdict
from loadtest.run import Client, Job, LoadtestError
from loadtest.run import Progress as Seen
from loadtest.run import run as run_job
from loadtest.samples import Planned, Sample
from loadtest.schedule import Part, schedule

DRAIN = 30 * 10**9  # ns
CLOSED_REQUESTS = 20_000  # planned for a closed loop, whose users may ask for any number
SHORTEST = 10**9  # ns, of a trace: its rates are per second


@dataclass(frozen=True)
class Load:
    """Requests to the models of `parts`. `duration` in ns; `notes` are sentences about them.

    `users` = 0 sends each at its time; more send one after another, in a closed loop.
    """

    parts: Sequence[Part]
    planned: Sequence[Planned]
    duration: int
    rate_scale: float
    seed: int
    notes: Sequence[str] = ()
    users: int = 0


def declared(
    parts: Sequence[Part],
    duration: int,
    scale: float,
    seed: int,
    timing: Timing = DECLARED,
    notes: Sequence[str] = (),
) -> Load:
    """The declared traffic, each model's and tier's by `timing`. Raises LoadtestError when nothing would be sent."""
    planned = schedule(parts, duration, scale, seed, timing)
    if not planned:
        raise LoadtestError(
            f"--duration: no request falls into {duration / 1e9:g} s at these rates; load longer or faster"
        )
    return Load(parts, planned, duration, scale, seed, notes)


def closed(parts: Sequence[Part], users: int, duration: int, seed: int) -> Load:
    """The declared mix, each request as soon as a user is free."""
    long = int(CLOSED_REQUESTS / sum(part.rate for part in parts) * 1e9)
    return Load(parts, schedule(parts, long, 1.0, seed), duration, 1.0, seed, users=users)


def replayed(choice: replay.Choice, seed: int) -> Load:
    """What a trace holds. Raises TraceError."""
    trace = replay.read(choice)
    planned = trace.planned(choice.parts, seed)
    return Load(choice.parts, planned, max(SHORTEST, trace.last), choice.scale, seed, trace.notes(choice.path))


def send(load: Load, url: str, samples: Path | None = None, ui: bool = False) -> report.Report:
    """Send it all and judge each model."""
    job = Job(url, load.planned, load.duration, DRAIN, load.users, ui)
    with progress_bar("Loading", load.duration) as seen:
        taken, client = run_job(job, samples, seen, _tell_page)
    duration, used_up = load.duration, bool(load.users) and len(taken) == len(load.planned)
    if used_up:
        duration = min(duration, max(sample.end or duration for sample in taken))
    models = [_judged_as_sent(load, part, taken, duration, client) for part in load.parts]
    told = [*notes(load.parts), *load.notes]
    if used_up:
        told.append(f"The users were through with all {len(taken)} requests of the plan after {duration / 1e9:.3g} s.")
    return report.Report(duration, load.seed, load.rate_scale, client, models, told, load.users)


def judged(part: Part, taken: Sequence[Sample], duration: int, client: Client) -> report.ModelReport:
    """The numbers of one model's samples, and a verdict on each of its promises."""
    model = part.model
    sent = {sample.tier for sample in taken}
    tiers = [*model.traffic, *(tier for tier in part.tiers if tier in sent and tier not in model.traffic)]
    classes = verdict.summarize(taken, tiers, duration, tokens=isinstance(model, LlmModel))
    return report.ModelReport(part.name, classes, verdict.judge(classes, model.targets, tiers, client))


def _judged_as_sent(
    load: Load, part: Part, taken: Sequence[Sample], duration: int, client: Client
) -> report.ModelReport:
    """The same; without a verdict on what was asked in a closed loop."""
    found = judged(part, [sample for sample in taken if sample.model == part.name], duration, client)
    if not load.users:
        return found
    reason = report.closed(load.users)
    return replace(found, verdicts=[replace(one, ruling="none", reason=reason) for one in found.verdicts])


def _tell_page(url: str) -> None:
    print(f"Locust's page, until the run ends: {url}", file=sys.stderr, flush=True)


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
