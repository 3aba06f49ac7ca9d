"""Beyond capacity: who can no longer be in time lets those pass who can, and nobody is held up by it below capacity."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine import Bench, request

from decode.config import EngineConfig, TierConfig
from decode.executors.cost_model import Law
from decode.executors.gpu_cost import StepWork
from decode.outcome import NEVER
from decode.plan import Rejected, Started
from decode.simulator import Timed, simulate
from decode.types import Request, SamplingParams

MS, SECOND = 10**6, 10**9
STEP = 20 * MS
TTFT, E2E = TierConfig("a", ttft=500 * MS), TierConfig("a", e2e=1200 * MS)
CAPACITY = 50  # prompts of 64 tokens a second: one a step, and what earlier ones decode fits beside it
CONFIG = EngineConfig(num_pages=2000, max_num_seqs=16, max_num_batched_tokens=80, max_model_len=200)


class Fixed:
    """Every step takes as long."""

    spread = (1.0,)

    def step(self, work: StepWork) -> float:
        return STEP


class Growing:
    """A step takes 10 ms, and 0.5 more for each token of a prompt."""

    spread = (1.0,)

    def step(self, work: StepWork) -> float:
        return (10 + 0.5 * work.prefill_tokens) * MS


def arrivals(rate: float, seconds: float, seed: int = 0) -> list[Timed]:
    random, at, found = Random(seed), 0.0, list[Timed]()
    sampling = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True, seed=0)
    while (at := at + random.expovariate(rate)) < seconds:
        number = len(found)
        found.append((int(at * SECOND), Request(f"r{number}", (number, *[0] * 63), sampling, "a")))
    return found


def in_time(tier: TierConfig, rate: float, seed: int = 0, law: Law | None = None, **changes: object) -> float:
    """Requests a second that kept the target of `tier`, of those that came in ten seconds."""
    target, metric = (tier.ttft, "ttft") if tier.ttft else (tier.e2e, "e2e")
    assert target is not None
    given_ = replace(tier, ttft=None, e2e=None) if changes.pop("unaware", False) else tier
    config = replace(CONFIG, prefix_cache=False, tiers=(given_,), **changes)  # type: ignore[arg-type]
    record = simulate(config, law or Fixed(), arrivals(rate, 10, seed), 10 * SECOND).tiers["a"]
    return sum(value <= target for value in getattr(record, metric)) / 10


@pytest.mark.parametrize("tier", [TTFT, E2E])
def test_beyond_capacity_as_many_are_in_time_as_can_be_served(tier: TierConfig) -> None:
    assert in_time(tier, 120) > 0.85 * CAPACITY > 2 * in_time(tier, 120, unaware=True)


@pytest.mark.parametrize("tier", [TTFT, E2E])
@pytest.mark.parametrize("seed", range(5))
def test_below_capacity_it_is_first_come_first_served(tier: TierConfig, seed: int) -> None:
    assert in_time(tier, 25, seed) == in_time(tier, 25, seed, unaware=True)


@pytest.mark.parametrize("tier", [TTFT, E2E])
@pytest.mark.parametrize("budget", [80, 640])
def test_a_step_that_could_be_longer_makes_nobody_late(tier: TierConfig, budget: int) -> None:
    """A step of 640 tokens would take 330 ms, and six of those, as one request needs, longer than E2E allows."""
    law, most = Growing(), 1000 / 32  # prompts a second, if steps themselves cost nothing
    assert in_time(tier, 10, law=law, max_num_batched_tokens=budget) == len(arrivals(10, 10)) / 10
    served = in_time(tier, 60, law=law, max_num_batched_tokens=budget)
    assert served > 0.75 * most > 2 * in_time(tier, 60, law=law, max_num_batched_tokens=budget, unaware=True)


def test_priority_and_arrival_order_know_no_targets() -> None:
    for policy in ("fcfs", "priority"):
        assert in_time(TTFT, 120, policy=policy) == in_time(TTFT, 120, policy=policy, unaware=True)


def bench(seqs: int = 1, early_refusal: bool = False, **tier: object) -> Bench:
    """So many requests at a time, each step takes 1 ms; some are taken so that this is known."""
    config = EngineConfig(num_pages=100, page_size=4, max_num_seqs=seqs, max_num_batched_tokens=16, max_model_len=100)
    config = replace(config, early_refusal=early_refusal)
    made = Bench(replace(config, tiers=(TierConfig("default", **tier),)))  # type: ignore[arg-type]
    for n in range(10):
        made.submit(request(f"before{n}", 16, 4))
        made.run()
    made.events.clear()
    return made


def started(made: Bench) -> list[str]:
    return [event.request_id for event in made.events if isinstance(event, Started)]


def test_who_is_late_goes_after_who_is_not_and_then_by_arrival() -> None:
    made = bench(ttft=25 * MS)
    made.submit(request("running", 4, 20), request("late", 4, 2), request("later", 4, 2))
    made.step()
    made.now += 10 * MS
    made.submit(request("in time", 4, 2))
    made.run()
    # When the first ends, 30 ms have passed for the two that came with it, and 20 for the third.
    assert started(made) == ["running", "in time", "late", "later"]


def test_without_a_target_it_goes_by_arrival() -> None:
    made = bench()
    made.submit(request("running", 4, 20), request("first", 4, 2))
    made.step()
    made.now += 10 * MS
    made.submit(request("second", 4, 2))
    made.run()
    assert started(made) == ["running", "first", "second"]


def test_a_late_one_still_ends_at_its_timeout_and_the_first_to_time_out_is_told_first() -> None:
    made = bench(ttft=2 * MS, queue_timeout=30 * MS)
    made.submit(request("running", 4, 60), request("one", 4, 2), request("two", 4, 2))
    for _ in range(5):
        made.step()
    made.now += 5 * MS
    made.submit(request("three", 4, 2))
    made.run()
    refused = [event for event in made.events if isinstance(event, Rejected)]
    assert [event.request_id for event in refused] == ["one", "two", "three"]
    assert all("queue_timeout" in event.message for event in refused)


def test_in_a_full_queue_the_place_of_a_late_one_goes_to_the_next_that_comes() -> None:
    made = bench(ttft=5 * MS, max_queue=2)
    made.submit(request("running", 4, 40))
    made.step()
    made.submit(request("one", 4, 2), request("two", 4, 2))
    made.submit(request("turned away", 4, 2))  # nobody is late yet
    for _ in range(10):
        made.step()
    made.submit(request("three", 4, 2))
    made.run()
    refused = {event.request_id: event.message for event in made.events if isinstance(event, Rejected)}
    assert list(refused) == ["turned away", "one"]
    assert "queue of tier default is full (2): retry" in refused["turned away"]
    assert "is full (2), and after 0.0 s this one cannot keep its targets: retry later" in refused["one"]
    # By then three is late as well.
    assert started(made) == ["running", "two", "three"]


def test_a_long_one_that_may_not_start_does_not_turn_the_order_of_the_others() -> None:
    made = bench(seqs=2, ttft=25 * MS, max_long=1, long_tokens=60)
    made.submit(request("long", 4, 90), request("late and long", 4, 80), request("running", 4, 45))
    for _ in range(30):
        made.step()
    assert made.engine.scheduler.roster.waiting["default"].overdue() is not None
    for name in ("first", "second", "third"):
        made.submit(request(name, 4, 2))
        made.now += MS
    made.run()
    assert started(made) == ["long", "running", "first", "second", "third", "late and long"]


def test_a_wait_is_predicted_without_those_who_let_one_pass() -> None:
    made = bench(early_refusal=True, ttft=100 * MS, queue_timeout=2 * SECOND)
    made.submit(*(request(f"old{n}", 4, 30) for n in range(95)))
    for _ in range(200):
        made.step()
    queue = made.engine.scheduler.roster.waiting["default"]
    assert len(queue) * 30 * MS > 2 * SECOND  # more than a timeout, were it in order of arrival
    made.submit(request("new", 4, 2))
    for _ in range(40):
        made.step()
    assert started(made)[-2:] == ["new", "old7"]
    assert not any(isinstance(event, Rejected) for event in made.events)


def test_a_late_one_is_cancelled_like_any() -> None:
    made = bench(ttft=2 * MS)
    made.submit(request("running", 4, 20), request("late", 4, 2))
    for _ in range(5):
        made.step()
    assert made.engine.scheduler.roster.waiting["default"].overdue() is not None
    made.cancel("late")
    made.run()
    assert [event.request_id for event in made.events if isinstance(event, Rejected)] == ["late"]
    assert started(made) == ["running"] and made.engine.idle


@settings(max_examples=40, deadline=None)
@given(
    rate=st.floats(5, 200),
    ttft=st.sampled_from([None, 1 * MS, 100 * MS, 2 * SECOND]),
    e2e=st.sampled_from([None, 300 * MS, 5 * SECOND]),
    queue=st.sampled_from([None, 3, 20]),
    timeout=st.sampled_from([None, 400 * MS]),
    long_tokens=st.sampled_from([68, 500]),
    seed=st.integers(0, 99),
)
def test_everyone_gets_one_end_whatever_the_targets(
    rate: float, ttft: int | None, e2e: int | None, queue: int | None, timeout: int | None, long_tokens: int, seed: int
) -> None:
    tier = TierConfig("a", timeout, ttft=ttft, e2e=e2e, max_queue=queue, max_long=2, long_tokens=long_tokens)
    work = arrivals(rate, 3, seed)
    record = simulate(replace(CONFIG, tiers=(tier,)), Fixed(), work, 3 * SECOND).tiers["a"]
    assert len(record.e2e) == record.sent == len(work)
    if queue is None and timeout is None:
        assert NEVER not in record.e2e
