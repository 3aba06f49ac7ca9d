"""The parity test: a recorded run, played again on the virtual clock, gives the same plans; and it notices a change."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from decode.clock import VirtualClock, WallClock
from decode.config import EngineConfig, TierConfig
from decode.driver import Driver, Round
from decode.engine import Engine
from decode.executors.base import Executor
from decode.executors.scripted import ScriptedExecutor
from decode.executors.torch_paged import TorchExecutor
from decode.plan import Cancel, Event, Finished, Input, Rejected, StepPlan, StepResult, Submit, TokenOut
from decode.trace import Trace, replay
from decode.types import Request, SamplingParams

CONFIG = EngineConfig(
    num_pages=40,
    page_size=8,
    max_num_seqs=6,
    max_num_batched_tokens=32,
    max_model_len=200,
    tiers=(
        TierConfig("default", queue_timeout=400_000_000, weight=3, ttft=100_000_000, itl=5_000_000),
        TierConfig("other", idle_below=0.4, max_long=1, long_tokens=40),
    ),
    early_refusal=True,
    host_pages=20,
    swap_page_time=1_000,
    eos_token_ids=(2,),
    watermark=0.05,
)


class Script:
    """Requests and cancels at wall-clock times; sink for what comes out."""

    def __init__(self, seed: int, vocab: int) -> None:
        rng = random.Random(seed)
        begin = time.monotonic_ns()
        common = tuple(rng.randrange(3, vocab) for _ in range(20))
        todo: list[tuple[int, Input]] = []
        for i in range(24):
            prompt = (common if i % 2 else ()) + tuple(rng.randrange(3, vocab) for _ in range(rng.randrange(1, 60)))
            sampling = SamplingParams(max_tokens=rng.randrange(1, 40), temperature=i % 3 / 2, seed=i)
            at = begin + rng.randrange(300_000_000)
            todo.append((at, Submit(Request(f"r{i}", prompt, sampling, ("default", "other")[i % 5 == 0]))))
            if i % 7 == 0:
                todo.append((at + 50_000_000, Cancel(f"r{i}")))
        self.todo = deque(sorted(todo, key=lambda item: item[0]))
        self.events: list[Event] = []

    def due(self, now: int) -> Sequence[Input]:
        items = []
        while self.todo and self.todo[0][0] <= now:
            items.append(self.todo.popleft()[1])
        return items

    def wait(self) -> bool:
        if not self.todo:
            return False
        time.sleep(max(0, self.todo[0][0] - time.monotonic_ns()) / 1e9)
        return True

    def emit(self, events: Sequence[Event]) -> None:
        self.events.extend(events)


def record(executor: Executor, seed: int, vocab: int) -> tuple[Trace, list[Event]]:
    trace, script = Trace(), Script(seed, vocab)
    engine = Engine(CONFIG)
    Driver(engine, executor, WallClock(), script, script, trace).run()
    engine.check()
    assert engine.idle
    return trace, script.events


def test_a_torch_run_and_its_replay_have_equal_plans_and_events(smollm2_dir: Path) -> None:
    executor = TorchExecutor(smollm2_dir, num_pages=CONFIG.num_pages, page_size=CONFIG.page_size, host_pages=20)
    trace, events = record(executor, seed=1, vocab=40_000)
    digest, again = replay(trace, CONFIG)
    assert digest == trace.digest
    assert [e._replace(time=0) for e in again] == [e._replace(time=0) for e in events]
    assert sum(isinstance(e, TokenOut) for e in events) > 100


def test_failed_steps_replay_too() -> None:
    class Flaky(ScriptedExecutor):
        count = 0

        def execute(self, plan: StepPlan) -> StepResult:
            self.count += 1
            if self.count % 10 == 0:
                raise RuntimeError("flaky")
            return super().execute(plan)

    trace, events = record(Flaky(lambda c: c.draw.position % 90, lambda plan: 1000), seed=2, vocab=100)  # type: ignore[union-attr]
    digest, again = replay(trace, CONFIG)
    assert digest == trace.digest and len(again) == len(events)


def test_the_digest_notices_another_scheduling() -> None:
    executor = ScriptedExecutor(lambda c: c.draw.position % 90, lambda plan: 1000)  # type: ignore[union-attr]
    trace, _ = record(executor, seed=3, vocab=100)
    assert replay(trace, CONFIG)[0] == trace.digest
    other = replace(CONFIG, page_size=4, num_pages=80)
    assert replay(trace, other)[0] != trace.digest


class Virtual:
    """Arrivals on the virtual clock, where a replay must agree in every moment, too."""

    def __init__(self, clock: VirtualClock, *arrivals: tuple[int, Input]) -> None:
        self.clock = clock
        self.todo = deque(arrivals)
        self.events: list[Event] = []

    def due(self, now: int) -> Sequence[Input]:
        return [self.todo.popleft()[1] for at, _ in list(self.todo) if at <= now]

    def wait(self) -> bool:
        if self.todo:
            self.clock.advance_to(self.todo[0][0])
        return bool(self.todo)

    def emit(self, events: Sequence[Event]) -> None:
        self.events.extend(events)


def virtual_run(*arrivals: tuple[int, Input], step: int = 100_000_000) -> tuple[Trace, list[Event]]:
    clock, trace = VirtualClock(), Trace()
    world = Virtual(clock, *arrivals)
    executor = ScriptedExecutor(lambda chunk: 5, lambda plan: step)
    Driver(Engine(CONFIG), executor, clock, world, world, trace).run()
    return trace, world.events


def ask(name: str, prompt: int, out: int) -> Submit:
    return Submit(Request(name, tuple(range(10, 10 + prompt)), SamplingParams(max_tokens=out, seed=0)))


def test_a_replay_of_virtual_time_agrees_in_every_moment() -> None:
    """Idle gaps, a timeout that hangs on the moment of a plan, and inputs that came while nothing was running."""
    blockers = [(7, ask(f"b{i}", 4, 30)) for i in range(6)]
    late = [(50, ask("times out", 4, 5)), (9_000_000_000, ask("after a gap", 4, 2)), (9_000_000_000, Cancel("no one"))]
    trace, events = virtual_run(*blockers, *late)
    assert any(isinstance(e, Rejected) and e.request_id == "times out" for e in events)
    digest, again = replay(trace, CONFIG)
    assert digest == trace.digest and again == events
    assert replay(trace, replace(CONFIG, tiers=(TierConfig("default"), TierConfig("other"))))[0] != digest


def test_a_trace_holds_what_each_step_took_and_gave() -> None:
    trace, _ = virtual_run((7, ask("a", 4, 2)), (7, ask("b", 40, 1)), step=10)
    assert [(r.now, len(r.inputs)) for r in trace.records] == [(7, 2), (17, 0)]
    assert [r.result for r in trace.records] == [StepResult((5, None), 10), StepResult((5, 5), 10)]


def test_the_digest_is_of_all_plans_in_order() -> None:
    plans = [StepPlan(0, ()), StepPlan(1, ()), None]
    digests = set()
    for order in ((), (0,), (1,), (0, 1), (1, 0), (0, 2), (2, 0), (0, 0)):
        trace = Trace()
        for i in order:
            trace.step(Round(0, (), plans[i], None), ())
        digests.add(trace.digest)
    assert len(digests) == 8
    assert Trace().digest == replay(Trace(), CONFIG)[0] and replay(Trace(), CONFIG)[1] == []


def test_a_record_without_a_result_fails_in_the_replay_and_says_so() -> None:
    trace, _ = virtual_run((7, ask("a", 4, 1)))
    trace.records[0] = trace.records[0]._replace(result=None)
    digest, events = replay(trace, CONFIG)
    assert digest == trace.digest  # the plan was made
    end = events[-1]
    assert isinstance(end, Finished) and "the recorded step failed, too" in end.message
