"""Steps before the first request: valid plans whatever the limits, and a law that holds from the first request on."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_engine import next_token, request
from test_tiers import MS, linear

from decode.config import EngineConfig, TierConfig
from decode.engine import Engine
from decode.executors.scripted import ScriptedExecutor
from decode.plan import StepPlan, StepResult, Submit, TokenOut
from decode.warm_up import ROUNDS, warm_up


class Kept(ScriptedExecutor):
    def __init__(self) -> None:
        super().__init__(next_token, linear)
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return super().execute(plan)


@given(
    pages=st.integers(1, 300),
    size=st.sampled_from([1, 4, 16]),
    seqs=st.integers(1, 40),
    more=st.integers(0, 200),
    length=st.integers(2, 500),
)
def test_plans_keep_the_limits_and_what_they_compute_is_told(
    pages: int, size: int, seqs: int, more: int, length: int
) -> None:
    config = EngineConfig(
        num_pages=pages, page_size=size, max_num_seqs=seqs, max_num_batched_tokens=seqs + more, max_model_len=length
    )
    executor = Kept()
    told = warm_up(executor, config)
    assert len(told) * ROUNDS == len(executor.plans) * (ROUNDS - 1)
    for plan, (work, elapsed) in zip(executor.plans[-len(told) :], told, strict=True):
        assert 0 < plan.num_tokens <= config.max_num_batched_tokens and len(plan.chunks) <= seqs
        for chunk in plan.chunks:
            end = chunk.start + len(chunk.tokens)
            assert chunk.start >= 0 and end <= max(1, length - 1) and set(chunk.pages) <= set(range(pages))
            assert len(chunk.pages) == -(-end // size)
            assert chunk.draw is not None and chunk.draw.position == end
        singles = [chunk for chunk in plan.chunks if len(chunk.tokens) == 1]
        assert work.decodes == len(singles) and work.context_tokens == sum(chunk.start + 1 for chunk in singles)
        assert work.prefill_tokens == plan.num_tokens - len(singles)
        attended = sum(len(c.tokens) * (c.start + len(c.tokens) / 2) for c in plan.chunks if len(c.tokens) > 1)
        assert work.prefill_context == pytest.approx(attended, abs=1) and elapsed == linear(plan)


@pytest.mark.parametrize("warm", [True, False])
def test_a_target_is_kept_from_the_first_prompt_on(warm: bool) -> None:
    """The very first request decodes with a target of 10 ms when a prompt of which a budget takes 21 ms comes in."""
    tiers = (TierConfig("interactive", itl=10 * MS), TierConfig("batch"))
    config = EngineConfig(num_pages=400, max_num_seqs=8, max_num_batched_tokens=200, max_model_len=1000, tiers=tiers)
    executor, now, times = Kept(), 0, []
    engine = Engine(config, warm_up(executor, config) if warm else ())
    engine.apply(Submit(request("talk", 8, 40, "interactive")), now)
    for at in range(40):
        if at == 2:
            engine.apply(Submit(request("bulk", 800, 5, "batch")), now)
        plan = engine.plan(now)
        assert plan is not None
        result = executor.execute(plan)
        now += result.elapsed
        engine.commit(plan, result, now)
        times += [e.time for e in engine.take_events() if isinstance(e, TokenOut) and e.request_id == "talk"]
    assert (max(b - a for a, b in pairwise(times)) <= 10 * MS) == warm
