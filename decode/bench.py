"""Replay a workload of token ids through the decode loop, in this process, and measure it from outside the core.

A run uses the production driver, engine and executor on the wall clock. Must not know text, HTTP or tables.
"""

from __future__ import annotations

import random
import resource
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from decode.clock import WallClock
from decode.config import EngineConfig
from decode.driver import Driver
from decode.engine import Engine
from decode.executors.base import Executor
from decode.executors.cost_model import Step
from decode.executors.scripted import ScriptedExecutor
from decode.plan import Chunk, Event, Finished, Input, Rejected, Started, StepPlan, StepResult, Submit, TokenOut
from decode.step_log import Entry, StepLog
from decode.step_log import steps as law_steps
from decode.types import FinishReason, Request, SamplingParams
from decode.warm_up import warm_up
from decode.workload import Workload


@dataclass(slots=True)
class Run:
    """What was measured; times in seconds, latencies from a request's arrival (all at once unless a rate was set)."""

    seconds: float = 0.0
    output_tokens: int = 0
    ttft: dict[str, float] = field(default_factory=dict)
    e2e: dict[str, float] = field(default_factory=dict)
    itl: list[float] = field(default_factory=list)
    prefill: dict[str, float] = field(default_factory=dict)  # from leaving the queue to the first token
    cached_tokens: int = 0
    steps: int = 0
    step_seconds: dict[str, float] = field(default_factory=dict)  # attention, linear, sampling, other, scheduling
    preemptions: int = 0
    peak_rss: int = 0  # bytes


def arrivals(requests: Sequence[Request], rate: float | None) -> list[int]:
    """When each request comes, in ns from the start: Poisson at `rate`/s, the same every time; at once without one."""
    rng, at, moments = random.Random(0), 0.0, []
    for _ in requests:
        at += rng.expovariate(rate) if rate else 0.0
        moments.append(int(at * 1e9))
    return moments


class _Arrivals:
    """The driver's source: requests at their times after the start."""

    def __init__(self, requests: Sequence[Request], rate: float | None) -> None:
        start = time.monotonic_ns()
        moments = [start + at for at in arrivals(requests, rate)]
        self._todo = deque(zip(moments, requests, strict=True))
        self.times = {request.id: moment for moment, request in self._todo}

    def due(self, now: int) -> Sequence[Input]:
        items: list[Input] = []
        while self._todo and self._todo[0][0] <= now:
            items.append(Submit(self._todo.popleft()[1]))
        return items

    def wait(self) -> bool:
        if not self._todo:
            return False
        time.sleep(max(0, self._todo[0][0] - time.monotonic_ns()) / 1e9)
        return True


class _Events:
    """The driver's sink."""

    def __init__(self) -> None:
        self.items: list[Event] = []

    def emit(self, events: Sequence[Event]) -> None:
        self.items.extend(events)


class TimedEngine(Engine):
    """An engine that adds up the time its two halves of a step take."""

    scheduling = 0.0  # seconds in plan and commit

    def plan(self, now: int) -> StepPlan | None:
        begin = time.perf_counter()
        try:
            return super().plan(now)
        finally:
            self.scheduling += time.perf_counter() - begin

    def commit(self, plan: StepPlan, result: StepResult, now: int) -> None:
        begin = time.perf_counter()
        super().commit(plan, result, now)
        self.scheduling += time.perf_counter() - begin


def measure(
    workload: Workload,
    config: EngineConfig,
    executor: Executor,
    rate: float | None = None,
    steps: list[Step] | None = None,
) -> Run:
    """Run the whole workload on a fresh engine (nothing cached from before); Poisson arrivals at `rate`/s if given.

    `steps` takes what each step computed and its ns, overhead included. Raises RuntimeError when a request does not
    give exactly the tokens it was asked for.
    """
    engine, sink = TimedEngine(config, warm_up(executor, config)), _Events()
    before = dict(executor.profile)
    _reset_peak_rss()
    begin = time.perf_counter()
    source, entries = _Arrivals(workload.requests, rate), list[Entry]()
    log = None if steps is None else StepLog(engine, entries.append, WallClock())
    Driver(engine, executor, WallClock(), source, sink, log, log.phase if log else None).run()
    run = Run(seconds=time.perf_counter() - begin, peak_rss=_peak_rss())
    if steps is not None:
        steps.extend(law_steps(entries))
    run.step_seconds = {name: value - before[name] for name, value in executor.profile.items()}
    run.step_seconds["scheduling"] = engine.scheduling
    stats = engine.stats()
    run.steps, run.preemptions, run.cached_tokens = stats.steps, stats.preemptions, stats.prefix_hit_tokens
    _latencies(run, sink.items, source.times)
    for request in workload.requests:
        if request.id not in run.e2e:
            raise RuntimeError(f"request {request.id} did not finish")
    return run


