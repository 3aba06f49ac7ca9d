"""The production driver, engine and scheduler on the virtual clock: arrivals in, what became of them out.

Owns the source of timed requests and the recorder, which keeps numbers and no events, so that a million requests fit.
Must not know the SLA file, tables, or where a step's time comes from: that is the executor's.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from decode.clock import VirtualClock
from decode.config import EngineConfig
from decode.driver import Driver, Observer, Round
from decode.engine import Engine
from decode.executors.cost_model import CostModelExecutor, Law
from decode.outcome import GAP, NEVER, Outcome, TierRecord
from decode.plan import Event, Finished, Input, Rejected, Submit, TokenOut
from decode.types import FinishReason, Request
from decode.warm_up import warm_up

Timed = tuple[int, Request]  # ns from the start, ascending


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

    def waits_for(self, tiers: Collection[str]) -> bool:
        """Whether a request of these tiers has not ended."""
        wanted = [self.tiers[name] for name in tiers]
        return any(one.tier is tier for one in self._live.values() for tier in wanted)

    def abandon(self, tiers: Collection[str]) -> None:
        """Nobody waits any longer: what these tiers sent and has no end has missed, the rest counts as not sent."""
        wanted = [self.tiers[name] for name in tiers]
        for one in self._live.values():
            if any(one.tier is tier for tier in wanted):
                one.tier.failed += 1
                self._missed(one, 0 if one.first < 0 else 1, "not answered in time")
            else:
                one.tier.sent -= 1
        self._live.clear()

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

    def step(self, seen: Round, events: Sequence[Event]) -> None:
        if seen.plan is not None and seen.result is not None:
            outcome, elapsed = self._outcome, seen.result.elapsed
            used = 1 - self._cache.available / self._total
            outcome.busy += elapsed
            outcome.steps += 1
            outcome.page_time += used * elapsed
            outcome.running_time += len(seen.plan.chunks) * elapsed
            if used > outcome.pages_peak:
                outcome.pages_peak = used
        if self._also is not None:
            self._also.step(seen, events)


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
