"""Promises of a file against what a simulation observed. Must not know how settings are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from config_gen.percentiles import percentile, samples_needed
from config_gen.simulation.serving import Load, Observed
from config_gen.sla.spec import LlmModel, OnnxModel

METRICS = ("ttft", "itl", "e2e")
HALF = Fraction(1, 2)
GROWN, QUICK = 0.03, 200_000_000  # of a load: what is left to do at its end, beyond which a queue grows; at least, ns
LEAST_GRACE = 30 * 10**9  # ns
ENOUGH = 4  # times the samples that a percentile needs before it says anything
FEWEST, MOST = 200, 12_000  # requests of a simulation: of a tier with a target, of all tiers
LONG = 4  # times as many, at most
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
    if overloaded(models, seen, duration):
        left = max(seen.drained.get(name, 0) for name in models) / duration
        return 1 / (1 + left) - 2  # of two that cannot keep up, the one that is done sooner
    return least


def overloaded(models: Iterable[str], seen: Observed, duration: int) -> bool:
    """Whether one of these batchable models still had much to do when the load was over.

    A request that came last takes as long as any, so twice the usual time is no sign of a queue that grows.
    """
    for name in models:
        mine = [found for (one, *_), found in seen.latencies.items() if one == name and found]
        usual = max((percentile(found, HALF) for found in mine), default=0)
        if seen.drained.get(name, 0) > max(GROWN * duration, QUICK) + 2 * min(usual, duration):
            return True
    return False


def grace(models: Mapping[str, LlmModel | OnnxModel]) -> int:
    """ns after the end of a load that promised answers are waited for; who has none by then has missed."""
    return max(LEAST_GRACE, *(2 * promise.target for promise in promises(models)), 0)


def load(models: Mapping[str, LlmModel | OnnxModel], scale: float, effort: float = 1.0, seed: int = 0) -> Load:
    """Long enough that tiers with targets send what their percentiles need, times `effort`, within bounds.

    A tier of a batchable model that would not within those bounds is sent more often: it is rare, so it adds little.
    The same requests come at every `scale`, only faster, so that two rates differ by nothing but the rate.
    """
    shapes = [(name, tier, model, model.traffic[tier]) for name, model in models.items() for tier in model.traffic]
    total = sum(shape.rate for *_, shape in shapes)
    tokens = sum(
        shape.rate * shape.output.median
        for model in models.values()
        if isinstance(model, LlmModel)
        for shape in model.traffic.values()
    )
    needed = {
        (name, tier): max(FEWEST, ENOUGH * samples_needed(model.targets[tier].at)) * effort
        for name, tier, model, _ in shapes
        if tier in model.targets
    }
    if not total:
        return Load(10**9, scale, seed, grace(models))
    wanted = max(
        (needed[name, tier] / shape.rate for name, tier, _, shape in shapes if (name, tier) in needed),
        default=FEWEST * effort / total,
    )
    seconds = min(wanted, MOST * effort / total, _decoded(models, tokens) * effort if tokens else wanted)
    boost = {
        (name, tier): needed[name, tier] / (shape.rate * seconds)
        for name, tier, model, shape in shapes
        if (name, tier) in needed and isinstance(model, OnnxModel) and shape.rate * seconds < needed[name, tier]
    }
    return Load(int(seconds / scale * 1e9), scale, seed, grace(models), boost)


def _decoded(models: Mapping[str, LlmModel | OnnxModel], tokens: float) -> float:
    """Seconds of traffic of LLMs that send `tokens` a second: MOST_TOKENS, or more where answers are long.

    Percentiles need requests, not tokens.
    """
    needed = max(
        (
            samples_needed(model.targets[tier].at) / shape.rate
            for model in models.values()
            if isinstance(model, LlmModel)
            for tier, shape in model.traffic.items()
            if tier in model.targets
        ),
        default=0.0,
    )
    return min(max(MOST_TOKENS / tokens, needed), LONG * MOST_TOKENS / tokens)
