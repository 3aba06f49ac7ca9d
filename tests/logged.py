"""Engines that run with a step log, on a clock that moves a little whenever it is read, as a real one does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from decode.clock import VirtualClock
from decode.config import EngineConfig, TierConfig
from decode.driver import Driver, Round
from decode.engine import Engine, Stats
from decode.executors.scripted import ScriptedExecutor
from decode.plan import Cancel, Event, Input, StepPlan, StepResult, Submit
from decode.step_log import Entry, StepLog
from decode.types import Request, SamplingParams

MS = 10**6
# Few pages, slots and tokens, so that requests wait, are preempted, swapped, refused, and time out.
CONFIG = EngineConfig(
    num_pages=30,
    page_size=4,
    max_num_seqs=5,
    max_num_batched_tokens=24,
    max_model_len=80,
    watermark=0.0,
    host_pages=12,
    swap_page_time=1,
    tiers=(TierConfig("urgent", weight=8), TierConfig("batch", queue_timeout=300 * MS, max_queue=6)),
)


class Ticking(VirtualClock):
    """Every look at it takes 700 ns, and what happens between two looks with it."""

    def now(self) -> int:
        self.spend(700)
        return super().now()


@dataclass
class Logged:
    """A driver's source, sink and observer; what the observer saw, beside what the log says."""

    todo: list[tuple[int, Input]]
    clock: VirtualClock = field(default_factory=Ticking)
    rounds: list[Round] = field(default_factory=list)
    events: list[list[Event]] = field(default_factory=list)
    stats: list[Stats] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def due(self, now: int) -> Sequence[Input]:
        found = [item for at, item in self.todo if at <= now]
        self.todo = [(at, item) for at, item in self.todo if at > now]
        return found

    def wait(self) -> bool:
        if self.todo:
            self.clock.advance_to(self.todo[0][0])
        return bool(self.todo)

    def emit(self, events: Sequence[Event]) -> None:
        """Nobody listens."""

    def step(self, seen: Round, events: Sequence[Event]) -> None:
        self.rounds.append(seen)
        self.events.append(list(events))
        self.stats.append(self.engine.stats())
        self.log.step(seen, events)

    def run(self, config: EngineConfig = CONFIG, fails: Sequence[int] = ()) -> Logged:
        """To the end of all requests; steps of these numbers raise."""

        class Executor(ScriptedExecutor):
            def execute(self, plan: StepPlan) -> StepResult:
                if plan.step in fails:
                    raise ArithmeticError("planted")
                return super().execute(plan)

        executor = Executor(lambda chunk: 7, lambda plan: MS * (3 + len(plan.chunks)))
        self.engine = Engine(config)
        self.log = StepLog(self.engine, self.entries.append, self.clock)
        self.driver = Driver(self.engine, executor, self.clock, self, self, self, self.log.phase)
        self.driver.run()
        return self


def ask(name: str, prompt: int, out: int, tier: str = "urgent") -> Submit:
    first = sum(map(ord, name)) % 997 * 100
    tokens = tuple(range(first, first + prompt))
    return Submit(Request(name, tokens, SamplingParams(max_tokens=out, seed=0, ignore_eos=True), tier))


def busy(seed: int, requests: int = 40) -> Logged:
    """Requests of all kinds in two crowds with a pause between them, some cancelled."""
    rng = random.Random(seed)
    todo: list[tuple[int, Input]] = []
    for number in range(requests):
        at = rng.randrange(400 * MS) + (number % 2) * 4000 * MS
        tier = rng.choice(("urgent", "batch", "batch"))
        todo.append((at, ask(f"r{number}", rng.randrange(0, 40), rng.randrange(1, 30), tier)))
        if number % 6 == 0:
            todo.append((at + rng.randrange(200 * MS), Cancel(f"r{number}")))
    return Logged(sorted(todo, key=lambda one: one[0]))
