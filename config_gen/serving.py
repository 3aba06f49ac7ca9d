"""All models of a file together on one virtual clock: batchers, decode loops and the devices that they share.

Batchable models go through the simulated dynamic batcher, LLMs through the scheduler that serves. Must not know how
settings are chosen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from config_gen.arrivals import Arrival, arrivals, unary_arrivals
from config_gen.batcher import Arrived, Batcher
from config_gen.batching import Batching
from config_gen.device import Place, Shared
from config_gen.events import Events
from config_gen.llm_load import requests
from config_gen.llm_server import LlmServer
from config_gen.percentiles import Counted, percentile
from config_gen.spec import LlmModel, OnnxModel
from decode.config import EngineConfig
from decode.executors.cost_model import Law
from decode.outcome import GAP, NEVER
from decode.simulator import Recorder

HOST = "host"
CHECKED = 64  # events after the load between two looks at what is still waited for


@dataclass(frozen=True)
class Unary:
    """A batchable model as it is served. `cost` is ns of work of a batch on one instance, which is `width` wide.

    `around` ns of each request are spent outside of it; a share `repeats` is answered from the cache in that time.
    """

    name: str
    model: OnnxModel
    chance: str
    devices: tuple[str, ...]
    width: float
    batching: Batching
    cost: Callable[[Sequence[Arrived]], float]
    levels: Mapping[str, int]  # of tiers
    around: int = 0
    repeats: float = 0.0


@dataclass(frozen=True)
class Decoding:
    """An LLM as it is served, an engine on each device; requests are dealt to them in turn."""

    name: str
    model: LlmModel
    chance: str
    devices: tuple[str, ...]
    width: float
    config: EngineConfig
    law: Law
    around: int = 0


Served = Unary | Decoding


class Capacity(NamedTuple):
    """Of a device: see Shared."""

    capacity: float
    switch: float = 0.0  # ns
    most: int | None = None  # executions of batchable models at once


@dataclass(frozen=True)
class Load:
    """`duration` ns of declared traffic at `scale` times its rates. `seed` fixes who arrives when.

    Answers of tiers with targets are waited for, at most `grace` ns longer; without it, all are. What then has no
    answer never gets one, where its tier has targets; of other tiers it counts as not sent.
    """

    duration: int
    scale: float = 1.0
    seed: int = 0
    grace: int | None = None


@dataclass
class Observed:
    """What came of a load: latencies in ns of every model, tier and metric (infinite: refused), how busy devices were.

    `late` holds the same of the later half of the answers alone: where a queue grows, they are worse. `drained` is ns
    from the end of the load to the last answer of a batchable model.
    `executing` is the mean ns of an execution of each batchable model, with what others on its device cost it.
    `pages` is the largest share of KV pages in use of each LLM, `preemptions` how often it evicted.
    """

    latencies: dict[tuple[str, str, str], Sequence[float]] = field(default_factory=dict)
    late: dict[tuple[str, str, str], Sequence[float]] = field(default_factory=dict)
    drained: dict[str, int] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    executing: dict[str, float] = field(default_factory=dict)
    pages: dict[str, float] = field(default_factory=dict)
    preemptions: dict[str, int] = field(default_factory=dict)

    def at(self, model: str, tier: str, metric: str, q: Fraction) -> float | None:
        """The percentile, or None where nothing was sent."""
        found = self.latencies.get((model, tier, metric))
        return percentile(found, q) if found else None

    def keep(self, key: tuple[str, str, str], values: Sequence[float], around: int = 0) -> None:
        """Note latencies in the order of the answers, with what each takes besides."""
        made = [value + around for value in values]
        self.late[key] = sorted(made[len(made) // 2 :])
        self.latencies[key] = sorted(made)

    def over(self, model: str, tier: str, metric: str, target: int) -> Fraction:
        """Share of the requests above the target, of all or of the later half where that is more."""
        shares = [
            Fraction(len(found) - bisect_right(found, target), len(found))
            for found in (self.latencies.get((model, tier, metric)), self.late.get((model, tier, metric)))
            if found
        ]
        return max(shares, default=Fraction(0))

    def worst(self, model: str, tier: str, metric: str, q: Fraction) -> float | None:
        """The percentile of all, or of the later half where that is higher."""
        found, late = self.at(model, tier, metric, q), self.late.get((model, tier, metric))
        return max(found, percentile(late, q)) if found is not None and late else found


class Metered:
    """A place that sums up how long its executions took."""

    def __init__(self, events: Events, place: Place) -> None:
        self._events, self._place = events, place
        self.total = self.count = 0

    def begin(self, work: float, done: Callable[[], None]) -> None:
        """See Shared.begin."""
        began = self._events.now

        def ended() -> None:
            self.total += self._events.now - began
            self.count += 1
            done()

        self._place.begin(work, ended)


class Run:
    """One simulation."""

    def __init__(self, served: Sequence[Served], devices: Mapping[str, Capacity], load: Load) -> None:
        self._events, self._load = Events(), load
        self._devices = {name: Shared(self._events, *shape) for name, shape in devices.items()}
        self._unary: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        self._recorders: dict[str, Recorder] = {}
        self._engines: dict[str, list[LlmServer]] = {}
        self._promising = {(one.name, tier) for one in served for tier in one.model.targets}
        self._sent: Counter[tuple[str, str, str]] = Counter()
        self._drained: dict[str, int] = {}
        self._meters: dict[str, list[Metered]] = {}
        self._around = {one.name: one.around for one in served}
        for one in served:
            if isinstance(one, Unary):
                self._add_unary(one)
            else:
                self._add_decoding(one)

    def observe(self) -> Observed:
        """Run to the end of the last request, or of the grace."""
        self._run()
        found = Observed(drained=self._drained)
        for key, latencies in self._unary.items():
            found.keep(key, latencies)
        for name, recorder in self._recorders.items():
            around = self._around[name]
            for tier, record in recorder.tiers.items():
                found.keep((name, tier, "ttft"), record.ttft, around)
                found.keep((name, tier, "e2e"), record.e2e, around)
                found.latencies[name, tier, "itl"] = Counted(record.gaps, GAP)
            engines = self._engines[name]
            found.pages[name] = max(engine.pages_peak for engine in engines)
            found.preemptions[name] = sum(engine.engine.stats().preemptions for engine in engines)
        for name, meters in self._meters.items():
            found.executing[name] = sum(m.total for m in meters) / max(1, sum(m.count for m in meters))
        span = max(1, self._events.now)
        for name, device in self._devices.items():
            found.busy[name] = device.busy / (span * device.capacity)
        return found

    def _run(self) -> None:
        load, events = self._load, self._events
        if load.grace is None:
            events.run()
            return
        events.run(load.duration)
        limit = load.duration + load.grace
        while self._promised() and (following := events.next_at) is not None and following <= limit:
            for _ in range(CHECKED):
                events.step()
        for key, sent in self._sent.items():
            if key[:2] in self._promising:
                self._unary[key] += [NEVER] * (sent - len(self._unary[key]))
        for name, recorder in self._recorders.items():
            recorder.abandon([tier for tier in recorder.tiers if (name, tier) in self._promising])

    def _promised(self) -> bool:
        """Whether a request of a tier with targets is under way."""
        return any(
            sent > len(self._unary[key]) for key, sent in self._sent.items() if key[:2] in self._promising
        ) or any(
            recorder.waits_for([tier for tier in recorder.tiers if (name, tier) in self._promising])
            for name, recorder in self._recorders.items()
        )

    def _feed(self, drawn: Iterator[Arrival], take: Callable[[Arrival], None]) -> None:
        """Hand out arrivals at their time; the next is drawn when the last was handed out."""

        def arrive(arrival: Arrival) -> None:
            take(arrival)
            following()

        def following() -> None:
            arrival = next(drawn, None)
            if arrival is not None:
                self._events.at(arrival.at, lambda: arrive(arrival))

        following()

    def _add_unary(self, one: Unary) -> None:
        model, load, events = one.model, self._load, self._events

        def ended(request: Arrived, moment: int, reason: str) -> None:
            self._drained[one.name] = moment - load.duration
            taken = NEVER if reason else moment - request.at + one.around
            self._unary[one.name, str(request.tag), "e2e"].append(taken)

        meters = self._meters[one.name] = [
            Metered(events, self._devices[name].place(one.width, limited=True)) for name in one.devices
        ]
        batchers = [Batcher(events, one.batching, meter, one.cost, ended) for meter in meters]
        dealt = 0

        def take(arrival: Arrival) -> None:
            nonlocal dealt
            self._sent[one.name, arrival.tier, "e2e"] += 1
            if one.repeats and _repeated(arrival.number, one.repeats):
                self._unary[one.name, arrival.tier, "e2e"].append(one.around)
                return
            request = Arrived(events.now, one.levels[arrival.tier], 1, arrival.own, arrival.tier)
            batchers[dealt % len(batchers)].submit(request)
            dealt += 1

        drawn = unary_arrivals(model.traffic, load.duration, load.scale, load.seed, model.max_length, one.chance)
        self._feed(drawn, take)

    def _add_decoding(self, one: Decoding) -> None:
        model, load, events = one.model, self._load, self._events
        tiers = [tier.name for tier in one.config.tiers]
        recorder = self._recorders[one.name] = Recorder(tiers, load.duration)
        engines = self._engines[one.name] = [
            LlmServer(events, self._devices[name].place(one.width), one.config, one.law, recorder)
            for name in one.devices
        ]
        length = one.config.max_model_len
        drawn = arrivals(model.traffic, load.duration, load.scale, load.seed, length, one.chance)
        timed = requests(drawn, tiers)
        dealt = 0

        def following() -> None:
            nonlocal dealt
            at, request = next(timed, (0, None))
            if request is None:
                return
            engine = engines[dealt % len(engines)]
            dealt += 1

            def arrive() -> None:
                engine.submit(request)
                following()

            events.at(at, arrive)

        following()


def _repeated(number: int, share: float) -> bool:
    """Whether the request with this number asks what was asked before: evenly spread, the same ones every time."""
    return int((number + 1) * share) > int(number * share)


def run(served: Sequence[Served], devices: Mapping[str, Capacity], load: Load) -> Observed:
    """Simulate; see Run and Observed."""
    return Run(served, devices, load).observe()
