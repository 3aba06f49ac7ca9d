"""Promises of a file against what a simulation observed. Must not know how settings are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from config_gen.percentiles import samples_needed
from config_gen.serving import Load, Observed
from config_gen.spec import LlmModel, OnnxModel

METRICS = ("ttft", "itl", "e2e")
GROWN, QUICK = 0.03, 200_000_000  # of a load: what is left to do at its end, beyond which a queue grows; at least, ns
LEAST_GRACE = 30 * 10**9  # ns
ENOUGH = 6  # times the samples that a percentile needs before it says anything
FEWEST, MOST = 300, 40_000  # requests of a simulation: of a tier with a target, of all tiers
MOST_TOKENS = 60_000  # output tokens of a simulation: a step takes longer to simulate than a request


@dataclass(frozen=True, slots=True)
class Promise:
    """`target` in ns at percentile `q`."""

    model: str
    tier: str
    metric: str
    q: Fraction
    target: int


def promises(models: Mapping[str, LlmModel | OnnxModel]) -> Iterator[Promise]:
    """Those of tiers that send something, in the order of the file."""
    for name, model in models.items():
        for tier, targets in model.targets.items():
            if tier in model.traffic:
                for metric in METRICS:
                    if (target := getattr(targets, metric)) is not None:
                        yield Promise(name, tier, metric, targets.at, target)


def margin(models: Mapping[str, LlmModel | OnnxModel], seen: Observed, duration: int) -> float:
    """The least share of a target that is left; 1 without targets.

    Where one is missed, minus the share of requests that are too late beyond those that may be, so that of two plans
    that miss the nearer one is known. A batchable model whose queue has grown at the end of the `duration` in ns
    misses whatever it promises.
    """
    least = 1.0
    for promise in promises(models):
        found = seen.worst(promise.model, promise.tier, promise.metric, promise.q)
        if found is not None and found <= promise.target:
            least = min(least, 1 - found / promise.target)
        elif found is not None:
            late = seen.over(promise.model, promise.tier, promise.metric, promise.target)
            least = min(least, -max(float(late - (1 - promise.q)), 1e-6))
    return min(least, 0.0) - 1 if overloaded(models, seen, duration) else least


def overloaded(models: Iterable[str], seen: Observed, duration: int) -> bool:
    """Whether one of these batchable models still had much to do when the load was over."""
    return any(seen.drained.get(name, 0) > max(GROWN * duration, QUICK) for name in models)


def grace(models: Mapping[str, LlmModel | OnnxModel]) -> int:
    """ns after the end of a load that promised answers are waited for; who has none by then has missed."""
    return max(LEAST_GRACE, *(2 * promise.target for promise in promises(models)), 0)


def load(models: Mapping[str, LlmModel | OnnxModel], scale: float, effort: float = 1.0, seed: int = 0) -> Load:
    """Long enough that the rarest tier with a target sends what its percentile needs, times `effort`, within bounds.

    The same requests come at every `scale`, only faster, so that two rates differ by nothing but the rate.
    """
    wanted, total, tokens = 0.0, 0.0, 0.0
    for model in models.values():
        for tier, shape in model.traffic.items():
            total += shape.rate
            if isinstance(model, LlmModel):
                tokens += shape.rate * model.traffic[tier].output.median
            if tier in model.targets:
                needed = max(FEWEST, ENOUGH * samples_needed(model.targets[tier].at)) * effort
                wanted = max(wanted, needed / shape.rate)
    if not total:
        return Load(int(1e9 / scale), scale, seed, grace(models))
    wanted = wanted or FEWEST * effort / total
    seconds = min(wanted, MOST * effort / total, MOST_TOKENS * effort / tokens if tokens else wanted)
    return Load(int(seconds / scale * 1e9), scale, seed, grace(models))
