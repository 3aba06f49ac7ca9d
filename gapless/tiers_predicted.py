"""What the simulator says a run of `bench tiers` should have given, and how far its steps' law was off in that run.

The law comes from the steps of another run, that of capacity. Must not know servers or tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decode import step_log
from decode.assembly import engine_config
from decode.executors import law_fit
from decode.executors.cost_model import FittedLaw
from decode.executors.model_config import ModelConfig
from decode.options import ServiceOptions
from decode.simulator import simulate
from decode.text import Tokenizer
from decode.types import Request, SamplingParams
from gapless.simulation import summarize
from loadtest.samples import Planned
from loadtest.verdict import ClassSummary


@dataclass(frozen=True)
class Predictor:
    """The model in `folder`, with a law of its steps."""

    folder: Path
    law: FittedLaw

    def classes(
        self, options: Mapping[str, str], planned: Sequence[Planned], duration: int, tiers: Sequence[str]
    ) -> list[ClassSummary]:
        """Each tier of a run of `planned`: the same prompts, token for token, through the same scheduler."""
        config = engine_config(ModelConfig.read(self.folder), ServiceOptions.from_parameters(dict(options)))
        tokenizer = Tokenizer.load(self.folder)
        timed = [
            (request.at, Request(request.id, tokenizer.encode_chat(request.messages), _greedy(request), request.tier))
            for request in planned
        ]
        outcome = simulate(config, self.law, timed, duration)
        return [summarize(tier, outcome.tiers[tier], duration) for tier in tiers]

    def step_error(self, log: Path) -> dict[str, float]:
        """Relative error of the law on the steps of a run, and how many there were."""
        steps = step_log.read(log)
        median, p95 = law_fit.errors(self.law, steps)
        return {"median": median, "p95": p95, "steps": len(steps)}


def predictor(folder: Path, log: Path) -> Predictor:
    """Fitted to the steps in `log`. Raises FitError when they are too few."""
    return Predictor(folder, law_fit.fit(step_log.read(log)))


def _greedy(request: Planned) -> SamplingParams:
    return SamplingParams(max_tokens=request.max_tokens, temperature=0, ignore_eos=True, seed=0)


def errors(simulated: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Simulated over measured, less 1, for each tier: P50 and P99 of TTFT and E2E, and output tokens/s."""
    found: dict[str, dict[str, float | None]] = {}
    for tier, said in simulated["tiers"].items():
        real = run["tiers"][tier]
        found[tier] = {
            f"{metric} {q}": _error(said[f"{metric}_ms"].get(q), real[f"{metric}_ms"].get(q))
            for metric in ("ttft", "e2e")
            for q in ("p50", "p99")
        }
        found[tier]["tokens/s"] = _error(said["output_tokens_per_s"], real["output_tokens_per_s"])
    found["all"] = {"tokens/s": _error(simulated["output_tokens_per_s"], run["output_tokens_per_s"])}
    return found


def _error(said: float | None, real: float | None) -> float | None:
    """None where either never came."""
    return None if said is None or not real else said / real - 1
