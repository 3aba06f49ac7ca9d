"""Tiers on a scripted executor: shares by weight, latency first, gaps for batch, and nobody starves."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine import Bench, request

from decode.config import ConfigError, EngineConfig, TierConfig
from decode.plan import Finished, Rejected, StepPlan, TokenOut
from decode.types import RejectReason

MS = 1_000_000
THREE = (
    TierConfig("interactive", weight=8, ttft=50 * MS, itl=10 * MS),
    TierConfig("api", weight=3),
    TierConfig("batch", weight=1, idle_below=0.4),
)


def config(**changes: object) -> EngineConfig:
    base = EngineConfig(num_pages=400, page_size=4, max_num_seqs=8, max_num_batched_tokens=32, max_model_len=400)
    return replace(base, **changes)  # type: ignore[arg-type]


def service(bench: Bench) -> dict[str, float]:
    """What each tier got by the plans alone: positions computed for the first time, times their cost."""
    tiers = {s.number: s for s in bench.seen.values()}  # type: ignore[attr-defined]
    reached: dict[int, int] = {}
    got: dict[str, float] = {}
    for plan in bench.plans:
        for chunk in plan.chunks:
            sequence = tiers[chunk.seq]
            start = max(chunk.start, reached.get(chunk.seq, chunk.start))
            end = chunk.start + len(chunk.tokens)
            for position in range(start, end):
                cost = bench.config.prefill_cost if position < sequence.prompt_len else bench.config.decode_cost
                got[sequence.request.tier] = got.get(sequence.request.tier, 0.0) + cost
            reached[chunk.seq] = max(end, reached.get(chunk.seq, 0))
    return got


class Watched(Bench):
    """Remembers every sequence that was planned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen: dict[int, object] = {}

    def _run(self, plan: StepPlan) -> None:
        super()._run(plan)
        self.seen |= {s.number: s for s in self.engine.scheduler.draft.planned}


def backlog(bench: Bench, tiers: tuple[str, ...], count: int, prompt: range, out: range, seed: int = 0) -> None:
    draw = random.Random(seed)
    for tier in tiers:
        bench.submit(*(request(f"{tier}-{n}", draw.choice(prompt), draw.choice(out), tier) for n in range(count)))


@settings(max_examples=25, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.5, 1, 2, 5]), min_size=2, max_size=3),
    longest=st.integers(1, 60),
    most=st.integers(1, 40),
    seed=st.integers(0, 1000),
    prefill_cost=st.sampled_from([0.5, 1.0]),
)
def test_waiting_tiers_share_by_weight_within_the_bound(
    weights: list[float], longest: int, most: int, seed: int, prefill_cost: float
) -> None:
    """The bound of accounts.py, over every interval in which all tiers wait; service is counted from the plans."""
    tiers = tuple(TierConfig(f"t{n}", weight=w) for n, w in enumerate(weights))
    bench = Watched(config(tiers=tiers, prefill_cost=prefill_cost))
    names = tuple(t.name for t in tiers)
    backlog(bench, names, 60, range(1, longest + 1), range(1, most + 1), seed)
    levels = []
    while all(bench.engine.scheduler.waiting(name) for name in names) and len(levels) < 150:
        bench.step()
        got = service(bench)
        levels.append([got.get(name, 0.0) / tier.weight for name, tier in zip(names, tiers, strict=True)])
    running = bench.config.max_num_seqs * (longest * prefill_cost + most * bench.config.decode_cost)
    bound = 2 * max(longest * prefill_cost, running) / min(weights)
    gaps = [[level[0] - other for other in level[1:]] for level in levels]
    for column in zip(*gaps, strict=True):
        assert max(column) - min(column) <= bound


def test_long_run_shares_are_those_of_the_weights() -> None:
    bench = Watched(config(tiers=(TierConfig("a", weight=3), TierConfig("b"))))
    backlog(bench, ("a", "b"), 400, range(10, 30), range(5, 20))
    while bench.engine.scheduler.waiting("a"):
        bench.step()
    got = service(bench)
    assert got["a"] / got["b"] == pytest.approx(3, rel=0.1)
    assert bench.engine.stats().service == got


