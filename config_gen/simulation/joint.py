"""All models of a file together on one virtual clock: batchers, decode loops and the devices that they share.

Batchable models go through the simulated dynamic batcher, LLMs through the scheduler that serves. Must not know how
settings are chosen.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from config_gen.percentiles import Counted
from config_gen.simulation.batcher import Arrived, Batcher
from config_gen.simulation.device import Done, Place, Shared
from config_gen.simulation.events import Events
from config_gen.simulation.llm_load import requests
from config_gen.simulation.llm_server import LlmServer
from config_gen.simulation.serving import HOST, Capacity, Decoding, Load, Observed, Served, Unary
from config_gen.sla.arrivals import Arrival, arrivals, unary_arrivals
from config_gen.sla.spec import OnnxTraffic
from decode.outcome import GAP, NEVER
from decode.simulator import Recorder

DRAWN = 32  # loads of one model that are kept
CHECKED = 64  # events after the load between two looks at what is still waited for


class Instances:
    """The instances of one batchable model on all its devices: an execution goes to the device that has fewest of them.

    Items are prepared on the host, then computed where the instance is. Sums up how long executions took.
    """

    def __init__(self, events: Events, one: Unary, places: Sequence[Place], host: Shared) -> None:
        self._events, self._one, self._places, self._host = events, one, places, host
        self._running = [0] * len(places)
        self.total = self.count = 0

    def begin(self, batch: Sequence[Arrived], done: Done) -> None:
        """Execute a batch; `done` is called at its end."""
        began, at = self._events.now, self._running.index(min(self._running))
        self._running[at] += 1
        place, (preparing, cores), work = self._places[at], self._one.prepare(batch), self._one.cost(batch)

        def start(computed: Done) -> None:
            self._host.errand(preparing, lambda: place.begin(work, computed, self._one.cold), cores)

        def ended() -> None:
            self._running[at] -= 1
            self.total += self._events.now - began
            self.count += 1
            done()

        place.admit(start, ended)


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
        self._instances: dict[str, Instances] = {}
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
        for name, instances in self._instances.items():
            found.executing[name] = instances.total / max(1, instances.count)
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

    def _in_front(self, work: int, then: Done) -> None:
        """Do `then` after so many ns of one core of the host."""
        if work:
            self._devices[HOST].errand(work, then)
        else:
            then()

    def _sender(self, one: Decoding) -> Callable[[int], None]:
        """What sending tokens costs the host, while the next step is under way already."""

        def sent(tokens: int) -> None:
            if one.message and tokens:
                self._devices[HOST].errand(one.message * tokens, _nothing)

        return sent

    def _add_unary(self, one: Unary) -> None:
        model, load, events = one.model, self._load, self._events

        def ended(request: Arrived, moment: int, reason: str) -> None:
            self._drained[one.name] = moment - load.duration
            taken = NEVER if reason else moment - request.at + one.around
            self._unary[one.name, str(request.tag), "e2e"].append(taken)

        places = [self._devices[name].place(one.width, one.limited) for name in one.devices]
        instances = self._instances[one.name] = Instances(events, one, places, self._devices[HOST])
        # One batcher feeds the instances on all cards.
        batching = replace(one.batching, instances=one.batching.instances * len(places))
        batcher = Batcher(events, batching, instances, ended)

        def take(arrival: Arrival) -> None:
            self._sent[one.name, arrival.tier, "e2e"] += 1
            if one.repeats and _repeated(arrival.number, one.repeats):
                self._unary[one.name, arrival.tier, "e2e"].append(one.around)
                return
            request = Arrived(events.now, one.levels[arrival.tier], 1, arrival.own, arrival.tier)
            self._in_front(one.front, lambda: batcher.submit(request))

        traffic = tuple(load.traffic(one.name, model).items())
        drawn = _drawn(traffic, load.duration, load.scale, load.seed, model.max_length, one.chance)
        self._feed(iter(drawn), take)

    def _add_decoding(self, one: Decoding) -> None:
        model, load, events = one.model, self._load, self._events
        tiers = [tier.name for tier in one.config.tiers]
        recorder = self._recorders[one.name] = Recorder(tiers, load.duration)
        engines = self._engines[one.name] = [
            LlmServer(events, self._devices[name].place(one.width), one, recorder, self._sender(one))
            for name in one.devices
        ]
        length = one.config.max_model_len
        traffic = load.traffic(one.name, model)
        drawn = arrivals(traffic, load.duration, load.scale, load.seed, length, one.chance)
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
                recorder.sent(events.now, request)
                self._in_front(one.front, lambda: engine.submit(request))
                following()

            events.at(at, arrive)

        following()


@lru_cache(maxsize=DRAWN)
def _drawn(
    traffic: tuple[tuple[str, OnnxTraffic], ...], duration: int, scale: float, seed: int, max_length: int, chance: str
) -> tuple[Arrival, ...]:
    """See unary_arrivals. A search tries every setting under the same loads."""
    return tuple(unary_arrivals(dict(traffic), duration, scale, seed, max_length, chance))


def _nothing() -> None:
    """Nobody waits for it."""


def _repeated(number: int, share: float) -> bool:
    """Whether the request with this number asks what was asked before: evenly spread, the same ones every time."""
    return int((number + 1) * share) > int(number * share)


def run(served: Sequence[Served], devices: Mapping[str, Capacity], load: Load) -> Observed:
    """Simulate; see Run and Observed."""
    return Run(served, devices, load).observe()
