"""Loads of a running server: which requests, sent how, and what is said of them afterwards. Must not know options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from config_gen.sla.arrivals import DECLARED
from config_gen.sla.spec import LlmModel
from config_gen.sla.timing import Timing
from gapless.parts import notes
from loadtest import replay, report, verdict
from loadtest.recording import Recording, Sent
from loadtest.run import ALONE, Client, Crew, Job, LoadtestError
from loadtest.run import Progress as Seen
from loadtest.run import run as run_job
from loadtest.same_load import Asked
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

    @property
    def sent(self) -> dict[tuple[str, str], Sent]:
        """Every tier that is sent something or is declared to be, with what was promised it."""
        declared = [(part.name, tier) for part in self.parts for tier in part.model.traffic]
        models = {part.name: part.model for part in self.parts}
        return {
            (name, tier): Sent(isinstance(models[name], LlmModel), models[name].targets.get(tier))
            for name, tier in dict.fromkeys([*declared, *((one.model, one.tier) for one in self.planned)])
        }

    @property
    def asked(self) -> Asked:
        """What another run must have been sent to be compared with it."""
        return Asked.planned(self.planned, self.sent, self.duration)


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
    """What a trace holds. Raises TraceError.

    It lasts as long as was asked for where rows come after that: until then, its silence is part of what was recorded.
    Else it lasts until its last row, however much longer was asked for: nobody knows what would have come then.
    """
    trace = replay.read(choice)
    planned = trace.planned(choice.parts, seed)
    lasting = choice.duration if trace.cut and choice.duration is not None else max(SHORTEST, trace.last)
    return Load(choice.parts, planned, lasting, choice.scale, seed, trace.notes(choice.path))


def send(load: Load, url: str, ui: bool = False, crew: Crew = ALONE) -> Recording:
    """Send it all. Raises LoadtestError when the server cannot be used as asked, WorkerLost."""
    job = Job(url, load.planned, load.duration, DRAIN, load.users, ui, crew)
    with progress_bar("Loading", load.duration) as seen:
        taken, client = run_job(job, seen, _tell)
    duration = load.duration
    if load.users and len(taken) == len(load.planned):  # the users were through before time was up
        duration = min(duration, max(sample.end or duration for sample in taken))
    return Recording(duration, load.seed, load.rate_scale, client, load.sent, taken)


def reported(load: Load, taken: Recording) -> report.Report:
    """The numbers of what was sent, and a verdict on each promise."""
    duration, samples, client = taken.duration, taken.samples, taken.client
    models = [_judged_as_sent(load, part, samples, duration, client) for part in load.parts]
    told = [*notes(load.parts), *load.notes]
    if duration < load.duration:
        told.append(
            f"The users were through with all {len(samples)} requests of the plan after {duration / 1e9:.3g} s."
        )
    return report.Report(duration, load.seed, load.rate_scale, client, models, told, load.users)


def judged(part: Part, taken: Sequence[Sample], duration: int, client: Client) -> report.ModelReport:
    """The numbers of one model's samples, and a verdict on each of its promises."""
    model = part.model
    sent = {sample.tier for sample in taken}
    tiers = [*model.traffic, *(tier for tier in part.tiers if tier in sent and tier not in model.traffic)]
    classes = verdict.summarize(taken, tiers, duration, isinstance(model, LlmModel), model.targets)
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


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


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
