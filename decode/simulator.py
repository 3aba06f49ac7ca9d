"""The production driver, engine and scheduler on the virtual clock: arrivals in, what became of them out.

Owns the source of timed requests and the recorder, which keeps numbers and no events, so that a million requests fit.
Must not know the SLA file, tables, or where a step's time comes from: that is the executor's.
"""

from __future__ import annotations

import gc
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from decode.clock import VirtualClock
from decode.config import EngineConfig
from decode.driver import Driver, Observer
from decode.engine import Engine
from decode.executors.cost_model import CostModelExecutor, Law
from decode.plan import Event, Finished, Input, Rejected, StepPlan, StepResult, Submit, TokenOut
from decode.types import FinishReason, Request
from decode.warm_up import warm_up

GAP = 1000  # ns: gaps between tokens are counted by the whole microsecond
NEVER = float("inf")

COUNTERS = (
    *("sent", "rejected", "failed", "in_time", "output_tokens", "tokens_in_time"),
    *("prompt_tokens", "cached_tokens", "preemptions"),
)

Timed = tuple[int, Request]  # ns from the start, ascending


@dataclass
class TierRecord:
    """What became of a tier's requests. Latencies in ns from the arrival, in the order of the ends; inf = a miss."""

    sent: int = 0
    rejected: int = 0
    failed: int = 0
    in_time: int = 0  # ended well before the load was over
    output_tokens: int = 0
    tokens_in_time: int = 0  # output tokens before the load was over
    prompt_tokens: int = 0  # of requests that started and ended
    cached_tokens: int = 0
    preemptions: int = 0
    ttft: array[float] = field(default_factory=lambda: array("d"))
    e2e: array[float] = field(default_factory=lambda: array("d"))
    gaps: Counter[float] = field(default_factory=Counter)  # between two tokens of a request, in GAP; inf = never came
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, other: TierRecord) -> None:
        """Take in what another replica did."""
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ttft.extend(other.ttft)
        self.e2e.extend(other.e2e)
        self.gaps.update(other.gaps)
        self.errors.update(other.errors)


