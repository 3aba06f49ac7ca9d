"""`bench tiers`: one schedule of mixed traffic through a fresh server under each policy, and what each tier got.

What the machine sustains is measured first, under fcfs; loads are multiples of it. The tier declared first is the one
whose latency counts, the one declared last has no promise. Must not know how policies decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from rich.console import Console

from config_gen.sla.spec import LlmModel, LlmTraffic
from decode import step_file
from gapless import tiers_report
from gapless.child import launched
from gapless.loads import progress_bar
from gapless.tiers_load import Scenario, measured, offered, shares, sustains
from gapless.tiers_predicted import Predictor, errors
from loadtest.prompts import Prompts
from loadtest.run import Client, Job, LoadtestError, run
from loadtest.samples import Planned, Sample, write
from loadtest.schedule import Part, schedule
from loadtest.verdict import ClassSummary, lag_reason, summarize

MODEL = "chat"
OUT = Path("out/bench/tiers")
BURST = 30 * 10**9  # ns that capacity is measured; its first third, in which the batch fills, does not count
BURST_REQUESTS = 3000  # more than a burst can end
LIGHT = 0.3  # of capacity, for LIGHT_FOR: small steps, and what lies between client and engine
LIGHT_FOR = 15 * 10**9  # ns
USERS = 32  # as many as the server runs at once
# Of the served model, whatever its repository was configured for: runs are compared with those of other days.
LIMITS = {"max_num_seqs": str(USERS), "max_num_batched_tokens": "256", "kv_cache_memory": "2GiB"}
DRAIN = 60 * 10**9  # ns that answers may take after the last was sent
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

    def part(self, traffic: Mapping[str, LlmTraffic]) -> Part:
        """The model with `traffic` in place of its own."""
        return Part(MODEL, self.model.model_copy(update={"traffic": dict(traffic)}), self.prompts)


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
        planned = drawn(bench, traffic, bench.seed + at)
        runs = {p: under(bench, weights, p, planned, f"{weights}-{scenario}-{p}-{at}") for p in policies}
        rounds.append(runs)
        compare(bench, predictor, planned, runs)
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
    """Requests/s of `traffic` that the server sustains under fcfs with all its slots in use.

    And, after a light load, what a simulator has to know of this machine.
    """
    most = int(BURST_REQUESTS / sum(shape.rate for shape in traffic.values()) * 1e9)
    steps = (OUT / f"{weights}-capacity.steps").absolute()
    options = {**bench.options, "weights": weights, "policy": "fcfs", "step_log": str(steps)}

    def load(duration: int, scale: float, seed: int) -> list[Planned]:
        # Other prompts than those of the runs.
        return schedule([bench.part(traffic)], duration, scale, bench.seed + seed)

    with launched(bench.repository, [MODEL], options, OUT / f"{weights}-capacity.log") as ports:
        url = f"127.0.0.1:{ports['grpc_port']}"
        with progress_bar(f"{weights}: measuring capacity", BURST) as seen:
            burst, _ = run(Job(url, load(most, 1.0, 10**6), BURST, 0, closed_users=USERS), progress=seen)
        sustained = sustains(burst, traffic, BURST // 3, BURST)
        scale = LIGHT * sustained / sum(shape.rate for shape in traffic.values())
        planned = load(LIGHT_FOR, scale, 2 * 10**6)
        with progress_bar(f"{weights}: a light load", LIGHT_FOR) as seen:
            light, _ = run(Job(url, planned, LIGHT_FOR, DRAIN), progress=seen)
    known = Predictor(bench.repository / MODEL / "1", step_file.law_steps(steps))
    return sustained, known.learning_way(options, planned, light)


def drawn(bench: Bench, traffic: Mapping[str, LlmTraffic], seed: int) -> list[Planned]:
    """The requests of a round, the same under every policy. Raises LoadtestError when a tier has none."""
    planned = schedule([bench.part(traffic)], bench.duration, 1.0, seed)
    if missing := [tier for tier in traffic if not any(request.tier == tier for request in planned)]:
        seconds = bench.duration / 1e9
        raise LoadtestError(f"--duration: no request of tier {missing[0]} falls into {seconds:g} s; load longer")
    return planned


def under(bench: Bench, weights: str, policy: str, planned: Sequence[Planned], name: str) -> dict[str, Any]:
    """One run under a policy; raw samples, steps and the server's log go to files called `name`."""
    sent = [tier for tier in bench.model.traffic if any(request.tier == tier for request in planned)]
    steps = (OUT / f"{name}.steps").absolute()
    options = {**bench.options, "weights": weights, "policy": policy, "step_log": str(steps)}
    with launched(bench.repository, [MODEL], options, OUT / f"{name}.log") as ports:
        job = Job(f"127.0.0.1:{ports['grpc_port']}", planned, bench.duration, DRAIN)
        with progress_bar(name, bench.duration) as seen:
            samples, client = run(job, seen)
        write(OUT / f"{name}.jsonl", samples)
        counted = counters(ports["metrics_port"])
    return run_numbers(summarize(samples, sent, bench.duration), bench.model) | {
        "options": options,
        "service_tokens_per_s": served(samples, bench.duration),
        "undone": undone(samples, bench.duration),
        "client": client_numbers(client, bench.model),
        "server": counted,
    }


def compare(bench: Bench, predictor: Predictor, planned: Sequence[Planned], runs: tiers_report.Round) -> None:
    """Add to each run what the simulator says of it, knowing the steps of all others, or those of the run itself.

    The first predicts; the second tells how far only the scheduling is off, for a shared machine is now fast, now slow.
    """
    steps = {policy: step_file.law_steps(Path(found["options"]["step_log"])) for policy, found in runs.items()}
    for policy, found in runs.items():
        others = [step for other, taken in steps.items() if other != policy for step in taken]
        known = {"others": [*predictor.steps, *others], "own": steps[policy]}
        found["simulated"] = {}
        for source, taken in known.items():
            knowing = replace(predictor, steps=taken)
            classes = knowing.classes(found["options"], planned, bench.duration, list(found["tiers"]))
            simulated = run_numbers(classes, bench.model)
            simulated |= {"errors": errors(simulated, found), "steps": knowing.step_error(steps[policy])}
            found["simulated"][source] = simulated


def run_numbers(classes: Sequence[ClassSummary], model: LlmModel) -> dict[str, Any]:
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
        latency, values = c.latencies[metric], c.latencies[metric].samples
        reached = {f"p{q}": latency.at(Fraction(q, 100)) for q in SHOWN}
        found[f"{metric}_ms"] = {q: _ms(value) for q, value in reached.items() if value is not None}
        target = getattr(promised, metric, None)
        if target is not None and values:
            found[f"{metric}_over_target"] = sum(value > target for value in values) / len(values)
    return found


def _ms(ns: float) -> float | None:
    return None if ns == float("inf") else ns / 1e6


def client_numbers(client: Client, model: LlmModel) -> dict[str, Any]:
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
