"""What a step costs: the features of a plan, laws fitted from steps of a known machine, and their file."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from decode.bench import Run, measure
from decode.config import EngineConfig
from decode.executors.cost_model import (
    OTHERS,
    CostModelExecutor,
    Fit,
    FittedLaw,
    LawError,
    Measured,
    RunError,
    Step,
    work_of,
)
from decode.executors.gpu_cost import StepWork
from decode.executors.law_fit import FitError, fit
from decode.executors.scripted import ScriptedExecutor
from decode.plan import Chunk, Copy, Draw, StepPlan, Swap
from decode.simulator import simulate
from decode.types import Request, SamplingParams
from decode.workload import Workload
from gapless.law import run_error

LAW = Path(__file__).parent / "data" / "law.json"
NO_FIT = Fit(0.0, 0.0, 0, 0)
OFF = RunError(64, 0.01, -0.02, 0.0, 0.04)
# 20 ms to read the weights, whatever the tokens up to 64; then 0.3 ms each; 50 us a decode, 80 ns a context token.
TRUE = FittedLaw(20e6, (0, 64), (0.0, 3e5), 0.0, 3.0, 5e4, 80.0, 0.0, NO_FIT)


def work_like(tokens: int, decodes: int = 0, context: int = 0, prefill_context: int = 0) -> StepWork:
    """Prompt tokens in chunks of a hundred, none of them the last of its prompt."""
    return StepWork(tokens, -(-tokens // 100), prefill_context, decodes, context, decodes)


def drawn(count: int, noise: float, seed: int = 0, outliers: float = 0.0) -> list[Step]:
    """Steps of the machine TRUE, off by a normal error of `noise`; some take three times as long."""
    rng, steps = random.Random(seed), []
    for _ in range(count):
        decodes = rng.randint(0, 32)
        prefill = rng.choice([0, 0, rng.randint(2, 400)])
        work = work_like(prefill, decodes, decodes * rng.randint(20, 2000), prefill * rng.randint(1, 1500))
        off = rng.gauss(1, noise) * (3 if rng.random() < outliers else 1)
        if prefill + decodes:
            steps.append((work, TRUE.step(work) * off))
    return steps


def test_the_features_of_a_plan_are_those_of_its_tokens() -> None:
    draw = Draw(SamplingParams(), 9)
    chunks = (
        Chunk(0, (5,), 8, (0,), draw),  # decodes: attends to 9 positions
        Chunk(1, (5,) * 4, 0, (1,), None),  # attends to 1 + 2 + 3 + 4, half of 4 * 4 is counted
        Chunk(2, (5,) * 3, 10, (2, 3), draw),
    )
    assert work_of(StepPlan(0, chunks)) == StepWork(7, 2, 4 * 4 // 2 + 3 * (10 + 13) // 2, 1, 9, 2)


def test_a_law_is_affine_by_pieces_and_continuous() -> None:
    law = FittedLaw(10.0, (0, 4, 8), (1.0, 2.0, 3.0), 1000.0, 0.25, 100.0, 0.5, 7.0, NO_FIT)
    assert [law.step(StepWork(n)) for n in (0, 3, 4, 6, 8, 20)] == [10, 13, 14, 18, 22, 58]
    assert law.step(StepWork(2, 1, 8, 3, 10, 4)) == 16 + 1000 + 2 + 300 + 5 + 28


def test_the_fit_recovers_a_machine_of_two_pieces() -> None:
    law = fit(drawn(1500, noise=0.0))
    assert law.fit.median < 0.005 and law.fit.p95 < 0.02
    for work in (
        work_like(0, 1, 500),
        work_like(0, 32, 20_000),
        work_like(200, 16, 9_000, 90_000),
        work_like(300, 0, 0, 300 * 400),
    ):
        assert law.step(work) == pytest.approx(TRUE.step(work), rel=0.02)
    assert law.base == pytest.approx(TRUE.base, rel=0.02)


def test_noise_and_outliers_do_not_bend_the_fit_and_steps_add_up() -> None:
    """3 % of the steps take three times as long: together, all take 6 % longer."""
    steps = drawn(3000, noise=0.03, outliers=0.03)
    law = fit(steps)
    ratios = [law.step(work) / ns for work, ns in drawn(500, noise=0.0, seed=1)]
    assert max(ratios) / min(ratios) < 1.04
    assert sum(ratios) / len(ratios) == pytest.approx(1.06, abs=0.01)
    assert sum(law.step(work) for work, _ in steps) == pytest.approx(sum(ns for _, ns in steps), rel=0.01)
    assert law.fit.steps == pytest.approx(4 * law.fit.held_out, abs=4)


def test_costs_are_never_below_zero_and_more_tokens_never_cost_less() -> None:
    rng = random.Random(3)
    steps: list[Step] = [(StepWork(rng.randint(1, 300)), rng.uniform(1e6, 2e6)) for _ in range(400)]
    law = fit(steps)
    assert min(law.base, *law.slopes, *(getattr(law, name) for name in OTHERS)) >= 0
    times = [law.step(StepWork(n)) for n in range(1, 400)]
    assert times == sorted(times)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(FitError, match="a law needs at least 40 steps, and 12 were run"):
        fit(drawn(40, 0.0)[:12])


def test_the_executor_takes_the_time_of_the_law_and_draws_by_position() -> None:
    draw = Draw(SamplingParams(), 9)
    plan = StepPlan(0, (Chunk(0, (5,), 8, (0,), draw), Chunk(1, (5,) * 4, 0, (1,), None)))
    result = CostModelExecutor(TRUE).execute(plan)
    assert result.tokens == (9, None)
    assert result.elapsed == round(TRUE.step(StepWork(4, 1, 8, 1, 9, 1)))


def test_steps_take_what_the_spread_of_the_law_says_and_the_same_in_every_run() -> None:
    law, plan = replace(TRUE, spread=(0.5, 1.0, 1.5)), StepPlan(0, (Chunk(0, (5,), 8, (0,), None),))
    once, again = CostModelExecutor(law), CostModelExecutor(law)
    taken = [once.execute(plan).elapsed for _ in range(3000)]
    assert taken == [again.execute(plan).elapsed for _ in range(3000)]
    exact = CostModelExecutor(TRUE).execute(plan).elapsed
    assert all(900 < taken.count(round(exact * factor)) < 1100 for factor in law.spread)


def test_the_spread_of_a_law_is_that_of_its_steps() -> None:
    spread = sorted(fit(drawn(4000, noise=0.05)).spread)
    # of a normal error of 5 %: half within 3.4 %, 98 % within 11.6 %
    assert spread[50] == pytest.approx(1, abs=0.01) and spread[75] == pytest.approx(1.034, abs=0.01)
    assert spread[98] == pytest.approx(1.11, abs=0.02) and spread[1] == pytest.approx(0.89, abs=0.02)


def test_pages_moved_to_the_host_and_back_take_time_of_their_own() -> None:
    plan = StepPlan(0, (Chunk(0, (5,), 8, (0,), None),), (Swap(0, 0, True), Copy(0, 1, 3), Swap(1, 0, False)))
    with_swaps, without = CostModelExecutor(TRUE, 1000).execute(plan), CostModelExecutor(TRUE).execute(plan)
    assert with_swaps.elapsed == without.elapsed + 2000


def test_a_law_survives_its_file(tmp_path: Path) -> None:
    written = Measured(fit(drawn(300, 0.01)), OFF, "a machine", 46_080, 8192, "fp32")
    written.write(tmp_path / "law.json")
    assert Measured.read(tmp_path / "law.json") == written
    work = work_like(30, 5, 900, 4000)
    assert Measured.read(tmp_path / "law.json").law.step(work) == written.law.step(work)


def test_a_law_says_how_far_it_is_off() -> None:
    told = Measured(TRUE, OFF, "a machine", 1, 1, "fp32").told()
    assert "A run of 64 requests, simulated with it: TTFT P50 +1.0%, P99 -2.0%, E2E P50 +0.0%, P99 +4.0%" in told


def test_a_law_is_checked_against_a_run() -> None:
    """A law that takes every step for a tenth longer than it is, and requests that all come at once."""
    requests = tuple(
        Request(str(n), tuple(range(100 * n, 100 * n + 30 + n)), SamplingParams(max_tokens=9, seed=0), "default")
        for n in range(20)
    )
    config = EngineConfig(num_pages=400, max_num_seqs=3, max_num_batched_tokens=32)
    [record] = simulate(config, TRUE, [(0, request) for request in requests], 1).tiers.values()
    run = Run(
        ttft={str(n): ns / 1e9 for n, ns in enumerate(record.ttft)},
        e2e={str(n): ns / 1e9 for n, ns in enumerate(record.e2e)},
    )
    slow = FittedLaw(22e6, (0, 64), (0.0, 3.3e5), 0.0, 3.3, 5.5e4, 88.0, 0.0, NO_FIT)
    assert run_error(slow, Workload(requests, frozenset()), config, None, run) == (20, *[pytest.approx(0.1)] * 4)


def test_the_committed_law_is_one_of_this_version() -> None:
    found = Measured.read(LAW)
    assert found.weights == "fp32" and found.law.step(StepWork(decodes=1, context_tokens=100)) > 0


def broken(**changes: Any) -> str:
    raw = {"format": 2, **asdict(Measured(TRUE, OFF, "a machine", 1, 1, "fp32"))}
    raw |= {"law": raw["law"] | {"fit": NO_FIT._asdict()} | changes.pop("law", {}), "run": OFF._asdict()}
    return json.dumps(raw | changes)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON: Expecting property name"),
        ("[]", "holds no law (TypeError"),
        ("{}", "holds no law (KeyError: 'format')"),
        (broken(format=1), "holds no law (ValueError: format 1, and 2 is allowed)"),
        (broken(law={"knots": [1, 2]}), "knots must ascend from 0"),
        (broken(law={"slopes": [1.0]}), "with one slope for each"),
        (broken(law={"base": -1}), "a cost in ns: -1 is not allowed; at least 0"),
        (broken(law={"base": float("nan")}), "a cost in ns: nan is not allowed; a number below 1e+15"),
        (broken(law={"slopes": [float("inf"), 0.0]}), "a cost in ns: inf is not allowed"),
        (broken(law={"fit": NO_FIT._asdict() | {"p95": "much"}}), "p95: 'much' is not allowed; a number below"),
        (broken(run=OFF._asdict() | {"e2e_p99": float("nan")}), "e2e_p99: nan is not allowed; a number below"),
        (broken(kv_bytes_per_token=0), "kv_bytes_per_token: 0 is not allowed; a whole number >= 1"),
        (broken(law={"spread": "12"}), "spread: '1' is not allowed; a number below"),
        (broken(law={"fit": NO_FIT._asdict() | {"median": -3}}), "fit: an error is below 0"),
        (broken(kv_bytes_per_token=True), "kv_bytes_per_token: True is not allowed"),
        ("[" * 200_000, "not JSON"),
        (broken(law={"base": 10**400}), "a cost in ns: 1000"),
        (broken(law={"base": "much"}), "a cost in ns: 'much' is not allowed"),
        (broken(law={"spread": [1.0, -1.0]}), "a factor of spread is not above 0 and at most 10"),
        (broken(run={"requests": 3}), "holds no law (KeyError: 'ttft_p50')"),
    ],
)
def test_a_file_that_is_no_law_is_told_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "law.json"
    path.write_text(text)
    with pytest.raises(LawError) as caught:
        Measured.read(path)
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ") and "gapless bench engine --law" in str(caught.value)


def test_a_measurement_takes_every_step_with_all_of_its_time(tmp_path: Path) -> None:
    rows = [{"id": n, "prompt_ids": list(range(40 + n)), "max_tokens": 6} for n in range(5)]
    (tmp_path / "w.json").write_text(json.dumps({"requests": rows}))
    work = Workload.read(tmp_path / "w.json")
    steps: list[Step] = []
    config = EngineConfig(num_pages=64, max_num_seqs=3, max_num_batched_tokens=32, prefix_cache=False)
    run = measure(work, config, ScriptedExecutor(lambda chunk: 7), steps=steps)
    assert len(steps) == run.steps - 1  # nothing comes after the last
    assert sum(ns for _, ns in steps) / 1e9 <= run.seconds
    assert sum(w.prefill_tokens + w.decodes for w, _ in steps) >= sum(40 + n for n in range(5))
    assert all(ns > 0 for _, ns in steps)
