"""Failures that users of such systems report, each as a test with the right outcome, on the scripted executor.

The numbers in brackets are issues of the projects named.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from test_engine import Bench, request
from test_tiers import MS, THREE, backlog, config, linear

from decode.config import TierConfig
from decode.plan import Finished, Rejected, Started, TokenOut


def first_token(bench: Bench, name: str) -> int:
    return next(e.time for e in bench.events if isinstance(e, TokenOut) and e.request_id == name)


@pytest.mark.parametrize("policy", ["weighted", "priority", "fcfs"])
def test_a_queue_timeout_is_kept_to_the_step_whatever_runs(policy: str) -> None:
    """triton server 7512: 10 s asked, 90 s got, for the timeout fired when the request in front had ended."""
    tiers = (TierConfig("api", queue_timeout=10 * MS),)
    bench = Bench(config(tiers=tiers, max_num_seqs=1, policy=policy))
    bench.submit(request("front", 300, 60, "api"))
    bench.step()
    bench.submit(request("late", 4, 4, "api"))
    bench.run()
    [end] = [e for e in bench.events if isinstance(e, Rejected)]
    assert end.request_id == "late" and 11 * MS <= end.time <= 12 * MS


def test_an_urgent_request_does_not_wait_for_the_token_budget_of_a_long_prompt() -> None:
    """sglang 14872: slots and pages are free, and the budget of each step goes to a long prompt of a lower tier."""
    bench = Bench(config(tiers=THREE))
    bench.submit(request("long", 380, 5, "batch"))
    bench.step()
    bench.submit(request("now", 20, 3, "interactive"))
    bench.step()
    assert bench.output("now")


def test_short_prompts_do_not_wait_for_a_long_one_of_their_own_tier() -> None:
    """vllm 14003, 57413: the first token of short prompts waits until a long one is computed."""
    bench = Bench(config(tiers=(TierConfig("api"),)))
    bench.submit(request("long", 380, 5, "api"))
    bench.step()
    bench.submit(*(request(f"short-{n}", 10, 3, "api") for n in range(3)))
    for _ in range(4):
        bench.step()
    assert all(bench.output(f"short-{n}") for n in range(3))
    assert not bench.output("long")
    bench.run()
    assert first_token(bench, "long") <= (2 + 2 * 380 / 32) * MS  # it always gets at least half of a step


def test_a_stream_of_short_prompts_does_not_stop_a_long_one() -> None:
    bench = Bench(config(tiers=(TierConfig("api"),)))
    bench.submit(request("long", 320, 5, "api"))
    bench.step()
    for n in range(40):
        bench.submit(request(f"short-{n}", 14, 1, "api"))
        bench.step()
    assert bench.output("long")


def test_a_preempted_request_comes_back_first_in_its_tier_and_is_not_preempted_for_ever() -> None:
    """vllm 41951: it goes to the end of its queue and loses its work again and again."""
    bench = Bench(config(tiers=THREE, max_num_seqs=1, max_preemptions=2))
    bench.submit(request("bulk", 8, 60, "batch"), request("later", 8, 2, "batch"))
    for _ in range(5):
        bench.step()
    for n in range(6):
        bench.submit(request(f"now-{n}", 4, 3, "interactive"))
        for _ in range(5):
            bench.step()
    bench.run()
    ends = {e.request_id: e.usage.preemptions for e in bench.events if isinstance(e, Finished)}
    assert ends["bulk"] == 2
    order = [e.request_id for e in bench.events if isinstance(e, Finished)]
    assert order.index("bulk") < order.index("later")


def test_a_hot_prefix_does_not_let_its_requests_overtake_cold_ones() -> None:
    """sglang PR 31723: longest prefix first lets cold prompts starve for 20 to 60 s."""
    bench = Bench(config(tiers=(TierConfig("api"),), max_num_seqs=1))
    hot = tuple(range(1, 25))
    bench.submit(request("hot-0", hot, 2, "api"), request("cold", 24, 2, "api"))
    bench.submit(*(request(f"hot-{n}", hot, 2, "api") for n in range(1, 9)))
    bench.run()
    started = [e.request_id for e in bench.events if isinstance(e, Started)]
    assert started == ["hot-0", "cold", *(f"hot-{n}" for n in range(1, 9))]


def test_a_little_too_few_pages_cost_a_little() -> None:
    """vllm 18115: throughput collapses just above the capacity of the pool."""
    steps = {}
    for pages in (400, 60):  # all eight at once need 8 * 8 = 64
        bench = Bench(config(tiers=(TierConfig("api"),), num_pages=pages))
        backlog(bench, ("api",), 40, range(8, 9), range(24, 25))
        bench.run()
        steps[pages] = len(bench.plans)
    assert steps[60] <= 1.25 * steps[400]


@pytest.mark.parametrize("state", ["queued", "prefill", "decoding", "swapped"])
def test_a_cancel_in_every_state_frees_everything(state: str) -> None:
    """TensorRT-LLM 13713, 12117, 10810: a wedge or a leak, depending on when the client leaves."""
    bench = Bench(config(tiers=THREE, max_num_seqs=1, host_pages=100, swap_page_time=1))
    bench.executor._elapsed = linear
    if state == "queued":
        bench.submit(request("other", 4, 30, "interactive"))
        bench.step()
    bench.submit(request("gone", 100, 50, "batch"))
    for _ in range({"queued": 1, "prefill": 2, "decoding": 8, "swapped": 20}[state]):
        bench.step()
    if state == "swapped":
        bench.submit(request("now", 4, 10, "interactive"))
        bench.step()
        assert bench.engine.scheduler.roster.swaps == 1
    bench.cancel("gone")
    bench.run()
    assert bench.engine.idle and bench.engine.stats().pages_used == 0
    assert bench.engine.cache.host.free == 100
    assert sum(isinstance(e, Finished | Rejected) and e.request_id == "gone" for e in bench.events) == 1


def test_during_a_huge_prefill_decoding_keeps_its_pace() -> None:
    """local-inference-lab/vllm 541: decoding falls 40-fold during one 64k prefill."""
    tiers = (TierConfig("interactive", itl=8 * MS), TierConfig("batch"))
    bench = Bench(config(tiers=tiers, max_num_batched_tokens=256, num_pages=20_000, max_model_len=70_000))
    bench.executor._elapsed = linear
    bench.submit(*(request(f"warm-{n}", 20 + 17 * n, 30, "batch") for n in range(6)))
    bench.run()
    bench.submit(request("talk", 8, 300, "interactive"))
    bench.step()
    bench.submit(request("huge", 30_000, 2, "batch"))
    while len(bench.output("talk")) < 300:
        bench.step()
    times = [e.time for e in bench.events if isinstance(e, TokenOut) and e.request_id == "talk"]
    assert max(b - a for a, b in pairwise(times)) <= 8 * MS
    assert bench.engine.scheduler.roster.running[0].computed > 300 * 32  # and the prefill goes on
