"""What the simulator says a run of `bench tiers` should have given, and how far it was off.

What lies between client and engine comes from a light load. Must not know servers or tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from decode.assembly import engine_config
from decode.executors import law_fit
from decode.executors.cost_model import FittedLaw, Step
from decode.executors.model_config import ModelConfig
from decode.options import ServiceOptions
from decode.outcome import Outcome
from decode.simulator import simulate
from decode.text import Tokenizer
from decode.types import Request, SamplingParams
from gapless.simulation import summarize
from loadtest.run import LoadtestError
from loadtest.samples import Planned, Sample
from loadtest.verdict import ClassSummary, Latency


@dataclass(frozen=True)
class Predictor:
    """The model in `folder`, steps to learn from, and `way`: ns that a first token needs beside the engine."""

    folder: Path
    steps: Sequence[Step]
    way: float = 0.0

    @cached_property
    def law(self) -> FittedLaw:
        """Fitted to the steps. Raises FitError when they are too few."""
        return law_fit.fit(self.steps)

    def learning_way(
        self, options: Mapping[str, str], planned: Sequence[Planned], samples: Sequence[Sample]
    ) -> Predictor:
        """The same with the way of a run: the median of the measured TTFT beyond that of the simulated.

        Raises LoadtestError when no request was answered.
        """
        outcome = self._simulate(options, planned, 1)
        said = [value for record in outcome.tiers.values() for value in record.ttft]
        seen = [first for sample in samples if (first := sample.ttft) is not None and first < float("inf")]
        if not seen:
            raise LoadtestError("capacity: no answer to the light load; measure on a machine without other work")
        return replace(self, way=max(0.0, median(seen) - median(said)))

    def classes(
        self, options: Mapping[str, str], planned: Sequence[Planned], duration: int, tiers: Sequence[str]
    ) -> list[ClassSummary]:
        """Each tier of a run of `planned`: the same prompts, token for token, through the same scheduler."""
        outcome = self._simulate(options, planned, duration)
        return [self._seen(summarize(tier, outcome.tiers[tier], duration)) for tier in tiers]

    def step_error(self, steps: Sequence[Step]) -> dict[str, float]:
        """Relative error of the law on the steps of a run, and how many there were."""
        off, p95 = law_fit.errors(self.law, steps)
        return {"median": off, "p95": p95, "steps": len(steps)}

    def _simulate(self, options: Mapping[str, str], planned: Sequence[Planned], duration: int) -> Outcome:
        config = engine_config(ModelConfig.read(self.folder), ServiceOptions.from_parameters(dict(options)))
        tokenizer = Tokenizer.load(self.folder)
        timed = [
            (request.at, Request(request.id, tokenizer.encode_chat(request.messages), _greedy(request), request.tier))
            for request in planned
        ]
        return simulate(config, self.law, timed, duration)

    def _seen(self, found: ClassSummary) -> ClassSummary:
        """As a client sees it: `way` ns later."""
        latencies = {
            name: Latency([value + self.way for value in latency.samples]) if name in ("ttft", "e2e") else latency
            for name, latency in found.latencies.items()
        }
        return replace(found, latencies=latencies)


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
