"""What would do where no plan keeps every promise: a looser target, fewer requests, smaller weights, more hardware.

More hardware was tried by the planner, fewer requests by simulating this very plan; a looser target is what this plan
gets now.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, isinf, log10

from config_gen.facts import Facts, LlmFacts
from config_gen.plan import Prediction
from config_gen.planning.settling import Choice, Group
from config_gen.sla.quantity import show_duration, show_percentile
from config_gen.sla.spec import LlmModel, Spec

RATES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # of the declared ones
MORE = (1, 3)  # cards more, or times as many cores more: each is a plan of its own
EFFORT = 0.34


Holds = Callable[[Spec, Mapping[str, Facts], int], bool]  # whether a plan on so many cards or more keeps every target


def advise(
    spec: Spec,
    facts: Mapping[str, Facts],
    cores: int,
    predictions: Sequence[Prediction],
    groups: Sequence[tuple[Group, Mapping[str, Choice]]],
    holds: Holds,
) -> tuple[str, ...]:
    """Lines, the cheapest change first. `predictions` and `groups` are those of the nearest plan."""
    return (
        *_looser(predictions),
        *_slower(groups, 1 + spec.headroom),
        *_smaller(spec, facts, predictions),
        *_more(spec, facts, cores, holds),
    )


def _looser(predictions: Sequence[Prediction]) -> Iterator[str]:
    for missed in predictions:
        worst = max(missed.predicted, missed.stressed)
        if not missed.held and not isinf(worst):
            path = f"models.{missed.model}.targets.{missed.tier}.{missed.metric}"
            yield (
                f"{path}: a target of {show_duration(_rounded_up(worst))} at {show_percentile(missed.q)}, not "
                f"{show_duration(missed.target)}, is kept by this plan"
            )


def _rounded_up(ns: float) -> float:
    """To two digits, upward."""
    step: int = 10 ** (int(log10(ns)) - 1)
    return ceil(ns / step) * step


def _slower(groups: Sequence[tuple[Group, Mapping[str, Choice]]], headroom: float) -> Iterator[str]:
    """The largest of RATES at which these settings keep everything, by bisection."""

    def holds(rate: float) -> bool:
        return all(group.margin(choices, rate * headroom, EFFORT) >= 0 for group, choices in groups)

    at = bisect_left(RATES, True, key=holds)
    if at < len(RATES):
        yield f"{RATES[at]:.0%} of the declared rates are served within all targets by this plan"


def _smaller(spec: Spec, facts: Mapping[str, Facts], predictions: Sequence[Prediction]) -> Iterator[str]:
    """Weights of fewer bits for models that miss: only a build says what those cost, so nothing is promised."""
    missing = {found.model for found in predictions if not found.held}
    for name, model in spec.models.items():
        known = facts[name]
        key, now = ("weights", model.weights) if isinstance(model, LlmModel) else ("precision", model.precision)
        # On a card an LLM is served in half precision at the least.
        less = "int8" if now != "int8" and not (isinstance(known, LlmFacts) and known.on_gpu) else None
        if name in missing and less:
            yield f"models.{name}.{key}: {less} may do; build it with --profile and plan again"


def _more(spec: Spec, facts: Mapping[str, Facts], cores: int, holds: Holds) -> Iterator[str]:
    """As few more cards, or times as many cores, as keep every target, of MORE."""
    hardware = spec.hardware
    for more in MORE:
        if hardware.gpus and any(known.on_gpu for known in facts.values()):
            first, count = hardware.gpus[0], sum(gpu.count for gpu in hardware.gpus) + more
            told = f"{'one' if more == 1 else more} more {first.type}"
            gpus = (first.model_copy(update={"count": first.count + more}), *hardware.gpus[1:])
            wider = hardware.model_copy(update={"gpus": gpus})
        else:
            count, told = 1, f"{(1 + more) * cores} cores, not {cores},"
            wider = hardware.model_copy(update={"cores": (1 + more) * cores})
        if holds(spec.model_copy(update={"hardware": wider}), facts, count):
            yield f"hardware: {told} {'keep' if more > 1 or not hardware.gpus else 'keeps'} every target"
            return
