"""From promises and measured costs to a plan: cheapest first (cards, then memory), then the most headroom.

The best attempt of the planner, as settings with reasons; where it misses, with what would do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from config_gen.facts import Correction, Facts, LlmFacts
from config_gen.plan import Knob, ModelPlan, Plan
from config_gen.planning.advice import advise
from config_gen.planning.placing import MOST_SHARING
from config_gen.planning.planner import Attempt, Planner, Tell, quiet
from config_gen.planning.reasons import model_plan
from config_gen.planning.wishes import PlanError
from config_gen.sla.spec import OnnxModel, Spec


def plan(
    spec: Spec,
    facts: Mapping[str, Facts],
    corrections: Mapping[str, Correction] | None = None,
    tell: Tell = quiet,
    advice: bool = True,
) -> Plan:
    """The cheapest plan that keeps every promise at the declared rates plus the headroom, or the nearest, with advice.

    Without `advice` nobody looks for what would do. `facts` of every model of the file. Deterministic. Raises PlanError
    for what cannot be.
    """
    planner = Planner(spec, facts, corrections or {}, tell)
    best = max(planner.attempts(), key=lambda attempt: attempt.worth)
    models = _models(planner, best)
    return Plan(
        models,
        best.predictions,
        best.cards,
        _flags(spec, models),
        () if best.held or not advice else _advice(planner, best, corrections or {}),
        best.expected,
        best.executing,
        tuple(f"{name}: {known.doubt}" for name, known in facts.items() if isinstance(known, LlmFacts) and known.doubt),
    )


def _advice(planner: Planner, nearest: Attempt, corrections: Mapping[str, Correction]) -> tuple[str, ...]:
    def holds(spec: Spec, facts: Mapping[str, Facts], fewest: int) -> bool:
        try:
            return any(found.held for found in Planner(spec, facts, corrections, quiet).attempts(fewest))
        except PlanError:
            return False

    groups = [(group, {name: nearest.choices[name] for name in group.models}) for group in nearest.groups]
    return advise(planner.spec, planner.facts, planner.cores, nearest.predictions, groups, holds)


def _models(planner: Planner, attempt: Attempt) -> tuple[ModelPlan, ...]:
    spec, facts = planner.spec, planner.facts
    found = []
    for name, choice in attempt.choices.items():
        cards = attempt.seats[name]
        beside = [
            other
            for other, theirs in attempt.seats.items()
            if other != name and set(theirs) & set(cards) and not isinstance(facts[other], LlmFacts)
        ]
        found.append(model_plan(spec, name, facts[name], choice, cards, planner.cores, ", ".join(beside)))
    return tuple(found)


def _flags(spec: Spec, models: Sequence[ModelPlan]) -> tuple[Knob, ...]:
    """Flags of the server whose values follow from more than one model."""
    found = []
    for resource in sorted({resource for model in models for resource in model.rate_limit or {}}):
        told = "of each card; by default it would be the most that one instance asks for, and instances took turns"
        found.append(Knob("--rate-limit-resource", f"{resource}:{MOST_SHARING}", told))
    caches = [model.response_cache for model in spec.models.values() if isinstance(model, OnnxModel)]
    if size := sum(cache.size for cache in caches if cache is not None):
        found.append(Knob("--cache-config", f"local,size={size}", "bytes, as the file gives them for its models"))
    return tuple(found)