def test_idle_time_cannot_be_banked() -> None:
    """Tier a sleeps while b works; when it wakes it gets its share from then on, not all that it missed."""
    bench = Watched(config(tiers=(TierConfig("a"), TierConfig("b"))))
    backlog(bench, ("b",), 300, range(10, 20), range(5, 10))
    for _ in range(200):
        bench.step()
    before = service(bench)
    backlog(bench, ("a",), 100, range(10, 20), range(5, 10))
    for _ in range(60):
        bench.step()
    after = service(bench)
    assert bench.engine.scheduler.waiting("a") and bench.engine.scheduler.waiting("b")
    assert after["b"] - before["b"] > 0.7 * after["a"]


def test_an_urgent_request_does_not_wait_for_slots_of_lower_tiers() -> None:
    bench = Bench(config(tiers=THREE))
    backlog(bench, ("batch",), 8, range(8, 9), range(100, 101))
    for _ in range(10):
        bench.step()
    assert len(bench.engine.scheduler.roster.running) == 8
    bench.submit(request("now", 8, 3, "interactive"))
    bench.step()
    assert any(e.request_id == "now" for e in bench.events if isinstance(e, TokenOut))
    assert bench.engine.stats().preemptions == 1
    bench.run()
    assert all(len(bench.output(f"batch-{n}")) == 100 for n in range(8))


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_an_urgent_request_does_not_wait_for_pages_of_lower_tiers(prefix_cache: bool) -> None:
    """Slots are free and pages are not: no more lower ones give way than are needed, published pages or not."""
    bench = Bench(config(tiers=THREE, num_pages=80, watermark=0.0, prefix_cache=prefix_cache))
    backlog(bench, ("batch",), 4, range(40, 41), range(100, 101))
    for _ in range(40):
        bench.step()
    assert len(bench.engine.scheduler.roster.running) == 4 and bench.engine.cache.available < 15
    bench.submit(request("now", 60, 3, "interactive"))
    bench.step()
    assert "now" in {s.request.id for s in bench.engine.scheduler.roster.running}
    assert bench.engine.stats().preemptions == 1
    bench.run()
    assert len(bench.output("now")) == 3


def test_the_one_that_loses_least_work_gives_way() -> None:
    bench = Bench(config(tiers=THREE))
    for n in range(8):
        bench.submit(request(f"b{n}", 8, 100, "batch"))
        bench.step()
    bench.submit(request("now", 8, 3, "interactive"))
    running = {s.request.id: s.computed for s in bench.engine.scheduler.roster.running}
    bench.step()
    left = {s.request.id for s in bench.engine.scheduler.roster.running}
    assert "now" in left and bench.engine.stats().preemptions == 1
    [loser] = set(running) - left
    assert running[loser] == min(running.values()) < sorted(running.values())[1]


def test_equals_never_evict_each_other() -> None:
    bench = Bench(config(tiers=THREE))
    backlog(bench, ("interactive",), 20, range(8, 9), range(50, 51))
    bench.run()
    assert bench.engine.stats().preemptions == 0


def overload(policy: str) -> Watched:
    """Every tier asks for far more than the machine can do, for 600 steps."""
    bench = Watched(config(tiers=THREE, policy=policy))
    backlog(bench, ("interactive", "api", "batch"), 200, range(5, 30), range(5, 30))
    for _ in range(600):
        bench.step()
    return bench


def test_under_overload_every_tier_goes_on_at_its_share() -> None:
    bench = overload("weighted")
    ended = [e.request_id.partition("-")[0] for e in bench.events if isinstance(e, Finished)]
    assert all(ended.count(tier) > 0 for tier in ("interactive", "api", "batch"))
    got = service(bench)
    assert got["interactive"] / got["api"] == pytest.approx(8 / 3, rel=0.25)
    assert got["batch"] / got["api"] == pytest.approx(1 / 3, rel=0.5)
    assert max(s.preemptions for s in bench.seen.values()) <= bench.config.max_preemptions  # type: ignore[attr-defined]


