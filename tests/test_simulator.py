"""Serving on the virtual clock: the same plans as by hand, queueing theory, idle jumps, seeds, and the command."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from config_gen.sla.arrivals import arrivals
from config_gen.sla.spec import LlmModel, LlmTraffic, load
from decode.clock import VirtualClock
from decode.config import EngineConfig, TierConfig
from decode.driver import Driver, Round
from decode.engine import Engine
from decode.executors.cost_model import CostModelExecutor, Fit, FittedLaw, Measured, RunError
from decode.executors.gpu_cost import StepWork
from decode.plan import Finished, StepResult, Submit, TokenOut
from decode.simulator import GAP, Feed, Outcome, Recorder, Timed, simulate
from decode.trace import Trace
from decode.types import Request, SamplingParams
from decode.warm_up import ROUNDS, warm_up
from gapless.simulation import Counted, Load, requests, summarize
from gapless.simulation import run as run_load
from loadtest.prompts import by_words
from loadtest.samples import Sample
from loadtest.schedule import Part, schedule
from loadtest.verdict import summarize as summarize_samples

ROOT = Path(__file__).resolve().parent.parent
LAW = ROOT / "tests" / "data" / "law.json"
MS, SECOND = 10**6, 10**9
TIERS = (TierConfig("interactive", weight=8, itl=60 * MS), TierConfig("batch", queue_timeout=3 * SECOND))
CONFIG = EngineConfig(num_pages=300, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=400, tiers=TIERS)


class Machine:
    """A law: 10 ms, 0.1 ms a token, 1 us a context token."""

    spread = ()

    def step(self, work: StepWork) -> float:
        return 10 * MS + 1e5 * (work.prefill_tokens + work.decodes) + 1e3 * work.context_tokens


class Fixed:
    """A law: every step takes as long."""

    spread = ()

    def __init__(self, ns: int) -> None:
        self.ns = ns

    def step(self, work: StepWork) -> float:
        return self.ns


def timed(count: int, rate: float, seed: int = 0) -> list[Timed]:
    """Requests of both tiers, in part with the same beginning."""
    rng, at, made = random.Random(seed), 0.0, []
    for n in range(count):
        at += rng.expovariate(rate)
        prompt = (1,) * rng.choice([0, 40]) + (100 + n,) + (0,) * rng.randint(0, 80)
        sampling = SamplingParams(max_tokens=rng.randint(1, 40), ignore_eos=True, seed=0)
        made.append((int(at * 1e9), Request(f"r{n}", prompt, sampling, rng.choice(["interactive", "batch"]))))
    return made


def test_the_plans_are_those_of_the_engine_stepped_by_hand() -> None:
    work, simulated, by_hand = timed(60, rate=6), Trace(), Trace()
    outcome = simulate(CONFIG, Machine(), work, 10 * SECOND, simulated)
    engine, executor, now, todo = Engine(CONFIG), CostModelExecutor(Machine()), 0, list(work)
    ends: dict[str, int] = {}
    last: dict[str, int] = {}
    while todo or not engine.idle:
        inputs = [Submit(r) for at, r in todo if at <= now]
        todo = todo[len(inputs) :]
        for item in inputs:
            engine.apply(item, now)
        plan = engine.plan(now)
        result: StepResult | None = None
        if plan is not None:
            result = executor.execute(plan)
            by_hand.step(Round(now, inputs, plan, result), ())
            now += result.elapsed
            engine.commit(plan, result, now)
        elif todo:
            by_hand.step(Round(now, inputs, plan, None), ()) if inputs else None
            now = max(now, todo[0][0])
        for event in engine.take_events():
            ends |= {event.request_id: event.time} if isinstance(event, Finished) else {}
            last |= {event.request_id: event.time} if isinstance(event, TokenOut) else {}
    assert simulated.digest == by_hand.digest
    assert outcome.span == now and outcome.steps == sum(r.result is not None for r in by_hand.records)
    assert outcome.busy == sum(r.result.elapsed for r in by_hand.records if r.result is not None)
    arrived = {r.id: at for at, r in work}
    e2e = sorted(e for tier in outcome.tiers.values() for e in tier.e2e if e != float("inf"))
    assert e2e == sorted(end - arrived[name] for name, end in ends.items()) and ends == last


def test_the_recorder_agrees_with_samples_that_keep_every_token() -> None:
    """The load test's own numbers, from the same run, are the oracle."""
    work, duration = timed(200, rate=12, seed=1), 15 * SECOND
    config = replace(CONFIG, num_pages=60)
    clock, engine, kept = VirtualClock(), Engine(config), _Keep()
    Driver(
        engine, CostModelExecutor(Machine()), clock, Feed(work, clock, Recorder(("interactive", "batch"), 0)), kept
    ).run()
    outcome = simulate(config, Machine(), work, duration)
    samples = [kept.sample(at, request) for at, request in work]
    assert outcome.preemptions > 0 or any(s.outcome == "rejected" for s in samples), "nothing special happens here"
    for told in summarize_samples(samples, ["interactive", "batch"], duration):
        found = summarize(told.tier, outcome.tiers[told.tier], duration)
        for name in ("sent", "ok", "rejected", "failed", "offered", "achieved", "output_rate"):
            assert getattr(found, name) == getattr(told, name), name
        for metric in ("ttft", "e2e"):
            assert list(found.latencies[metric].samples) == list(told.latencies[metric].samples)
        gaps, exact = found.latencies["itl"].samples, told.latencies["itl"].samples
        assert len(gaps) == len(exact)
        assert all(a <= b < a + GAP or a == b for a, b in zip(gaps, exact, strict=True))


