"""What a step costs: fitted to measured steps, checked against a run of its own, written for `gapless simulate`."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.console import Console

from config_gen.percentiles import percentile
from decode import bench
from decode.assembly import KV_BYTES, engine_config
from decode.config import EngineConfig
from decode.executors import law_fit
from decode.executors.base import Executor
from decode.executors.cost_model import FittedLaw, Measured, RunError, Step
from decode.executors.model_config import ModelConfig
from decode.options import ServiceOptions
from decode.simulator import simulate
from decode.workload import Workload
from gapless.errors import UsageError
from gapless.machine import describe


def fitted(
    steps: list[Step], work: Workload, rate: float | None, model: ModelConfig, case: ServiceOptions, executor: Executor
) -> Measured:
    """The law of `steps`, with its errors on a run of `work` as `case` that it has not seen. Raises FitError."""
    law, config = law_fit.fit(steps), engine_config(model, case)
    error = run_error(law, work, config, rate, bench.measure(work, config, executor, rate))
    per_token = model.kv_bytes_per_token(KV_BYTES[case.weights])
    return Measured(law, error, describe(), per_token, model.max_position_embeddings, case.weights)


def write(
    path: Path,
    steps: list[Step],
    work: Workload,
    rate: float | None,
    model: ModelConfig,
    case: ServiceOptions,
    executor: Executor,
    console: Console,
) -> dict[str, Any]:
    """Fit `steps`, replay `work` as `case` once more, write the law with its errors and tell them.

    Raises FitError, or UsageError when the file cannot be written.
    """
    found = fitted(steps, work, rate, model, case, executor)
    try:
        found.write(path)
    except OSError as problem:
        raise UsageError(f"--law: {path}: {problem.strerror}; the law is lost") from None
    console.print(f"\nLaw of a step: {found.told()} Written to {path}.", highlight=False)
    return {"file": path.name, "fit": found.law.fit._asdict(), "run": found.run._asdict()}


def run_error(law: FittedLaw, work: Workload, config: EngineConfig, rate: float | None, run: bench.Run) -> RunError:
    """Simulated over measured latencies of `work`, less 1."""
    timed = list(zip(bench.arrivals(work.requests, rate), work.requests, strict=True))
    outcome = simulate(config, law, timed, duration=1)
    [record] = outcome.tiers.values()
    pairs = [(sorted(record.ttft), sorted(run.ttft.values())), (sorted(record.e2e), sorted(run.e2e.values()))]
    errors = [
        percentile(said, Fraction(q, 100)) / 1e9 / percentile(real, Fraction(q, 100)) - 1
        for said, real in pairs
        for q in (50, 99)
    ]
    return RunError(len(work.requests), *errors)
