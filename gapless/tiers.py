"""`bench tiers`: one schedule of mixed traffic through a fresh server under each policy, and what each tier got.

What the machine sustains is measured first, under fcfs; loads are multiples of it. The tier declared first is the one
whose latency counts, the one declared last has no promise. Must not know how policies decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any, Literal
from urllib.request import urlopen

from rich.console import Console

from config_gen.spec import Lengths, LlmModel, LlmTraffic
from gapless import tiers_report
from gapless.child import launched
from gapless.commands.loadtest import progress_bar
from gapless.tiers_predicted import Predictor, errors, predictor
from loadtest.arrivals import Z95, schedule
from loadtest.prompts import Prompts
from loadtest.run import Client, Job, LoadtestError, run
from loadtest.samples import Sample
from loadtest.verdict import ClassSummary, lag_reason, summarize

Scenario = Literal["mixed", "overload", "promise"]
LOADS: dict[Scenario, float] = {"mixed": 1.3, "overload": 1.3, "promise": 0.9}
BESIDE = 0.5  # of capacity, that the last tier asks for while the first alone overloads the machine
MODEL = "chat"
OUT = Path("out/bench/tiers")
BURST = 30 * 10**9  # ns that capacity is measured; its first third, in which the batch fills, does not count
BURST_REQUESTS = 3000  # more than a burst can end
USERS = 32  # as many as the server runs at once
DRAIN = 60 * 10**9  # ns that answers may take after the last was sent
TEMPLATE = 14  # tokens of the chat template that are in no page of the prefix cache
SHOWN = (50, 99)


@dataclass(frozen=True)
class Bench:
    """What all runs have in common. `options` are those of the served model, without the policy."""

    repository: Path
    model: LlmModel
    options: Mapping[str, str]
    prompts: Prompts
    duration: int  # ns
    seed: int


def mean(lengths: Lengths) -> float:
    """Of a lognormal length: median * exp(sigma² / 2)."""
    sigma = log(lengths.p95 / lengths.median) / Z95
    return lengths.median * exp(sigma * sigma / 2)


def service(shape: LlmTraffic) -> float:
    """Tokens that a request of the tier makes the engine compute, on average; a shared prefix is cached."""
    return TEMPLATE + mean(shape.prompt) + mean(shape.output)


def shares(traffic: Mapping[str, LlmTraffic]) -> dict[str, float]:
    """Each tier's part of the service asked for."""
    asked = {tier: shape.rate * service(shape) for tier, shape in traffic.items()}
    return {tier: part / sum(asked.values()) for tier, part in asked.items()}


def measured(scenario: Scenario, traffic: Mapping[str, LlmTraffic]) -> dict[str, LlmTraffic]:
    """The traffic whose capacity the scenario's load is a multiple of: all of it, or the first tier alone."""
    first = next(iter(traffic))
    return {first: traffic[first]} if scenario == "overload" else dict(traffic)


def offered(
    scenario: Scenario, load: float, sustained: float, traffic: Mapping[str, LlmTraffic]
) -> dict[str, LlmTraffic]:
    """`traffic` at the rates of the scenario, when the machine sustains so many requests/s of the measured traffic."""
    first, last = next(iter(traffic)), list(traffic)[-1]
    if scenario != "overload":
        scale = load * sustained / sum(shape.rate for shape in traffic.values())
        return {tier: _at(shape, shape.rate * scale) for tier, shape in traffic.items()}
    beside = BESIDE * sustained * service(traffic[first]) / service(traffic[last])
    return {first: _at(traffic[first], load * sustained), last: _at(traffic[last], beside)}


def _at(shape: LlmTraffic, rate: float) -> LlmTraffic:
    return shape.model_copy(update={"rate": rate})