class _Keep:
    """A sink that keeps all events."""

    def __init__(self) -> None:
        self.events: dict[str, list[object]] = {}

    def emit(self, events: object) -> None:
        for event in events:  # type: ignore[attr-defined]
            self.events.setdefault(event.request_id, []).append(event)

    def sample(self, at: int, request: Request) -> Sample:
        events = self.events[request.id]
        tokens = tuple((e.time, 1) for e in events if isinstance(e, TokenOut))
        ok = isinstance(events[-1], Finished)
        return Sample(
            request.id, "chat", request.tier, at, at,
            tokens[0][0] if tokens else None, tokens[-1][0] if ok else None, tokens,
            "ok" if ok else "rejected", "", "", request.sampling.max_tokens, len(request.prompt), 0, len(tokens),
        )  # fmt: skip


@pytest.mark.parametrize("share", [0.5, 0.7])
def test_waiting_is_that_of_an_m_d_1_queue(share: float) -> None:
    """One sequence at a time, every step as long: Pollaczek-Khinchine, mean wait = share / (2 (1 - share)) services."""
    step, out = 5 * MS, 2
    service = step * out
    rng, at, work = random.Random(5), 0.0, []
    for n in range(6000):
        at += rng.expovariate(share / service)
        work.append((int(at), Request(f"r{n}", (n,), SamplingParams(max_tokens=out, ignore_eos=True, seed=0))))
    config = EngineConfig(num_pages=8, max_num_seqs=1, mode="serial", prefix_cache=False)
    outcome = simulate(config, Fixed(step), work, int(at))
    wait = mean(e - service for e in outcome.tiers["default"].e2e)
    assert wait == pytest.approx(service * share / (2 * (1 - share)), rel=0.1)
    assert outcome.busy / outcome.span == pytest.approx(share, rel=0.03)


def test_idle_time_is_jumped_over() -> None:
    sampling = SamplingParams(max_tokens=3, ignore_eos=True, seed=0)
    hour = 3600 * SECOND
    work = [(at * hour, Request(f"r{at}", (at,), sampling)) for at in range(1, 4)]
    outcome = simulate(EngineConfig(num_pages=8), Fixed(MS), work, 4 * hour)
    assert outcome.steps == 9 and outcome.busy == 9 * MS
    assert outcome.span == 3 * hour + 3 * MS
    assert list(outcome.tiers["default"].ttft) == [MS] * 3
    assert outcome.tiers["default"].gaps == {1000: 6}


def test_latencies_count_from_the_arrival_and_not_from_the_step_that_took_it() -> None:
    sampling = SamplingParams(max_tokens=2, ignore_eos=True, seed=0)
    work = [(0, Request("a", (1,), sampling)), (3 * MS, Request("b", (2,), sampling))]
    outcome = simulate(EngineConfig(num_pages=8), Fixed(10 * MS), work, SECOND)
    assert list(outcome.tiers["default"].ttft) == [10 * MS, 17 * MS]


def test_what_counts_as_in_time_ends_with_the_load() -> None:
    sampling = SamplingParams(max_tokens=5, ignore_eos=True, seed=0)
    work = [(0, Request("a", (1,), sampling)), (0, Request("b", (2,), replace(sampling, max_tokens=3)))]
    tier = simulate(EngineConfig(num_pages=8), Fixed(10 * MS), work, 35 * MS).tiers["default"]
    assert (tier.tokens_in_time, tier.output_tokens, tier.in_time) == (6, 8, 1)


def test_refusals_are_misses_told_by_their_reason() -> None:
    sampling = SamplingParams(max_tokens=5, ignore_eos=True, seed=0)
    work = [(n, Request(f"r{n}", (n,), sampling)) for n in range(6)]
    tiers = (TierConfig("default", queue_timeout=60 * MS, max_queue=3),)
    config = EngineConfig(num_pages=8, max_num_seqs=1, tiers=tiers)
    tier = simulate(config, Fixed(10 * MS), work, SECOND).tiers["default"]
    assert tier.errors == {"queue_full": 2, "queue_timeout": 2}
    assert sorted(tier.ttft)[-4:] == [float("inf")] * 4
    assert tier.gaps[float("inf")] == 4 * 4


