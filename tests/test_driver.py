"""The loop itself: what it asks of source, executor, clock, sink and observer, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from decode.clock import VirtualClock
from decode.config import EngineConfig
from decode.driver import Driver, Phase, Round
from decode.engine import Engine
from decode.executors.scripted import ScriptedExecutor
from decode.plan import Event, Finished, Input, Logprobs, Started, StepPlan, StepResult, Submit, TokenOut
from decode.types import FinishReason, Request, SamplingParams

CONFIG = EngineConfig(num_pages=20, page_size=4, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=40)


def ask(name: str, out: int, prompt: int = 3) -> Submit:
    return Submit(Request(name, tuple(range(prompt)), SamplingParams(max_tokens=out, seed=0)))


class World:
    """Source, sink and observer in one, on a virtual clock; `log` tells what was called in which order."""

    def __init__(self, *arrivals: tuple[int, Input]) -> None:
        self.clock = VirtualClock()
        self.todo = list(arrivals)
        self.asked: list[int] = []
        self.events: list[Event] = []
        self.steps: list[Round] = []
        self.seen: list[list[Event]] = []
        self.phases: list[Phase | None] = []
        self.log: list[str] = []

    def due(self, now: int) -> Sequence[Input]:
        self.asked.append(now)
        items = [item for at, item in self.todo if at <= now]
        self.todo = [(at, item) for at, item in self.todo if at > now]
        return items

    def wait(self) -> bool:
        self.log.append("wait")
        if self.todo:
            self.clock.advance_to(self.todo[0][0])
        return bool(self.todo)

    def emit(self, events: Sequence[Event]) -> None:
        assert events, "no call without events"
        self.log.append("emit")
        self.events += events

    def step(self, seen: Round, events: Sequence[Event]) -> None:
        self.log.append("step")
        self.steps.append(seen)
        self.seen.append(list(events))

    def phase(self, phase: Phase | None) -> None:
        self.phases.append(phase)


class Faulty(ScriptedExecutor):
    """Answers as `spoil(number of the call, result)` says."""

    def __init__(self, spoil: Callable[[int, StepResult], StepResult]) -> None:
        super().__init__(lambda chunk: 7, lambda plan: 10)
        self.spoil = spoil
        self.calls = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.calls += 1
        return self.spoil(self.calls, super().execute(plan))


def drive(world: World, executor: ScriptedExecutor) -> Driver:
    return Driver(Engine(CONFIG), executor, world.clock, world, world, world, world.phase)


def plain() -> Faulty:
    return Faulty(lambda call, result: result)


def test_run_ends_when_the_source_says_that_nothing_will_ever_come() -> None:
    world = World((0, ask("a", 2)), (100, ask("b", 1)))
    driver = drive(world, plain())
    driver.run()
    assert [(type(e), e.request_id, getattr(e, "time", None)) for e in world.events] == [
        (Started, "a", 0),
        (TokenOut, "a", 10),
        (TokenOut, "a", 20),
        (Finished, "a", 20),
        (Started, "b", 100),
        (TokenOut, "b", 110),
        (Finished, "b", 110),
    ]
    assert world.asked == [0, 10, 20, 100, 110]
    # Waited only when there was nothing to execute; every step is seen before its events leave.
    assert world.log == ["step", "emit", "step", "emit", "wait", "step", "emit", "wait"]


def test_the_observer_sees_when_a_step_was_planned_what_it_took_and_what_came_of_it() -> None:
    world = World((0, ask("a", 1)), (5, ask("nonsense", 1, prompt=0)))
    driver = drive(world, plain())
    driver.run()
    (first, inputs, plan, result), (second, bad, none, nothing) = world.steps
    assert (first, inputs) == (0, [ask("a", 1)]) and plan is not None and result == StepResult((7,), 10)
    assert (second, bad) == (10, [ask("nonsense", 1, prompt=0)]) and none is None and nothing is None


def test_a_round_without_inputs_and_plan_is_not_reported() -> None:
    world = World()
    assert drive(world, plain()).step() is False
    assert world.steps == [] and world.log == []


def test_an_observer_is_optional() -> None:
    world = World((0, ask("a", 1)))
    Driver(Engine(CONFIG), plain(), world.clock, world, world).run()
    assert len(world.events) == 3 and world.steps == []


def test_failures_are_counted_until_a_step_succeeds() -> None:
    def spoil(call: int, result: StepResult) -> StepResult:
        if call in (1, 2, 4):
            raise ArithmeticError("too big")
        return result

    world = World(*((i, ask(f"r{i}", 1)) for i in range(4)))
    driver, counts = drive(world, Faulty(spoil)), []
    while True:
        if driver.step():
            counts.append(driver.failures)
        elif not world.wait():
            break
    assert counts == [1, 2, 0, 1]


def test_a_failed_step_reports_no_result_and_ends_requests_with_its_number_and_error() -> None:
    def spoil(call: int, result: StepResult) -> StepResult:
        raise ArithmeticError("too big")

    world = World((3, ask("a", 1)))
    driver = drive(world, Faulty(spoil))
    driver.run()
    end = world.events[-1]
    assert isinstance(end, Finished) and end.reason is FinishReason.ERROR and end.time == 3
    assert end.message == "step 0 failed: ArithmeticError: too big"
    assert world.steps[0][2] is not None and world.steps[0][3] is None
    driver.engine.check()
    assert driver.engine.idle


@pytest.mark.parametrize(
    ("spoiled", "words"),
    [
        (StepResult((), 10), "0 tokens for 2 chunks"),
        (StepResult((7, 7, 7), 10), "3 tokens for 2 chunks"),
        (StepResult((None, None), 10), "gave None for chunk 0, which asked for a token"),
        (StepResult((7, 7), 10), "gave 7 for chunk 1, which asked for none"),
        (StepResult((7, None), 10, (Logprobs(-1.0, ()),)), "1 logprobs for 2 chunks"),
    ],
)
def test_a_result_that_does_not_fit_its_plan_is_a_failed_step(spoiled: StepResult, words: str) -> None:
    """Half of it must not be committed: a sequence without the token it asked for would never end."""
    world = World((0, ask("whole", 2)), (0, ask("in two chunks", 2, prompt=20)))
    driver = drive(world, Faulty(lambda call, result: spoiled if call == 1 else result))
    driver.step()
    assert driver.failures == 1
    ends = [e for e in world.events if isinstance(e, Finished)]
    assert [e.request_id for e in ends] == ["whole", "in two chunks"]
    assert all(e.reason is FinishReason.ERROR and words in e.message and e.usage.output_tokens == 0 for e in ends)
    driver.engine.check()
    assert driver.engine.idle