def sustains(samples: Sequence[Sample], traffic: Mapping[str, LlmTraffic], begin: int, end: int) -> float:
    """Requests/s of `traffic` that a closed burst shows: service done in [begin, end) over that of a mean request.

    Service, not answers: a burst starts with prompts only, and rates of answers tell whichever part of the work falls
    into the window. A prompt is done with its first token; one whose answer was cut off counts as a mean one.
    """
    done = 0.0
    for sample in samples:
        shape = traffic[sample.tier]
        if sample.first is not None and begin <= sample.first < end:
            known = sample.prompt_tokens - sample.cached_tokens
            done += known if sample.prompt_tokens else TEMPLATE + mean(shape.prompt)
        done += sum(n for time, n in sample.messages if begin <= time < end)
    if done == 0:
        errors = list(dict.fromkeys(sample.error for sample in samples)) or ["nothing was sent"]
        raise LoadtestError(f"capacity: no token came back in {(end - begin) / 1e9:g} s: {errors[0]}")
    asked = sum(shape.rate * service(shape) for shape in traffic.values())
    return done / ((end - begin) / 1e9) / asked * sum(shape.rate for shape in traffic.values())


def measure(
    bench: Bench,
    weights: str,
    scenario: Scenario,
    load: float,
    policies: Sequence[str],
    repeat: int,
    console: Console,
) -> dict[str, Any]:
    """The scenario under each policy in turn, `repeat` rounds of it; prints what it was and what came of it."""
    first, last = next(iter(bench.model.traffic)), list(bench.model.traffic)[-1]
    alone = measured(scenario, bench.model.traffic)
    sustained, predictor = capacity(bench, weights, alone)
    traffic = offered(scenario, load, sustained, bench.model.traffic)
    rates = {tier: shape.rate for tier, shape in traffic.items()}
    parts = ", ".join(f"{tier} {rates[tier]:.2f}/s ({part:.0%})" for tier, part in shares(traffic).items())
    title = (
        f"{weights}, {scenario}: sustained {sustained:.2f} requests/s of {' and '.join(alone)} with {USERS} in flight "
        f"(fcfs, {BURST / 1e9:g} s); sent {load:g} times that for {bench.duration / 1e9:g} s: {parts} of the service"
    )
    console.print(title, highlight=False, soft_wrap=True)
    rounds: list[tiers_report.Round] = []
    for at in range(repeat):
        now = replace(bench, seed=bench.seed + at)
        names = {p: f"{weights}-{scenario}-{p}-{at}" for p in policies}
        rounds.append({p: under(now, weights, p, traffic, name, predictor) for p, name in names.items()})
    bars = tiers_report.bars(scenario, rounds, first, last)
    tables = tiers_report.table(rounds), tiers_report.predictions(rounds)
    console.print(*tables, *tiers_report.lines(bars, rounds), sep="\n", highlight=False, soft_wrap=True)
    if why := tiers_report.quiet(scenario, rounds):
        console.print(why, highlight=False, soft_wrap=True)
    case: dict[str, Any] = {
        "weights": weights,
        "no_verdict": why,
        "scenario": scenario,
        "load": load,
        "duration_s": bench.duration / 1e9,
    }
    case |= {"seed": bench.seed, "sustained_per_s": sustained, "rates_per_s": rates, "shares": shares(traffic)}
    return case | {"rounds": rounds, "bars": [bar.as_json() for bar in bars]}