def test_replicas_add_up() -> None:
    """Dealt in turn to three machines: as three simulations of every third request."""
    spec = load(ROOT / "sla" / "demo.yaml")
    traffic = Load("chat", spec.models["chat"], 20 * SECOND, 4.0, 1)
    config = replace(CONFIG, tiers=(TierConfig("interactive"), TierConfig("api")))
    shares: list[float] = []
    together = run_load(traffic, config, Machine(), replicas=3, seen=shares.append).outcome
    drawn = list(arrivals(traffic.model.traffic, 20 * SECOND, 4.0, 1, config.max_model_len))
    ones = [simulate(config, Machine(), requests(drawn[at::3], ["interactive", "api"]), 20 * SECOND) for at in range(3)]
    for tier, record in together.tiers.items():
        parts = [one.tiers[tier] for one in ones]
        assert list(record.e2e) == [e2e for part in parts for e2e in part.e2e]
        assert record.gaps == sum((part.gaps for part in parts), Counter())
        assert record.output_tokens == sum(part.output_tokens for part in parts)
    assert together.replicas == 3 and together.busy == sum(one.busy for one in ones)
    assert together.span == max(one.span for one in ones)
    assert together.pages == pytest.approx(sum(one.page_time for one in ones) / together.busy)
    assert shares == [1 / 3, 2 / 3, 1]


def test_a_counted_sequence_is_the_sorted_list() -> None:
    rng = random.Random(2)
    values = [float(rng.randint(0, 9)) for _ in range(100)] + [float("inf")] * 3
    counted = Counted({v: values.count(v) for v in values}, 2.0)
    assert list(counted) == sorted(v * 2 for v in values)
    assert len(counted) == 103 and counted[-1] == float("inf") and counted[3:6] == sorted(v * 2 for v in values)[3:6]
    assert list(Counted({})) == []


TRAFFIC = LlmTraffic.model_validate(
    {"rate": "5/s", "prompt": {"median": 40, "p95": 90}, "output": {"median": 9, "p95": 20}, "shared_prefix": 48}
)


def test_arrivals_are_those_of_the_load_test_with_ids_instead_of_words() -> None:
    traffic = {"interactive": TRAFFIC, "batch": TRAFFIC.model_copy(update={"shared_prefix": 0})}
    made = list(requests(arrivals(traffic, 30 * SECOND, 2.0, 3, 400), list(traffic)))
    model = LlmModel(kind="llm", source="wheel:x", max_model_len=400).model_copy(update={"traffic": traffic})
    planned = schedule([Part("chat", model, by_words())], 30 * SECOND, 2.0, 3)
    assert [(at, r.tier, r.sampling.max_tokens) for at, r in made] == [(p.at, p.tier, p.max_tokens) for p in planned]
    for (_, request), sent in zip(made, planned, strict=True):
        words = len(sent.system.split()) + len(sent.text.split())
        assert words == pytest.approx(len(request.prompt) * 0.75, abs=2)


def test_only_what_is_meant_to_be_shared_is_found_in_the_cache() -> None:
    traffic = {"interactive": TRAFFIC, "batch": TRAFFIC}
    made = list(requests(arrivals(traffic, 20 * SECOND, 1.0, 0, 400), list(traffic)))
    assert len({r.prompt for _, r in made}) == len({r.id for _, r in made}) == len(made)
    outcome = simulate(replace(CONFIG, num_pages=2000), Fixed(MS), made, 20 * SECOND)
    for tier, record in outcome.tiers.items():
        sharing = sum(r.tier == tier and r.prompt[47:48] == r.prompt[:1] for _, r in made)
        assert record.cached_tokens == 48 * (sharing - 1)  # all but the first find the whole prefix, and no more


def run(seed: int) -> Outcome:
    made = requests(arrivals({"interactive": TRAFFIC}, 20 * SECOND, 1.0, seed, 400), ["interactive"])
    return simulate(CONFIG, Machine(), made, 20 * SECOND)


def test_the_seed_fixes_everything() -> None:
    assert run(1) == run(1) != run(2)


def test_a_law_that_raises_fails_the_requests_and_not_the_run() -> None:
    warm = len(warm_up(CostModelExecutor(Machine()), CONFIG)) * ROUNDS // (ROUNDS - 1)

    class Broken(Machine):
        steps = 0

        def step(self, work: StepWork) -> float:
            self.steps += 1
            if self.steps > warm:
                raise ZeroDivisionError("no law for this")
            return super().step(work)

    records = simulate(CONFIG, Broken(), timed(3, 5), SECOND).tiers.values()
    assert sum(r.failed for r in records) == 3
    assert all("ZeroDivisionError: no law for this" in told for r in records for told in r.errors)