def test_absolute_priority_starves_and_is_kept_to_show_it() -> None:
    got = service(overload("priority"))
    assert got.get("batch", 0.0) == 0.0


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    pages=st.integers(30, 120),
    host=st.sampled_from([0, 7, 300]),
    policy=st.sampled_from(["weighted", "priority", "fcfs"]),
)
def test_random_lives_end_once_and_nothing_idles(data: st.DataObject, pages: int, host: int, policy: str) -> None:
    """Arrivals, cancels, tiers, gaps, caps and few pages: invariants after every operation, one end for each."""
    tiers = (
        replace(THREE[0], queue_timeout=60 * MS),
        replace(THREE[1], max_long=1, long_tokens=20),
        replace(THREE[2], max_queue=5),
    )
    bench = Bench(
        config(tiers=tiers, num_pages=pages, policy=policy, max_preemptions=2, early_refusal=True, host_pages=host)
    )
    names = []
    for n in range(data.draw(st.integers(1, 30))):
        tier = data.draw(st.sampled_from(["interactive", "api", "batch"]))
        names.append(f"r{n}")
        bench.submit(request(f"r{n}", data.draw(st.integers(1, 40)), data.draw(st.integers(1, 30)), tier))
        if data.draw(st.booleans()):
            assert bench.step() or bench.engine.idle, "idle although something waits"
        if data.draw(st.integers(0, 9)) == 0:
            bench.cancel(data.draw(st.sampled_from(names)))
    while not bench.engine.idle:
        assert bench.step(), "idle although something waits"
    bench.step()  # takes the last events
    ends = [e.request_id for e in bench.events if isinstance(e, Finished | Rejected)]
    assert sorted(ends) == sorted(names)


def test_batch_starts_only_in_gaps_but_is_not_starved() -> None:
    """Interactive work fills every step; batch may start when it is owed PATIENCE steps, and not before."""
    bench = Bench(config(tiers=THREE))
    backlog(bench, ("interactive",), 100, range(20, 21), range(40, 41))
    for _ in range(20):
        bench.step()
    bench.submit(request("bulk", 8, 4, "batch"))
    for _ in range(20):
        bench.step()
    assert not bench.output("bulk")
    first = None
    for step in range(2000):
        if not bench.step():
            break
        if bench.output("bulk"):
            first = step
            break
    assert first is not None and bench.engine.scheduler.waiting("interactive"), "it came only when all else was done"


@pytest.mark.parametrize("beside", [False, True])
def test_a_gap_tier_with_a_target_that_no_step_can_keep_goes_on(beside: bool) -> None:
    tiers = (TierConfig("interactive", itl=10**12), TierConfig("batch", idle_below=0.4, itl=1))
    bench = Bench(config(tiers=tiers))
    bench.executor._elapsed = linear
    bench.submit(request("a", 8, 10, "batch"), request("b", 8, 10, "batch"))
    if beside:
        bench.submit(request("talk", 8, 10, "interactive"))
    bench.run()
    assert [len(bench.output(name)) for name in ("a", "b")] == [10, 10] and bench.engine.idle


def test_batch_alone_gets_the_whole_machine_at_once() -> None:
    bench = Bench(config(tiers=THREE))
    backlog(bench, ("interactive",), 20, range(20, 21), range(10, 11))
    bench.run()
    backlog(bench, ("batch",), 8, range(4, 5), range(10, 11))
    bench.step()
    assert len(bench.engine.scheduler.roster.running) == 8


def test_a_few_huge_prompts_cannot_hold_all_pages() -> None:
    tiers = (TierConfig("api", max_long=1, long_tokens=100),)
    bench = Bench(config(tiers=tiers))
    for n in range(4):
        bench.submit(request(f"huge-{n}", 150, 5, "api"))
    for n in range(6):
        bench.submit(request(f"small-{n}", 5, 5, "api"))
    most = 0
    while bench.step():
        most = max(most, sum(s.long for s in bench.engine.scheduler.roster.running))
    assert most == 1
    order = [e.request_id for e in bench.events if isinstance(e, Finished)]
    assert len(order) == 10
    assert max(order.index(f"small-{n}") for n in range(6)) < order.index("huge-1")


def test_a_full_queue_says_when_to_retry() -> None:
    bench = Bench(config(tiers=(TierConfig("api", max_queue=3),), max_num_seqs=1))
    for n in range(4):
        bench.submit(request(f"r{n}", 4, 10, "api"))
        bench.step()
    for _ in range(25):
        bench.step()
    for n in range(4, 7):
        bench.submit(request(f"r{n}", 4, 10, "api"))
    bench.step()
    end = next(e for e in bench.events if isinstance(e, Rejected))
    assert end.reason is RejectReason.QUEUE_FULL
    assert end.message.startswith("queue of tier api is full (3): retry in about 0.0 s or raise max_queue")


