"""`gapless rounds`: the reported case on the real Triton: one load, four configurations of the engine in turn.

Of each configuration two things are measured on one server: what it serves of a flood, the same requests for all, and
what latencies it has under the usual load: about as much as the first one serves. Must not know how to print or draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from config_gen.sla.spec import LlmModel
from gapless.child import launched
from gapless.loads import progress_bar
from gapless.reported_case import ROUNDS, Round
from gapless.tiers_load import sustains
from loadtest.prompts import Prompts
from loadtest.run import Client, Job, LoadtestError, run
from loadtest.samples import Planned, Sample, write
from loadtest.schedule import Part, schedule
from loadtest.verdict import ClassSummary, lag_reason, summarize
from observe.recorder import Recorder
from observe.ring import Ring
from observe.sources.host import Host
from observe.sources.nvml import Nvml
from observe.sources.page import triton
from observe.window import Window

MODEL = "chat"
BURST = 20 * 10**9  # ns that the most is measured for which any round serves
BURST_REQUESTS, USERS = 3000, 64  # more than a burst can end; as many as the third round runs at once
FLOOD = 1.3  # times that
FLOOD_FOR = 60 * 10**9  # ns
FILLING = 3  # the first part in so many of a flood, in which batches fill, counts for nothing
DRAIN = 60 * 10**9  # ns that answers may take after the last request of the usual load was sent
# Of the served model, whatever its repository was configured for: days are compared with each other.
LIMITS = {"kv_cache_memory": "2GiB", "max_num_batched_tokens": "256"}
SAMPLING = 500 * 10**6  # ns between samples of the server
RING = 16 * 2**20  # bytes of samples, of each load


@dataclass(frozen=True)
class Case:
    """What all rounds share. `longest`: tokens that the model could take; `load`: times what round 1 serves."""

    repository: Path
    model: LlmModel
    options: Mapping[str, str]
    longest: int
    prompts: Prompts
    duration: int  # ns
    load: float
    seed: int
    out: Path

    @property
    def rate(self) -> float:
        """Declared requests/s of all tiers."""
        return sum(shape.rate for shape in self.model.traffic.values())

    def requests(self, duration: int, rate: float, seed: int) -> list[Planned]:
        """The declared mix at `rate` requests/s in all. Raises LoadtestError when a tier has none."""
        planned = schedule([Part(MODEL, self.model, self.prompts)], duration, rate / self.rate, self.seed + seed)
        if missing := [tier for tier in self.model.traffic if not any(one.tier == tier for one in planned)]:
            seconds = f"{duration / 1e9:g} s at {rate:.2f} requests/s"
            raise LoadtestError(f"--duration: no request of tier {missing[0]} falls into {seconds}; load longer")
        return planned

    def options_of(self, round_: Round) -> dict[str, str]:
        """Of the served model."""
        length = {} if round_.exact_length else {"max_model_len": str(self.longest)}
        changes = {name: _option(value) for name, value in round_.changes.items()}
        return {**self.options, **LIMITS, **length, **changes}


def _option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Loaded:
    """One load of one round: what came back, and what was sampled of the server meanwhile.

    `settled` ns after its begin it begins to count.
    """

    samples: Sequence[Sample]
    duration: int  # ns
    settled: int
    client: Client
    window: Window
    folder: Path  # of the samples of the server

    @property
    def seen(self) -> Window:
        """Of the server, while it counted: neither batches that fill nor what is left when no more is sent."""
        return self.window.between(self.client.began + self.settled, self.client.began + self.duration)

    def classes(self, model: LlmModel) -> list[ClassSummary]:
        return summarize(self.samples, list(model.traffic), self.duration, targets=model.targets)

    def ended(self, tier: str | None = None) -> float:
        """Requests/s that ended well while it counted."""
        count = sum(
            sample.outcome == "ok" and sample.end is not None and self._counts(sample.end)
            for sample in self.samples
            if tier in (None, sample.tier)
        )
        return count / ((self.duration - self.settled) / 1e9)

    def tokens(self, tier: str | None = None) -> float:
        """Output tokens/s that came while it counted."""
        came = sum(
            count
            for sample in self.samples
            for time, count in sample.messages
            if tier in (None, sample.tier) and self._counts(time)
        )
        return came / ((self.duration - self.settled) / 1e9)

    def _counts(self, moment: int) -> bool:
        return self.settled <= moment < self.duration

    def lagged(self, model: LlmModel) -> str | None:
        """Why the client's times cannot be trusted, or None."""
        promised = model.targets.values()
        return lag_reason(self.client, [t for p in promised for t in (p.ttft, p.itl, p.e2e) if t is not None])