def scheduling(running: int, waiting: int, steps: int) -> list[float]:
    """Seconds of plan and commit in each of `steps` decode steps with so many sequences running and waiting.

    No model: tokens come from the position. Prompts have 100 to 149 tokens and share prefixes.
    """
    config = EngineConfig(num_pages=40 * running + 100, max_num_seqs=running, max_num_batched_tokens=running + 4096)
    engine, executor = TimedEngine(config), ScriptedExecutor(_position)
    sampling = SamplingParams(max_tokens=400, ignore_eos=True, seed=0)
    for number in range(running + waiting):
        first = number % 977
        engine.apply(Submit(Request(f"r{number}", tuple(range(first, first + 100 + number % 50)), sampling)), number)
    taken: list[float] = []
    while len(taken) < steps:
        before = engine.scheduling
        plan = engine.plan(running + waiting)
        assert plan is not None
        engine.commit(plan, executor.execute(plan), running + waiting)
        engine.take_events()
        if len(plan.chunks) == running == plan.num_tokens:
            taken.append(engine.scheduling - before)
    return taken


def _position(chunk: Chunk) -> int:
    assert chunk.draw is not None
    return chunk.draw.position % 50


def _latencies(run: Run, events: Sequence[Event], arrived: dict[str, int]) -> None:
    times: dict[str, list[int]] = {name: [] for name in arrived}
    started: dict[str, int] = {}
    for event in events:
        match event:
            case Started(request_id=name, time=now):
                started[name] = now
            case TokenOut(request_id=name, time=now):
                times[name].append(now)
            case Finished(request_id=name, reason=FinishReason.LENGTH, time=now):
                run.ttft[name] = (times[name][0] - arrived[name]) / 1e9
                run.prefill[name] = (times[name][0] - started[name]) / 1e9
                run.e2e[name] = (now - arrived[name]) / 1e9
                run.itl += [(b - a) / 1e9 for a, b in pairwise(times[name])]
                run.output_tokens += len(times[name])
            case Finished(request_id=name, message=message) | Rejected(request_id=name, message=message):
                raise RuntimeError(f"request {name} failed: {message}")


def _reset_peak_rss() -> None:
    """Linux: forget the peak so far, so that each run has its own."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # then the peak is that of the process so far


def _peak_rss() -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def summary(run: Run, workload: Workload, percentile: Callable[[Sequence[float], Fraction], float]) -> dict[str, Any]:
    """A run as plain numbers: rates per second, latencies in milliseconds, step time in milliseconds per step."""

    def spread(values: Sequence[float]) -> dict[str, float]:
        ordered = sorted(values)
        return {f"p{q}": round(percentile(ordered, Fraction(q, 100)) * 1e3, 2) for q in (50, 95, 99)} if ordered else {}

    shared = [t for name, t in run.ttft.items() if name in workload.shared]
    shared_prefill = [t for name, t in run.prefill.items() if name in workload.shared]
    return {
        "output_tokens_per_s": round(run.output_tokens / run.seconds, 2),
        "requests_per_s": round(len(run.e2e) / run.seconds, 3),
        "seconds": round(run.seconds, 3),
        "ttft_ms": spread(list(run.ttft.values())),
        "ttft_shared_ms": spread(shared),
        "prefill_ms": spread(list(run.prefill.values())),
        "prefill_shared_ms": spread(shared_prefill),
        "itl_ms": spread(run.itl),
        "e2e_ms": spread(list(run.e2e.values())),
        "steps": run.steps,
        "step_ms": {name: round(s / run.steps * 1e3, 4) for name, s in run.step_seconds.items()},
        "cached_tokens": run.cached_tokens,
        "preemptions": run.preemptions,
        "peak_rss_mib": round(run.peak_rss / 2**20),
    }
