"""The engine on a scripted executor: behaviours by name, then random lives with every invariant checked each step."""

from __future__ import annotations

import gc
import sys
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decode.config import EngineConfig, TierConfig
from decode.engine import Engine, Stats
from decode.executors.scripted import ScriptedExecutor
from decode.plan import (
    Cancel,
    Chunk,
    Event,
    Finished,
    Logprobs,
    Rejected,
    Started,
    StepPlan,
    StepResult,
    Submit,
    Swap,
    TokenOut,
)
from decode.types import FinishReason, RejectReason, Request, SamplingParams

EOS = 999


def next_token(chunk: Chunk) -> int:
    """A fake model whose next token depends on the position only, so that batching and preemption must not matter."""
    assert chunk.draw is not None
    return chunk.draw.position * 7 % 50


def request(name: str, prompt: int | tuple[int, ...], out: int, tier: str = "default", **sampling: object) -> Request:
    """`prompt`: token ids, or a number of tokens that no other name shares."""
    if isinstance(prompt, int):
        prompt = tuple(1000 + hash_of(name) * 1000 + i for i in range(prompt))
    return Request(name, prompt, SamplingParams(max_tokens=out, seed=0, **sampling), tier)  # type: ignore[arg-type]


def hash_of(name: str) -> int:
    return sum(ord(c) * 31**i for i, c in enumerate(name)) % 100_003


