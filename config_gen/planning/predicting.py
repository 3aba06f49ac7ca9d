"""What each promise gets from chosen settings, at the declared rates and with headroom, and what its time goes to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import inf, isinf

from config_gen.percentiles import mean, percentile
from config_gen.plan import Expectation, Prediction
from config_gen.planning.promises import Promise, overloaded, promises
from config_gen.planning.settling import Choice, Group
from config_gen.simulation.serving import Observed
from config_gen.sla.quantity import show_duration

QUIET = 0.02  # times the declared rates: a request meets no other
EFFORT = 0.34


def predict(group: Group, choices: Mapping[str, Choice], declared: Observed, scale: float) -> Iterator[Prediction]:
    """One prediction for each promise of the group's models. `declared`: observed at the declared rates."""
    stressed = group.observe(choices, scale)
    grown = overloaded(choices, stressed, group.load(scale).duration)
    quiet = group.observe(choices, QUIET, EFFORT)
    several = len(choices) > 1
    seen_alone = {name: group.alone(name).observe({name: choices[name]}, 1.0, EFFORT) for name in choices if several}
    for promise in promises(group.models):
        found = _at(declared, promise)
        yield Prediction(
            promise.model,
            promise.tier,
            promise.metric,
            promise.q,
            promise.target,
            found,
            inf if grown else stressed.worst(promise.model, promise.tier, promise.metric, promise.q) or 0.0,
            _binding(promise, found, _at(quiet, promise), _at(seen_alone.get(promise.model, declared), promise)),
        )


def _at(seen: Observed, promise: Promise) -> float:
    return seen.at(promise.model, promise.tier, promise.metric, promise.q) or 0.0


def _binding(promise: Promise, together: float, quiet: float, alone: float) -> str:
    """The largest part of the time, with its number."""
    if isinf(together):
        return "the device cannot keep up, or requests are refused"
    parts = {
        "computing": quiet,
        "waiting for others of its model": max(0.0, alone - quiet),
        "waiting for other models": max(0.0, together - max(alone, quiet)),
    }
    largest = max(parts, key=lambda part: parts[part])
    return f"{largest}: {show_duration(parts[largest])} of {show_duration(together)}"


def expect(declared: Observed) -> Iterator[Expectation]:
    """What every tier that sends gets."""
    for (model, tier, metric), latencies in declared.latencies.items():
        if len(latencies):
            p50, p99 = (percentile(latencies, Fraction(q, 100)) for q in (50, 99))
            yield Expectation(model, tier, metric, p50, p99, mean(latencies))