@dataclass
class Outcome:
    """A simulated run of one or more replicas; times in ns. Averages are over the time in which a step ran."""

    tiers: dict[str, TierRecord]
    replicas: int = 1
    span: int = 0  # from the start of the load to the end of the last step
    busy: int = 0  # over all replicas
    steps: int = 0
    preemptions: int = 0
    page_time: float = 0.0  # share of the pages in use, times ns
    pages_peak: float = 0.0  # share
    running_time: int = 0  # sequences in a step, times ns

    @property
    def utilization(self) -> float:
        """Share of the span in which a step ran."""
        return self.busy / max(1, self.span * self.replicas)

    @property
    def pages(self) -> float:
        """Share of the pages in use."""
        return self.page_time / max(1, self.busy)

    @property
    def running(self) -> float:
        """Sequences in a step."""
        return self.running_time / max(1, self.busy)

    def add(self, other: Outcome) -> None:
        """Take in what other replicas did with the same tiers."""
        for name, record in other.tiers.items():
            self.tiers[name].add(record)
        for name in ("replicas", "busy", "steps", "preemptions", "page_time", "running_time"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.span = max(self.span, other.span)
        self.pages_peak = max(self.pages_peak, other.pages_peak)


class _Live:
    """A request under way."""

    __slots__ = ("arrival", "asked", "first", "last", "tier")

    def __init__(self, tier: TierRecord, arrival: int, asked: int) -> None:
        self.tier = tier
        self.arrival = arrival
        self.asked = asked
        self.first = self.last = -1


class Feed:
    """The driver's source: hands out requests at their time, and jumps the clock to the next one when all is idle."""

    def __init__(self, requests: Iterable[Timed], clock: VirtualClock, recorder: Recorder) -> None:
        self._rest: Iterator[Timed] = iter(requests)
        self._next = next(self._rest, None)
        self._clock = clock
        self._recorder = recorder

    def due(self, now: int) -> Sequence[Input]:
        if self._next is None or self._next[0] > now:
            return ()
        items: list[Input] = []
        while self._next is not None and self._next[0] <= now:
            at, request = self._next
            self._recorder.sent(at, request)
            items.append(Submit(request))
            self._next = next(self._rest, None)
        return items

    def wait(self) -> bool:
        if self._next is None:
            return False
        self._clock.advance_to(self._next[0])
        return True


class Recorder:
    """The driver's sink: turns events into the numbers of each tier."""

    def __init__(self, tiers: Iterable[str], duration: int) -> None:
        self.tiers = {name: TierRecord() for name in tiers}
        self._duration = duration
        self._live: dict[str, _Live] = {}

    def sent(self, at: int, request: Request) -> None:
        """A request was handed to the engine; its latencies count from `at`."""
        tier = self.tiers[request.tier]
        tier.sent += 1
        self._live[request.id] = _Live(tier, at, request.sampling.max_tokens)

    def emit(self, events: Sequence[Event]) -> None:
        live, duration = self._live, self._duration
        for event in events:
            if isinstance(event, TokenOut):
                one, now = live[event.request_id], event.time
                tier = one.tier
                if one.first < 0:
                    one.first = now
                else:
                    tier.gaps[(now - one.last) // GAP] += 1
                one.last = now
                tier.output_tokens += 1
                if now <= duration:
                    tier.tokens_in_time += 1
            elif isinstance(event, Finished):
                self._finished(event)
            elif isinstance(event, Rejected):
                one = live.pop(event.request_id)
                one.tier.rejected += 1
                self._missed(one, 0, str(event.reason))

    def _finished(self, event: Finished) -> None:
        one, usage = self._live.pop(event.request_id), event.usage
        tier = one.tier
        tier.prompt_tokens += usage.prompt_tokens
        tier.cached_tokens += usage.cached_tokens
        tier.preemptions += usage.preemptions
        if event.reason is FinishReason.ERROR:
            tier.failed += 1
            self._missed(one, usage.output_tokens, event.message)
            return
        tier.ttft.append(one.first - one.arrival)
        tier.e2e.append(event.time - one.arrival)
        tier.in_time += event.time <= self._duration

    def _missed(self, one: _Live, received: int, error: str) -> None:
        tier = one.tier
        tier.ttft.append(NEVER)
        tier.e2e.append(NEVER)
        tier.errors[error] += 1
        if one.asked > max(1, received):
            tier.gaps[NEVER] += one.asked - max(1, received)


class Watch:
    """The driver's observer: busy time and pages."""

    def __init__(self, engine: Engine, outcome: Outcome, also: Observer | None) -> None:
        self._cache, self._total = engine.cache, engine.config.num_pages
        self._outcome = outcome
        self._also = also

    def step(self, now: int, inputs: Sequence[Input], plan: StepPlan | None, result: StepResult | None) -> None:
        if plan is not None and result is not None:
            seen, elapsed = self._outcome, result.elapsed
            used = 1 - self._cache.available / self._total
            seen.busy += elapsed
            seen.steps += 1
            seen.page_time += used * elapsed
            seen.running_time += len(plan.chunks) * elapsed
            if used > seen.pages_peak:
                seen.pages_peak = used
        if self._also is not None:
            self._also.step(now, inputs, plan, result)


@contextmanager
def _uncollected() -> Iterator[None]:
    """The loop leaves no cycles behind (a page that is evicted lets go of its parent): looking for them takes time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def simulate(
    config: EngineConfig, law: Law, requests: Iterable[Timed], duration: int, observer: Observer | None = None
) -> Outcome:
    """Run `requests` to the end of the last one on an engine of `config` whose steps take what `law` says.

    `duration` in ns: how long the load lasts; what is counted "in time" is up to then. Raises RuntimeError when a
    request does not end.
    """
    clock, executor = VirtualClock(), CostModelExecutor(law, config.swap_page_time)
    engine = Engine(config, warm_up(executor, config))
    recorder = Recorder([tier.name for tier in config.tiers], duration)
    outcome = Outcome(recorder.tiers)
    watch = Watch(engine, outcome, observer)
    driver = Driver(engine, executor, clock, Feed(requests, clock, recorder), recorder, watch)
    with _uncollected():
        driver.run()
    if not engine.idle:
        raise RuntimeError(f"the scheduler stands still with requests waiting: {engine.stats()}")
    outcome.span, outcome.preemptions = clock.now(), engine.stats().preemptions
    return outcome
