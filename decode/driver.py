"""The one loop that serves Triton and the simulator alike: take inputs, plan, execute, commit, hand out events.

Knows no tensors and no threads: a Source says what arrived and how to wait, a Sink takes the events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from decode.clock import Clock
from decode.engine import Engine
from decode.executors.base import Executor
from decode.plan import Event, Input, StepPlan, StepResult


class Source(Protocol):
    def due(self, now: int) -> Sequence[Input]:
        """Inputs that arrived up to `now`, in order, each handed out once."""
        ...

    def wait(self) -> bool:
        """Nothing can be done until more arrives: wait for it (or jump to it). False when nothing ever will."""
        ...


class Sink(Protocol):
    def emit(self, events: Sequence[Event]) -> None:
        """Take events in order. Must not block: steps wait for it."""
        ...


class Round(NamedTuple):
    """A round under way: the moment it began, what arrived, what is executed (None: nothing to do, or it failed)."""

    now: int
    inputs: Sequence[Input]
    plan: StepPlan | None
    result: StepResult | None


class Observer(Protocol):
    """Sees every round that did something, before its events leave; a trace recorder, a log."""

    def step(self, seen: Round, events: Sequence[Event]) -> None: ...


Phase = Literal["plan", "execute", "commit", "emit"]
Phases = Callable[[Phase | None], None]  # told of each phase of a round when it begins; None: the round has ended


class Driver:
    """Runs an engine on an executor. `failures` counts steps that raised since the last one that did not."""

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        clock: Clock,
        source: Source,
        sink: Sink,
        observer: Observer | None = None,
        phases: Phases | None = None,
    ) -> None:
        self.engine = engine
        self.executor = executor
        self.clock = clock
        self.source = source
        self.sink = sink
        self.observer = observer
        self.failures = 0
        self._enter: Phases = phases or _unwatched

    def run(self) -> None:
        """Step until the source says that nothing will ever come again."""
        while True:
            if not self.step() and not self.source.wait():
                return

    def step(self) -> bool:
        """One round. False when there was nothing to execute."""
        round_ = self.begin()
        if round_.result is not None:
            self.clock.spend(round_.result.elapsed)
        self.finish(round_)
        return round_.plan is not None

    def begin(self) -> Round:
        """The first half of a round: what arrived, what is executed now, and how long that takes."""
        now = self.clock.now()
        self._enter("plan")
        inputs = self.source.due(now)
        for item in inputs:
            self.engine.apply(item, now)
        plan = self.engine.plan(now)
        return Round(now, inputs, plan, self._execute(plan) if plan is not None else None)

    def finish(self, round_: Round) -> None:
        """The second half, once its time is spent: results become events."""
        _, inputs, plan, result = round_
        self._enter("commit")
        if plan is not None and result is not None:
            self.engine.commit(plan, result, self.clock.now())
        events = self.engine.take_events()
        if self.observer is not None and (inputs or plan is not None or events):
            self.observer.step(round_, events)
        if events:
            self._enter("emit")
            self.sink.emit(events)
        self._enter(None)

    def _execute(self, plan: StepPlan) -> StepResult | None:
        self._enter("execute")
        try:
            result = self.executor.execute(plan)
            _check_fit(plan, result)
        except Exception as error:  # whatever a step raises, its requests get it as their end and the loop goes on
            self.failures += 1
            self.engine.fail(f"step {plan.step} failed: {type(error).__name__}: {error}", self.clock.now())
            return None
        self.failures = 0
        return result


def _unwatched(phase: Phase | None) -> None:
    """Nobody wants to know."""


def _check_fit(plan: StepPlan, result: StepResult) -> None:
    """Raise ValueError unless every chunk has its token or None, as it asked: half a result must not be committed."""
    chunks, tokens, logprobs = plan.chunks, result.tokens, result.logprobs
    for name, values in (("tokens", tokens), ("logprobs", logprobs)):
        if len(values) != len(chunks) and (values or name == "tokens"):
            raise ValueError(f"the executor gave {len(values)} {name} for {len(chunks)} chunks")
    for at, (chunk, token) in enumerate(zip(chunks, tokens, strict=True)):
        if (chunk.draw is None) != (token is None):
            wanted = "none" if chunk.draw is None else "a token"
            raise ValueError(f"the executor gave {token} for chunk {at}, which asked for {wanted}")