def capacity(bench: Bench, weights: str, traffic: Mapping[str, LlmTraffic]) -> tuple[float, Predictor]:
    """Requests/s of `traffic` that the server sustains under fcfs with all its slots in use, and a law of its steps."""
    long = int(BURST_REQUESTS / sum(shape.rate for shape in traffic.values()) * 1e9)
    # Other prompts than those of the load.
    mix = schedule(traffic, long, 1.0, bench.seed + 1_000_000, bench.prompts, bench.model.max_model_len)
    steps = (OUT / f"{weights}-capacity.steps").absolute()
    options = {**bench.options, "weights": weights, "policy": "fcfs", "step_log": str(steps)}
    with (
        launched(bench.repository, MODEL, options, OUT / f"{weights}-capacity.log") as ports,
        progress_bar(f"{weights}: measuring capacity", BURST) as seen,
    ):
        job = Job(f"127.0.0.1:{ports['grpc_port']}", MODEL, mix, BURST, drain=0, closed_users=USERS)
        samples, _ = run(job, progress=seen)
    return sustains(samples, traffic, BURST // 3, BURST), predictor(bench.repository / MODEL / "1", steps)


def under(
    bench: Bench, weights: str, policy: str, traffic: Mapping[str, LlmTraffic], name: str, predictor: Predictor
) -> dict[str, Any]:
    """One run of the traffic under a policy, and what the simulator says of it.

    Raw samples, steps and the server's log go to files called `name`.
    """
    planned = schedule(traffic, bench.duration, 1.0, bench.seed, bench.prompts, bench.model.max_model_len)
    if missing := [tier for tier in traffic if not any(request.tier == tier for request in planned)]:
        seconds = bench.duration / 1e9
        raise LoadtestError(f"--duration: no request of tier {missing[0]} falls into {seconds:g} s; load longer")
    steps = (OUT / f"{name}.steps").absolute()
    options = {**bench.options, "weights": weights, "policy": policy, "step_log": str(steps)}
    with launched(bench.repository, MODEL, options, OUT / f"{name}.log") as ports:
        job = Job(f"127.0.0.1:{ports['grpc_port']}", MODEL, planned, bench.duration, DRAIN)
        with progress_bar(name, bench.duration) as seen:
            samples, client = run(job, OUT / f"{name}.jsonl", seen)
        counted = counters(ports["metrics_port"])
    found = told_of(summarize(samples, list(traffic), bench.duration), bench.model)
    simulated = told_of(predictor.classes(options, planned, bench.duration, list(traffic)), bench.model)
    simulated |= {"errors": errors(simulated, found), "steps": predictor.step_error(steps)}
    return found | {
        "simulated": simulated,
        "service_tokens_per_s": served(samples, bench.duration),
        "undone": undone(samples, bench.duration),
        "client": told(client, bench.model),
        "server": counted,
    }


def told_of(classes: Sequence[ClassSummary], model: LlmModel) -> dict[str, Any]:
    """Each tier's numbers, and the output of all."""
    rate = sum(c.output_rate for c in classes)
    return {"tiers": {c.tier: numbers(c, model) for c in classes}, "output_tokens_per_s": rate}


def served(samples: Sequence[Sample], duration: int) -> dict[str, float]:
    """Tokens/s of service each tier got while the load lasted: output as it came, a prompt with its first token."""
    found: dict[str, float] = {}
    for sample in samples:
        tokens = sum(n for time, n in sample.messages if time <= duration)
        if tokens:
            tokens += sample.prompt_tokens - sample.cached_tokens
        found[sample.tier] = found.get(sample.tier, 0.0) + tokens / (duration / 1e9)
    return found


def undone(samples: Sequence[Sample], duration: int) -> float:
    """Share of the output asked for that had not come when the load ended: 0.23 when it was 1.3 times capacity."""
    came = sum(n for sample in samples for time, n in sample.messages if time <= duration)
    return 1 - came / sum(sample.asked for sample in samples)


def numbers(c: ClassSummary, model: LlmModel) -> dict[str, Any]:
    """A tier's run in ms and per second; None is a latency of a request that never got there."""
    promised = model.targets.get(c.tier)
    found: dict[str, Any] = {"sent": c.sent, "ok": c.ok, "rejected": c.rejected, "failed": c.failed}
    found |= {"offered_per_s": c.offered, "output_tokens_per_s": c.output_rate, "errors": dict(c.errors)}
    for metric in ("ttft", "itl", "e2e"):
        values = c.latencies[metric].samples
        found[f"{metric}_ms"] = {f"p{q}": _ms(values[-(-q * len(values) // 100) - 1]) for q in SHOWN if values}
        target = getattr(promised, metric, None)
        if target is not None and values:
            found[f"{metric}_over_target"] = sum(value > target for value in values) / len(values)
    return found


def _ms(ns: float) -> float | None:
    return None if ns == float("inf") else ns / 1e6


def told(client: Client, model: LlmModel) -> dict[str, Any]:
    """How the load generator did, and whether its numbers can be trusted."""
    promised = model.targets.values()
    targets = [value for t in promised for value in (t.ttft, t.itl, t.e2e) if value is not None]
    lags = {"send_lag_p99_ms": client.send_lag / 1e6, "loop_lag_p99_ms": client.loop_lag / 1e6}
    return {"cpu": client.cpu, **lags, "lagged": lag_reason(client, targets)}


def counters(port: int) -> dict[str, float]:
    """The engine's counters on the server's metrics port, and gauges that have no label but the model.

    Empty when nobody answers: the server died, which the failed requests show.
    """
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    split = [line.rsplit(" ", 1) for line in lines if line.startswith("gapless_")]
    return {name.partition("{")[0]: float(value) for name, value in split if name.count('="') == 1}