# The command


def gapless(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gapless", "simulate", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, env={"COLUMNS": "150"})


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A machine a hundred times as fast as any: nothing can be missed on it."""
    law = FittedLaw(1e5, (0,), (1e3,), 0, 0, 0, 0, 0, Fit(0.01, 0.02, 100, 25))
    run = RunError(64, 0.03, 0.0, 0.0, 0.0)
    Measured(law, run, "a fast one", 46_080, 8192, "fp32").write(tmp_path / "quick.json")
    yield tmp_path / "quick.json"


def test_a_promise_that_holds_ends_with_0_and_is_told_alike_to_people_and_machines(tmp_path: Path, quick: Path) -> None:
    done = gapless("sla/demo.yaml", "--law", quick, "--duration", "2min", "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["held"] and told["client"] is None and told["duration_s"] == 120
    assert "All 3 promises were kept." in done.stdout
    found = re.search(r"Machine: busy (\d+)% of ([\d.]+) s, (\d+) steps", done.stdout)
    assert found is not None
    assert int(found[3]) == told["machine"]["steps"]
    assert float(found[2]) == pytest.approx(told["machine"]["span_s"], abs=0.1)
    assert "off by 1.0% at the median and 2.0% at P95" in " ".join(done.stdout.split())
    assert "A run of 64 requests, simulated with it: TTFT P50 +3.0%" in " ".join(done.stdout.split())
    assert told["models"]["chat"]["classes"]["interactive"]["sent"] > 100
    assert set(told["models"]["chat"]["classes"]) == {"interactive", "api"}


def test_a_promise_that_cannot_hold_ends_with_1(tmp_path: Path) -> None:
    done = gapless("sla/demo.yaml", "--law", LAW, "--rate-scale", "20", "--duration", "1min", "--policy", "fcfs")
    assert done.returncode == 1, done.stderr
    assert "MISSED" in done.stdout and "Not all promises were kept" in done.stdout


def test_the_same_words_give_the_same_result(tmp_path: Path) -> None:
    def told(name: str, seed: int) -> object:
        gapless("sla/demo.yaml", "--law", LAW, "--duration", "30s", "--seed", str(seed), "--json", tmp_path / name)
        return json.loads((tmp_path / name).read_text())

    assert told("a", 1) == told("b", 1) != told("c", 2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            [],
            "--law or --gpu is needed: what a step costs; `gapless bench engine WORKLOAD --law FILE` measures it here",
        ),
        (["--law", "nowhere.json"], "nowhere.json: No such file or directory; give what `gapless bench engine --law`"),
        (["--law", "sla/demo.yaml"], "sla/demo.yaml: not JSON"),
        (["--law", LAW, "--gpu", "t4"], "--law and --gpu both say what a step costs; give one of them"),
        (["--gpu", "t4", "--model-dir", "nowhere"], "nowhere/config.json: no such file; run `gapless build` first"),
        (["--law", LAW, "--policy", "lifo"], "--policy: 'lifo' is not allowed; weighted, priority, fcfs"),
        (["--law", LAW, "--option", 'tiers={"x":{}}'], "--option: tiers: x leaves out interactive, which has traffic"),
        (["--law", LAW, "--option", 'tiers={"x":{"weight":1' + "0" * 400 + "}}"], "is not allowed; at most 1e+12"),
        (["--law", LAW, "--option", "mode"], "--option: 'mode' is not allowed; key=value"),
        (["--law", LAW, "--option", "mode=fast"], "parameters.mode: 'fast' is not allowed; one of serial, static"),
        (["--law", LAW, "--option", "weights=int8"], "was measured with fp32 weights, and the model has int8"),
        (["--law", LAW, "--option", "max_model_len=99999"], "max_model_len: 99999 is not allowed; the model was made"),
        (["--law", LAW, "--duration", "1ns"], "--duration: no request falls into 1e-09 s at these rates"),
        (["--law", LAW, "--json", "no/such/file"], "--json: no/such/file: No such file or directory"),
        (["--law", LAW, "--model", "nemo"], "--model: 'nemo' is not in the file; it declares chat, embed, classify"),
        (["--law", LAW, "--model", "embed"], "models.embed.kind: 'onnx' has no tokens to schedule"),
    ],
)
def test_bad_input_is_one_line_and_ends_with_2(words: list[str | Path], told: str) -> None:
    done = gapless("sla/demo.yaml", *words)
    assert done.returncode == 2
    assert told in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
