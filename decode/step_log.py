"""What every round of the driver did and when, as entries: for a law of step times, and for a trace.

Must not know how laws are fitted, what a trace looks like, or where entries are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from decode.clock import Clock
from decode.driver import Phase, Round
from decode.engine import Engine
from decode.executors.cost_model import Step, work_of
from decode.executors.gpu_cost import StepWork
from decode.plan import Event, Finished, Rejected, Submit


class Came(NamedTuple):
    """A request the engine got; whether it takes it shows in what follows."""

    id: str
    tier: str
    prompt: int  # tokens


class Started(NamedTuple):
    """A request that left the queue: from here on `seq` stands for it."""

    seq: int
    id: str
    tier: str
    prompt: int  # tokens, of which `cached` need no computing
    cached: int
    arrived: int  # ns since the epoch: when the engine got it


class Gone(NamedTuple):
    """A request that ended, or was refused."""

    id: str
    reason: str
    output: int  # tokens


class Part(NamedTuple):
    """Tokens of a request in a step, at positions [start, start + tokens)."""

    seq: int
    start: int
    tokens: int


class Entry(NamedTuple):
    """One round. Moments after `began` are in ns from there; a round without a step has `planned` == `executed`."""

    began: int  # ns since the epoch
    planned: int  # inputs are taken and the plan is made: execution begins
    executed: int
    ended: int  # results are committed, events handed out
    step: int | None  # its number; None: nothing to execute
    work: StepWork | None
    parts: tuple[Part, ...]
    came: tuple[Came, ...]
    started: tuple[Started, ...]
    preempted: tuple[tuple[int, bool], ...]  # seq, and whether its pages were saved in host memory
    gone: tuple[Gone, ...]
    running: int  # after the round, as the rest
    waiting: tuple[int, ...]  # by tier, preempted ones included
    pages: int  # of KV in use
    error: str = ""  # what the step raised

    @property
    def idle(self) -> bool:
        """Whether no request was left."""
        return not self.running and not any(self.waiting)


class StepLog:
    """A driver's observer, to be told of phases, too. Hands an entry to `take` when its events have left.

    Entries are of rounds that did something, and of those that found nothing to do although requests wait.
    """

    def __init__(self, engine: Engine, take: Callable[[Entry], None], clock: Clock) -> None:
        self._engine = engine
        self._take = take
        self._clock = clock
        self._to_epoch = time.time_ns() - clock.now()  # once: a clock that is set must not make a gap
        self._moments: dict[Phase, int] = {}
        self._seen: Round | None = None
        self._events: Sequence[Event] = ()

    def phase(self, phase: Phase | None) -> None:
        """The driver's Phases."""
        if phase is not None:
            self._moments[phase] = self._clock.now()
            return
        if self._seen is not None or not self._engine.idle:
            self._take(self._entry(self._clock.now()))
        self._moments, self._seen, self._events = {}, None, ()

    def step(self, seen: Round, events: Sequence[Event]) -> None:
        """The driver's Observer."""
        self._seen, self._events = seen, events

    def _entry(self, now: int) -> Entry:
        draft, stats = self._engine.scheduler.draft, self._engine.stats()
        inputs, plan = (self._seen.inputs, self._seen.plan) if self._seen else ((), None)
        began, committing = self._moments["plan"], self._moments["commit"]
        ends = [event for event in self._events if isinstance(event, Finished | Rejected)]
        failed = plan is not None and self._seen is not None and self._seen.result is None
        return Entry(
            began + self._to_epoch,
            self._moments.get("execute", committing) - began,
            committing - began,
            now - began,
            None if plan is None else plan.step,
            None if plan is None else work_of(plan),
            () if plan is None else tuple(Part(c.seq, c.start, len(c.tokens)) for c in plan.chunks),
            tuple(Came(i.request.id, i.request.tier, len(i.request.prompt)) for i in inputs if isinstance(i, Submit)),
            tuple(
                Started(s.number, s.request.id, s.tier.name, s.prompt_len, s.cached, s.arrival + self._to_epoch)
                for s in draft.started
            ),
            tuple((s.number, saved) for s, saved in draft.preempted),
            tuple(Gone(e.request_id, e.reason, e.usage.output_tokens if isinstance(e, Finished) else 0) for e in ends),
            stats.running,
            tuple(stats.waiting.values()),
            stats.pages_used,
            ends[0].message if failed and ends else "",
        )


def steps(entries: Iterable[Entry]) -> Iterator[Step]:
    """What each step computed, and ns until the next round began: planning and events are in it.

    The last step before a pause is left out.
    """
    for one, following in pairwise(entries):
        if one.work is not None and not one.idle:
            yield one.work, following.began - one.began