@dataclass
class Bench:
    """An engine with its executor, stepped by hand; `check()` after every operation."""

    config: EngineConfig
    token: object = next_token
    now: int = 0
    events: list[Event] = field(default_factory=list)
    plans: list[StepPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = Engine(self.config)
        self.executor = ScriptedExecutor(self.token, lambda plan: 1_000_000)  # type: ignore[arg-type]
        self.kv: dict[tuple[int, int], int] = {}  # (page, offset) -> token whose KV is there: what a GPU would hold

    def submit(self, *requests: Request) -> None:
        for r in requests:
            self.engine.apply(Submit(r), self.now)
            self.engine.check()

    def cancel(self, name: str) -> None:
        self.engine.apply(Cancel(name), self.now)
        self.engine.check()

    def step(self) -> bool:
        plan = self.engine.plan(self.now)
        self.engine.check()
        if plan is not None:
            self.plans.append(plan)
            self._run(plan)
            result = self.executor.execute(plan)
            self.now += result.elapsed
            self.engine.commit(plan, result, self.now)
            self.engine.check()
        self.events += self.engine.take_events()
        return plan is not None

    def run(self, most: int = 10_000) -> None:
        for _ in range(most):
            if not self.step():
                return
        raise AssertionError("the engine does not come to an end")

    def _run(self, plan: StepPlan) -> None:
        """What an executor does to memory; every position a chunk attends to must hold the right token's KV."""
        size = self.config.page_size
        assert 0 < plan.num_tokens <= self.config.max_num_batched_tokens
        assert len({c.seq for c in plan.chunks}) == len(plan.chunks) <= self.config.max_num_seqs
        for copy in plan.copies:
            if isinstance(copy, Swap):  # slots lie beside the pages, as pages -1, -2, …
                source, target = (copy.page, -1 - copy.slot) if copy.out else (-1 - copy.slot, copy.page)
                for offset in range(size):
                    self.kv.pop((target, offset), None)
                    if (source, offset) in self.kv:
                        self.kv[target, offset] = self.kv[source, offset]
                continue
            for offset in range(copy.tokens):
                self.kv[copy.dst, offset] = self.kv[copy.src, offset]
        writes: dict[tuple[int, int], int] = {}
        for chunk in plan.chunks:
            for i, token in enumerate(chunk.tokens):
                p = chunk.start + i
                slot = (chunk.pages[p // size], p % size)
                assert slot not in writes, "two chunks write the same slot"
                writes[slot] = token
        self.kv.update(writes)
        by_number = {s.number: s for s in self.engine.scheduler.draft.planned}
        for chunk in plan.chunks:
            tokens = by_number[chunk.seq].tokens
            assert chunk.tokens, "a chunk of nothing"
            assert (chunk.draw is not None) == (chunk.start + len(chunk.tokens) == len(tokens))
            for p in range(chunk.start + len(chunk.tokens)):
                assert self.kv[chunk.pages[p // size], p % size] == tokens[p], "attends to another's KV"

    def output(self, name: str) -> list[int]:
        return [e.token for e in self.events if isinstance(e, TokenOut) and e.request_id == name]

    def end(self, name: str) -> Finished | Rejected:
        ends = [e for e in self.events if isinstance(e, (Finished, Rejected)) and e.request_id == name]
        assert len(ends) == 1, f"{name} ended {len(ends)} times"
        return ends[0]


def small(**changes: object) -> EngineConfig:
    values: dict[str, object] = {
        "num_pages": 32,
        "page_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 16,
        "max_model_len": 100,
        "eos_token_ids": (EOS,),
        "watermark": 0.0,
    }
    return EngineConfig(**{**values, **changes})  # type: ignore[arg-type]


def test_one_request_gets_its_tokens_and_one_end() -> None:
    bench = Bench(small())
    bench.submit(request("a", 5, 3))
    bench.run()
    assert bench.output("a") == [5 * 7 % 50, 6 * 7 % 50, 7 * 7 % 50]
    end = bench.end("a")
    assert isinstance(end, Finished) and end.reason is FinishReason.LENGTH
    assert (end.usage.prompt_tokens, end.usage.cached_tokens, end.usage.output_tokens) == (5, 0, 3)
    assert bench.engine.idle and bench.engine.stats().pages_used == 0


def test_a_long_prompt_is_computed_in_chunks_within_the_budget_beside_decoding() -> None:
    bench = Bench(small(prefix_cache=False))
    bench.submit(request("short", 3, 12))
    bench.step()
    bench.submit(request("long", 40, 2))
    bench.run()
    assert all(p.num_tokens <= 16 for p in bench.plans)
    sizes = [len(c.tokens) for p in bench.plans for c in p.chunks if c.seq == 1]
    assert sizes == [15, 15, 10, 1]  # one token of each step's 16 goes to the decoding sequence
    assert all(len(p.chunks[0].tokens) == 1 and p.chunks[0].seq == 0 for p in bench.plans[1:12])


@pytest.mark.parametrize("length", [3, 4, 5, 7, 8, 9, 16])
def test_second_of_two_equal_prompts_shares_all_but_the_last_token(length: int) -> None:
    """Around a page in length, on page boundaries, and within the very step that computes the first."""
    prompt = tuple(range(length))
    bench = Bench(small(max_num_batched_tokens=40))
    bench.submit(request("a", prompt, 2), request("b", prompt, 2))
    bench.step()
    both = bench.plans[0].chunks
    full = (length - 1) // 4 * 4
    assert [len(c.tokens) for c in both] == [length, length - full]  # whole pages only, within one step
    bench.run()
    bench.submit(request("c", prompt, 2))
    bench.run()
    end = bench.end("c")
    assert isinstance(end, Finished) and end.usage.cached_tokens == length - 1  # part of a page by copy
    assert bench.output("a") == bench.output("b") == bench.output("c")


def test_a_prefix_shorter_than_a_page_is_shared_by_copy() -> None:
    bench = Bench(small())
    bench.submit(request("a", (1, 2, 3, 4, 5), 1))
    bench.run()
    bench.submit(request("b", (1, 2, 3, 9, 9), 1))
    bench.run()
    end = bench.end("b")
    assert isinstance(end, Finished) and end.usage.cached_tokens == 3
    assert [(c.tokens) for p in bench.plans for c in p.copies] == [3]


def test_without_prefix_cache_nothing_is_shared_or_kept() -> None:
    bench = Bench(small(prefix_cache=False))
    bench.submit(request("a", tuple(range(9)), 2), request("b", tuple(range(9)), 2))
    bench.run()
    assert bench.engine.stats().prefix_hit_tokens == 0
    assert bench.engine.stats().pages_cached == 0 and not any(p.copies for p in bench.plans)


def test_eos_stops_unless_ignored_and_min_tokens_bans_it() -> None:
    bench = Bench(small(), token=lambda chunk: EOS)
    bench.submit(request("a", 3, 5), request("b", 3, 5, ignore_eos=True), request("c", 3, 5, min_tokens=2))
    bench.step()
    draws = {c.seq: c.draw for c in bench.plans[0].chunks}
    assert draws[0].banned == () and draws[1].banned == () and draws[2].banned == (EOS,)  # type: ignore[union-attr]
    bench.run()
    assert bench.output("a") == [EOS] and bench.end("a").reason is FinishReason.STOP
    assert bench.output("b") == [EOS] * 5 and bench.end("b").reason is FinishReason.LENGTH


def test_stop_token_ids_stop() -> None:
    bench = Bench(small())
    bench.submit(request("a", 3, 9, stop_token_ids=(4 * 7,)))
    bench.run()
    assert bench.output("a") == [21, 28] and bench.end("a").reason is FinishReason.STOP


def test_output_ends_at_max_model_len() -> None:
    bench = Bench(small(max_model_len=8))
    bench.submit(request("a", 5, 50))
    bench.run()
    assert len(bench.output("a")) == 3 and bench.end("a").reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (request("x", (), 1), "empty"),
        (request("x", 100, 1), "the prompt has 100 tokens; at most max_model_len - 1 = 99"),
        (request("x", 60, 39), "needs 98 KV positions; the whole cache holds 80"),
        (request("x", 3, 1, tier="vip"), "tier: 'vip' is not allowed; one of default"),
        (request("x", (1, 5000), 1), "outside 0 to 4999"),
    ],
)
def test_what_can_never_run_is_refused_at_once_with_the_numbers(bad: Request, words: str) -> None:
    bench = Bench(small(num_pages=20, vocab_size=5000 if bad.prompt == (1, 5000) else None))
    bench.submit(bad)
    bench.events += bench.engine.take_events()
    end = bench.end("x")
    assert isinstance(end, Rejected) and end.reason is RejectReason.INVALID and words in end.message
    assert bench.engine.idle


def test_ids_at_the_edges_of_the_vocabulary_are_taken() -> None:
    bench = Bench(small(vocab_size=5000))
    bench.submit(request("a", (0, 4999), 1), request("b", (0,), 1), request("c", (0, -1), 1), request("d", (5000,), 1))
    bench.run()
    assert [isinstance(bench.end(name), Finished) for name in "abcd"] == [True, True, False, False]


def test_tokens_are_numbered_and_carry_their_time_and_logprobs() -> None:
    engine = Engine(small())
    engine.apply(Submit(request("a", 3, 2, logprobs=1)), 0)
    engine.apply(Submit(request("b", 20, 2)), 0)
    best = Logprobs(-0.5, ((7, -0.5),))
    for time, tokens in ((10, (7, None)), (20, (8, 9))):
        plan = engine.plan(time)
        assert plan is not None and len(plan.chunks) == 2
        engine.commit(plan, StepResult(tokens, 5, (best, None)), time + 5)
    outs = [e for e in engine.take_events() if isinstance(e, TokenOut)]
    assert outs == [
        TokenOut("a", 7, 0, 15, True, best),
        TokenOut("a", 8, 1, 25, True, best),
        TokenOut("b", 9, 0, 25, True, None),
    ]
    assert engine.take_events() == []


def test_id_of_a_live_request_is_refused_and_the_live_one_goes_on() -> None:
    bench = Bench(small())
    bench.submit(request("a", 3, 4))
    bench.step()
    bench.submit(request("a", 3, 4))
    bench.run()
    rejected = [e for e in bench.events if isinstance(e, Rejected)]
    assert len(rejected) == 1 and "in use" in rejected[0].message
    assert len(bench.output("a")) == 4


def test_full_queue_refuses_and_says_what_to_do() -> None:
    bench = Bench(small(tiers=(TierConfig("default", max_queue=2),), max_num_seqs=1))
    bench.submit(*(request(n, 3, 2) for n in "abcd"))  # a has a free slot, b and c wait
    bench.run()
    end = bench.end("d")
    assert isinstance(end, Rejected) and end.reason is RejectReason.QUEUE_FULL
    assert end.message == "queue of tier default is full (2): retry later or raise max_queue"
    assert all(isinstance(bench.end(n), Finished) for n in "abc")


@pytest.mark.parametrize(
    ("mode", "running", "taken"),
    [
        ("continuous", 0, 10),  # 8 free slots and 2 that wait
        ("continuous", 5, 5),
        ("continuous", 8, 2),
        ("static", 0, 10),
        ("static", 5, 2),  # a batch under way takes nobody in
        ("serial", 0, 3),
        ("serial", 1, 2),
    ],
)
def test_a_burst_between_two_steps_fills_free_slots_before_it_waits(mode: str, running: int, taken: int) -> None:
    bench = Bench(small(tiers=(TierConfig("default", max_queue=2),), mode=mode, num_pages=200))
    bench.submit(*(request(f"early{n}", 1, 20) for n in range(running)))
    bench.step()
    assert bench.engine.stats().running == running
    bench.submit(*(request(f"burst{n}", 1, 2) for n in range(14)))
    assert bench.engine.stats().waiting["default"] == taken
    bench.run()
    ends = [bench.end(f"burst{n}") for n in range(14)]
    assert [isinstance(end, Finished) for end in ends] == [True] * taken + [False] * (14 - taken)


def test_queue_timeout_fires_at_the_step_whatever_runs() -> None:
    """Elsewhere a timeout fired only when the request in front ended (10 s asked, 90 s got)."""
    tiers = (TierConfig("default", queue_timeout=10_000_000),)
    bench = Bench(small(tiers=tiers, max_num_seqs=1))
    bench.submit(request("blocker", 3, 60))
    bench.step()
    bench.submit(request("late", 3, 1))
    bench.run()
    end = bench.end("late")
    assert isinstance(end, Rejected) and end.reason is RejectReason.QUEUE_TIMEOUT
    assert end.time == 11_000_000  # steps take 1 ms, and it came at 1 ms: exact to the step
    text = "waited 0.010 s in the queue of tier default: retry later or raise its queue_timeout"
    assert end.message == text
    assert len(bench.output("blocker")) == 60


def test_oldest_goes_first_and_the_youngest_gives_way_when_pages_run_short() -> None:
    bench = Bench(small(num_pages=6, prefix_cache=False))
    for name in ("a", "b"):
        bench.submit(request(name, 8, 8))  # 2 pages each now, 4 at the end
        bench.now += 1
    bench.run()
    assert bench.engine.stats().preemptions >= 1
    ends = [e.request_id for e in bench.events if isinstance(e, Finished)]
    assert ends == ["a", "b"]
    a, b = bench.end("a"), bench.end("b")
    assert isinstance(a, Finished) and a.usage.preemptions == 0
    assert isinstance(b, Finished) and b.usage.preemptions == bench.engine.stats().preemptions
    assert [p.step for p in bench.plans if p.chunks[0].seq == 0] == list(range(8))  # a is not held up for one step
    alone = Bench(small(prefix_cache=False))
    alone.submit(request("b", 8, 8))
    alone.run()
    assert bench.output("b") == alone.output("b")


def test_a_preempted_request_resumes_before_newer_ones() -> None:
    bench = Bench(small(num_pages=6, prefix_cache=False))
    for name in ("a", "b", "c"):
        bench.submit(request(name, 8, 8))
        bench.now += 1
    bench.run()
    assert [e.request_id for e in bench.events if isinstance(e, Finished)] == ["a", "b", "c"]
    assert Counter(e.request_id for e in bench.events if isinstance(e, Started)) == {"a": 1, "b": 1, "c": 1}


def test_of_several_preempted_requests_the_oldest_resumes_first() -> None:
    """c gives way first and b after it; c would fit beside a sooner, but it is not its turn."""
    bench = Bench(small(num_pages=9, prefix_cache=False, max_num_batched_tokens=24))
    bench.submit(*(request(name, 8, 12) for name in "abc"))
    bench.run()
    assert [e.request_id for e in bench.events if isinstance(e, Finished)] == ["a", "b", "c"]
    preempted = [bench.end(name).usage.preemptions for name in "abc"]  # type: ignore[union-attr]
    assert preempted[0] == 0 and preempted[1] >= 1 and preempted[2] >= 1
    resumed = [c.seq for p in bench.plans for c in p.chunks if c.start == 0]
    assert resumed[:5] == [0, 1, 2, 1, 2]


def test_the_watermark_keeps_pages_for_those_that_run() -> None:
    bench = Bench(small(num_pages=10, watermark=0.2, prefix_cache=False))
    bench.submit(request("a", 12, 8), request("b", 24, 8))
    bench.step()
    bench.step()
    assert [s.request.id for s in bench.engine.scheduler.roster.running] == ["a"]  # 3 + 6 pages fit, but not 2 more
    bench.run()
    assert isinstance(bench.end("b"), Finished)


def test_a_request_that_needs_every_page_runs_once_it_is_alone() -> None:
    """Whatever the watermark: it would wait for ever otherwise, and all behind it."""
    bench = Bench(small(num_pages=5, watermark=0.5, prefix_cache=False))
    bench.submit(request("small", 3, 4), request("all", 20, 1), request("behind", 3, 1))
    bench.run()
    assert [e.request_id for e in bench.events if isinstance(e, Finished)] == ["small", "all", "behind"]


@pytest.mark.parametrize(("length", "started"), [(15, ["a", "b"]), (16, ["a"])])
def test_nobody_starts_in_a_step_whose_budget_is_spent(length: int, started: list[str]) -> None:
    """It would hold pages and count as running without getting anywhere; with one token left it gets somewhere."""
    bench = Bench(small())
    bench.submit(request("a", length, 4), request("b", 3, 4))
    bench.step()
    assert [e.request_id for e in bench.events if isinstance(e, Started)] == started
    assert bench.engine.stats().running == len(started)
    bench.step()
    assert bench.engine.stats().running == 2


def test_decoding_comes_before_prompts_even_older_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """First come, first served never leaves an older prompt behind; another policy of chunks may."""
    bench = Bench(small())
    monkeypatch.setattr("decode.policy.chunk", lambda remaining, budget: min(remaining, budget, 10))
    bench.submit(request("long", 60, 2), request("short", 3, 8))
    bench.step()
    monkeypatch.undo()
    for _ in range(3):
        bench.step()
        assert [(c.seq, len(c.tokens)) for c in bench.plans[-1].chunks] == [(1, 1), (0, 15)]


@pytest.mark.parametrize("when", [0, 1, 2, 4])
def test_cancel_in_every_state_leaves_nothing_behind(when: int) -> None:
    """0 steps: queued; 1, 2: in a chunked prompt; 4: decoding."""
    bench = Bench(small(max_num_seqs=2))
    bench.submit(request("a", 30, 20), request("b", 5, 4))
    for _ in range(when):
        bench.step()
    bench.cancel("a")
    bench.cancel("nobody")
    bench.run()
    end = bench.end("a")
    assert end.reason in (FinishReason.CANCELLED, RejectReason.CANCELLED)
    assert isinstance(end, Rejected) == (when == 0)
    assert len(bench.output("b")) == 4
    assert bench.engine.stats().pages_used == 0


def test_cancel_while_preempted() -> None:
    bench = Bench(small(num_pages=6, prefix_cache=False))
    for name in ("a", "b"):
        bench.submit(request(name, 8, 8))
        bench.now += 1
    while not bench.engine.stats().preemptions:
        bench.step()
    bench.cancel("b")
    bench.run()
    end = bench.end("b")
    assert isinstance(end, Finished) and end.reason is FinishReason.CANCELLED and bench.output("b")
    assert bench.engine.stats().pages_used == 0


def test_a_failed_step_ends_every_request_in_flight_and_trusts_no_page() -> None:
    bench = Bench(small(max_num_seqs=1))
    bench.submit(request("a", 9, 5), request("b", 9, 5))
    bench.step()
    assert bench.engine.plan(bench.now) is not None
    bench.engine.fail("it broke", bench.now)
    bench.engine.check()
    bench.events += bench.engine.take_events()
    for name in "ab":
        end = bench.end(name)
        assert isinstance(end, Finished) and end.reason is FinishReason.ERROR and end.message == "it broke"
    stats = bench.engine.stats()
    assert bench.engine.idle and stats.pages_used == 0 and stats.pages_cached == 0
    bench.submit(request("c", 9, 2))
    bench.run()
    assert len(bench.output("c")) == 2


def test_serial_runs_one_at_a_time_and_static_waits_for_the_whole_batch() -> None:
    def running_per_step(mode: str) -> list[int]:
        bench = Bench(small(mode=mode, max_num_batched_tokens=64))
        bench.submit(request("a", 3, 2), request("b", 3, 4), request("c", 3, 2))
        bench.step()
        bench.submit(request("d", 3, 2))
        bench.run()
        return [len(p.chunks) for p in bench.plans]

    assert running_per_step("serial") == [1] * 10
    assert running_per_step("static") == [3, 3, 1, 1, 1, 1]  # d waits for b
    assert running_per_step("continuous") == [3, 4, 2, 1]


def test_a_static_batch_fills_its_slots_however_small_the_token_budget() -> None:
    """A step's budget holds one of these prompts; a batch of one would make static look like serial."""
    bench = Bench(small(mode="static", max_num_seqs=3, num_pages=64))
    bench.submit(*(request(n, 16, 4) for n in "abcd"))
    bench.step()
    assert [s.request.id for s in bench.engine.scheduler.roster.running] == ["a", "b", "c"]
    assert [len(c.tokens) for c in bench.plans[0].chunks] == [16]
    bench.run()
    ends = [e.request_id for e in bench.events if isinstance(e, Finished)]
    starts = [e.request_id for e in bench.events if isinstance(e, Started)]
    assert ends == starts == ["a", "b", "c", "d"]
    last_of_c, start_of_d = (
        bench.end("c").time,
        next(e.time for e in bench.events if isinstance(e, Started) and e.request_id == "d"),
    )
    assert start_of_d >= last_of_c


def test_history_is_given_only_to_draws_with_penalties() -> None:
    bench = Bench(small())
    bench.submit(request("a", (1, 2, 3), 3, presence_penalty=1.0), request("b", (4, 5), 3))
    bench.run()
    last = {c.seq: c.draw for c in bench.plans[-1].chunks}
    assert last[0].prompt == (1, 2, 3) and last[0].output == (21, 28)  # type: ignore[union-attr]
    assert last[1].prompt == () and last[1].output == ()  # type: ignore[union-attr]


def test_stats_count_what_happened() -> None:
    tiers = (TierConfig("default"), TierConfig("other", max_queue=1))
    bench = Bench(small(tiers=tiers, max_num_seqs=2))
    bench.submit(request("a", (1, 2, 3, 4, 5, 6), 2), request("b", (1, 2, 3, 4, 9), 3))
    bench.step()
    bench.submit(request("c", 4, 1), request("d", 4, 1, tier="other"), request("e", 4, 1, tier="other"))
    stats = bench.engine.stats()
    assert stats == Stats(
        running=2,
        waiting={"default": 1, "other": 1},
        pages_total=32,
        pages_used=3,  # one shared, one each of their own
        pages_cached=0,
        preemptions=0,
        swaps=0,
        service={"default": 7.0, "other": 0.0},  # six tokens of a, and the one of b that is not shared
        prompt_tokens=11,
        prefix_hit_tokens=4,
        output_tokens=2,
        steps=1,
    )
    bench.run()
    assert not bench.step() and bench.engine.idle
    stats = bench.engine.stats()
    assert (stats.running, stats.waiting, stats.pages_used) == (0, {"default": 0, "other": 0}, 0)
    assert (stats.prompt_tokens, stats.prefix_hit_tokens, stats.output_tokens, stats.steps) == (19, 4, 7, 4)
    assert stats.pages_cached == bench.engine.cache.tree.size == 3  # the shared one, c's and d's


Life = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 30), st.integers(1, 20), st.integers(0, 3)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 4), st.just(0), st.just(0)),
        st.tuples(st.just("fail"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(
    life=Life,
    pages=st.integers(4, 24),
    page_size=st.integers(1, 5),
    seqs=st.integers(1, 6),
    budget=st.integers(6, 30),
    prefix_cache=st.booleans(),
    mode=st.sampled_from(["serial", "static", "continuous"]),
    watermark=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_any_life_ends_every_request_once_and_loses_no_page(
    life: list[tuple[str, int, int, int]],
    pages: int,
    page_size: int,
    seqs: int,
    budget: int,
    prefix_cache: bool,
    mode: str,
    watermark: float,
) -> None:
    """Random arrivals (with shared prefixes), cancels, failures, pool sizes; Bench checks memory at every step."""
    tiers = (TierConfig("default"), TierConfig("other", queue_timeout=7_000_000, max_queue=3))
    config = small(
        num_pages=pages,
        page_size=page_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        prefix_cache=prefix_cache,
        mode=mode,
        watermark=watermark,
        max_model_len=40,
        tiers=tiers,
    )
    bench, count = Bench(config), 0
    for what, a, b, c in life:
        if what == "submit":
            prompt = tuple(range(c * 100, c * 100 + a // 2)) + tuple(range(5000 + count, 5000 + count + a - a // 2))
            bench.submit(request(f"r{count}", prompt, b, tier="other" if c == 3 else "default"))
            count += 1
        elif what == "cancel":
            bench.cancel(f"r{a}")
        elif what == "step":
            for _ in range(a):
                bench.step()
        elif bench.engine.plan(bench.now) is not None:
            bench.engine.fail("broken", bench.now)
            bench.engine.check()
    bench.run()
    for i in range(count):
        end = bench.end(f"r{i}")
        if isinstance(end, Finished) and end.reason is FinishReason.LENGTH:
            first = end.usage.prompt_tokens
            expected = [p * 7 % 50 for p in range(first, first + end.usage.output_tokens)]
            assert bench.output(f"r{i}") == expected
    stats = bench.engine.stats()
    assert bench.engine.idle and stats.pages_used == 0 and stats.running == 0
    assert bench.engine.cache.available == pages


class Counted(OrderedDict[int, object]):
    """A waiting queue that counts how often any of its items is looked at or moved."""

    touched = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        for key in super().__iter__():
            Counted.touched += 1
            yield key

    def values(self):  # type: ignore[no-untyped-def,override]
        return (self[key] for key in self)

    def items(self):  # type: ignore[no-untyped-def,override]
        return ((key, self[key]) for key in self)

    def __getitem__(self, key: int) -> object:
        Counted.touched += 1
        return super().__getitem__(key)

    def __delitem__(self, key: int) -> None:
        Counted.touched += 1
        super().__delitem__(key)


def work_per_step(waiting: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(function calls, waiting items touched) of each of 12 steps; 1,000 run, some end and make room."""
    monkeypatch.setattr("decode.queues.OrderedDict", Counted)
    tiers = (TierConfig("default", queue_timeout=10**15, max_queue=20_000), TierConfig("other", queue_timeout=10**15))
    config = small(
        num_pages=20_000, page_size=16, max_num_seqs=1000, max_num_batched_tokens=8192, max_model_len=200, tiers=tiers
    )
    engine, executor = Engine(config), ScriptedExecutor(next_token)
    for i in range(1000 + waiting):
        tokens = tuple(range(i * 10, i * 10 + 8))
        wanted = 5 if i < 1000 and i % 100 == 0 else 50
        engine.apply(Submit(request(f"r{i}", tokens, wanted, tier=("default", "other")[i % 2])), i)
    engine.commit(plan := engine.plan(0), executor.execute(plan), 0)  # type: ignore[arg-type]
    work, calls = [], 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    for now in range(1, 13):
        calls, Counted.touched = 0, 0
        gc.disable()  # whoever listens to the collector would be counted, too
        sys.setprofile(profile)
        try:
            plan = engine.plan(now)
            assert plan is not None
            engine.commit(plan, executor.execute(plan), now)
            engine.take_events()
        finally:
            sys.setprofile(None)
            gc.enable()
        work.append((calls, Counted.touched))
        assert len(plan.chunks) == 1000
    assert engine.stats().running == 1000 and sum(engine.stats().waiting.values()) == waiting - 10
    return work


def test_a_step_costs_the_same_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 running; 10,000 waiting against 100: counted, not timed."""
    few, many = work_per_step(100, monkeypatch), work_per_step(10_000, monkeypatch)
    assert many == few
    assert max(touched for _, touched in many) <= 10 * 6  # ten start in one step; a few looks each