@dataclass(frozen=True)
class Measured:
    """A round: under the flood, and under the usual load."""

    round: Round
    options: Mapping[str, str]
    flood: Loaded
    usual: Loaded


def measure(case: Case, told: Callable[[str], None]) -> list[Measured]:
    """All rounds, one after another; `told` hears how the loads were chosen. Raises LoadtestError, ChildError."""
    most = _most(case)
    flood = case.requests(FLOOD_FOR, FLOOD * most, 1)
    usual: list[Planned] = []
    found: list[Measured] = []
    for number, one in enumerate(ROUNDS, 1):
        options, name = case.options_of(one), f"round {number}, {one.name}"
        with launched(case.repository, [MODEL], options, case.out / f"{number}.log") as ports:
            flooded = _load(case, ports, flood, FLOOD_FOR, 0, f"{number}-flood", f"{name}: flood")
            if not usual:
                # By output: of one at a time too few requests end to count them.
                rate = case.load * flooded.tokens() / fmean(one.max_tokens for one in flood)
                if not rate:
                    raise LoadtestError(f"{name}: served nothing in {FLOOD_FOR / 1e9:g} s; see {case.out / '1.log'}")
                usual = case.requests(case.duration, rate, 2)
                told(
                    f"Flood: {FLOOD * most:.2f} requests/s for {FLOOD_FOR / 1e9:g} s, {FLOOD:g} times what round 3 "
                    f"sustains. Usual load: {rate:.2f} requests/s for {case.duration / 1e9:g} s, {case.load:g} times "
                    f"what round 1 served of the flood."
                )
            steady = _load(case, ports, usual, case.duration, DRAIN, f"{number}-usual", f"{name}: usual load")
        found.append(Measured(one, options, flooded, steady))
    return found


def _most(case: Case) -> float:
    """Requests/s of the mix that the third round sustains with all its slots in use."""
    options = case.options_of(ROUNDS[2])
    with launched(case.repository, [MODEL], options, case.out / "most.log") as ports:
        planned = case.requests(int(BURST_REQUESTS / case.rate * 1e9), case.rate, 0)
        job = Job(f"127.0.0.1:{ports['grpc_port']}", planned, BURST, 0, closed_users=USERS)
        with progress_bar("measuring the most that is served", BURST) as seen:
            samples, _ = run(job, seen)
    return sustains(samples, case.model.traffic, BURST // 3, BURST)


def _load(
    case: Case, ports: Mapping[str, int], planned: Sequence[Planned], duration: int, drain: int, name: str, shown: str
) -> Loaded:
    """Send it; raw samples of requests and of the server go to files called `name`."""
    folder = case.out / name
    if folder.is_dir():  # of an earlier run
        for path in folder.iterdir():
            path.unlink()
    page = triton(f"http://127.0.0.1:{ports['metrics_port']}/metrics")
    recorder = Recorder([page, Nvml(), Host()], SAMPLING, Ring(folder, RING))
    with recorder, progress_bar(shown, duration) as seen:
        samples, client = run(Job(f"127.0.0.1:{ports['grpc_port']}", planned, duration, drain), seen)
    write(case.out / f"{name}.jsonl", samples)
    settled = 0 if drain else duration // FILLING
    return Loaded(samples, duration, settled, client, recorder.window, folder)