def test_a_wait_that_cannot_be_kept_is_refused_at_once() -> None:
    tier = TierConfig("api", queue_timeout=30 * MS)
    for early in (True, False):
        bench = Bench(config(tiers=(tier,), max_num_seqs=1, early_refusal=early))
        for n in range(3):
            bench.submit(request(f"r{n}", 4, 10, "api"))
        for _ in range(24):
            bench.step()
        bench.submit(*(request(f"s{n}", 4, 10, "api") for n in range(6)))
        bench.events += bench.engine.take_events()
        refused = [e for e in bench.events if isinstance(e, Rejected)]
        assert bool(refused) == early
        if early:
            assert refused[0].reason is RejectReason.QUEUE_TIMEOUT
            assert "requests wait in the queue of tier api, about 0.0 s, and its queue_timeout is 0.03 s" in (
                refused[0].message
            )


def linear(plan: StepPlan) -> int:
    """A machine whose step takes 1 ms, 0.1 ms a prompt token and 0.2 ms a decoding sequence."""
    decodes = sum(len(c.tokens) == 1 and c.draw is not None for c in plan.chunks)
    return int(MS + 0.1 * MS * (plan.num_tokens - decodes) + 0.2 * MS * decodes)


@pytest.mark.parametrize(
    ("policy", "between", "kept"), [("weighted", 0, True), ("weighted", 3, True), ("fcfs", 0, False)]
)
def test_steps_are_sized_to_keep_the_smallest_itl_target(policy: str, between: int, kept: bool) -> None:
    """Two sequences decode with a target of 10 ms while long prompts come in; a whole budget of 200 takes 21 ms.

    The client waits from token to token: what lies `between` two steps, in ms, counts as well.
    """
    tiers = (TierConfig("interactive", itl=10 * MS), TierConfig("batch"))
    bench = Bench(config(tiers=tiers, policy=policy, max_num_batched_tokens=200, num_pages=2000))
    bench.executor._elapsed = linear
    bench.submit(*(request(f"warm-{n}", 20 + 17 * n, 30, "batch") for n in range(6)))
    while bench.step():
        bench.now += between * MS
    bench.submit(request("talk-0", 8, 60, "interactive"), request("talk-1", 8, 60, "interactive"))
    bench.step()
    bench.submit(*(request(f"bulk-{n}", 300, 5, "batch") for n in range(4)))
    while bench.step():
        bench.now += between * MS
    times = [e.time for e in bench.events if isinstance(e, TokenOut) and e.request_id == "talk-0"]
    worst = max(b - a for a, b in pairwise(times))
    assert (worst <= 10 * MS) == kept
    assert all(len(bench.output(f"bulk-{n}")) == 5 for n in range(4))


def test_prompts_never_stop_altogether_however_tight_the_target() -> None:
    tiers = (TierConfig("interactive", itl=1), TierConfig("batch"))
    bench = Bench(config(tiers=tiers, min_prefill_tokens=4))
    bench.executor._elapsed = linear
    bench.submit(request("talk", 8, 100, "interactive"))
    bench.step()
    bench.submit(request("bulk", 60, 5, "batch"))
    for _ in range(16):
        bench.step()
    assert bench.output("bulk")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"weight": 0}, "tiers.a.weight: 0 is not allowed; a number > 0"),
        ({"idle_below": 1.5}, "tiers.a.idle_below: 1.5 is not allowed; a share in (0, 1]"),
        ({"itl": 0}, "tiers.a.itl: 0 is not allowed; an integer >= 1"),
        ({"max_long": 0}, "tiers.a.max_long: 0 is not allowed; an integer >= 1"),
    ],
)
def test_limits_of_a_tier_are_checked(changes: dict[str, float], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        TierConfig("a", **changes)  # type: ignore[arg-type]
    assert str(error.value) == told


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="policy: 'lifo' is not allowed; one of weighted, priority, fcfs"):
        config(policy="lifo")


@pytest.mark.parametrize(("host", "swaps"), [(0, 0), (3, 0), (400, 1)])
def test_an_evicted_sequence_is_saved_where_that_is_cheaper_and_there_is_room(host: int, swaps: int) -> None:
    bench = Bench(config(tiers=THREE, host_pages=host, swap_page_time=1, max_num_seqs=1))
    bench.executor._elapsed = linear
    bench.submit(request("bulk", 40, 60, "batch"))
    for _ in range(20):
        bench.step()
    bench.submit(request("now", 8, 3, "interactive"))
    bench.run()
    assert bench.engine.scheduler.roster.swaps == swaps and bench.engine.stats().preemptions == 1
    computed = sum(len(c.tokens) for plan in bench.plans for c in plan.chunks)
    assert bench.engine.cache.host.free == host
    assert len(bench.output("bulk")) == 60 and (computed == 40 + 59 + 8 + 2 or not swaps)
