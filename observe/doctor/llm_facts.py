"""Facts of a language model, from what it publishes itself. Must not know what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import isfinite

import numpy as np

from config_gen.percentiles import samples_needed
from config_gen.sla.quantity import show_percentile
from config_gen.sla.spec import LlmModel, Spec, Targets
from observe import metrics
from observe.alerts_llm import PAGES
from observe.doctor.facts import LlmFacts, Missed, Order, PageFacts, Spread, Stretch, TierFacts
from observe.doctor.spans import Span, mean, most, quotient, share
from observe.window import Mask, Values, newest

BACKGROUND = {"batch", "background", "bulk", "offline", "low"}  # names of tiers that nobody waits for
STRETCHES, SHORTEST = 12, 5.0  # parts of a window, at most, and their least seconds
Use = Callable[[Span], float | None]


def names(span: Span) -> list[str]:
    """Models that publish such metrics."""
    return span.labels("model", metrics.RUNNING.name, metrics.WAITING.name, metrics.STEPS.name, metrics.SERVICE.name)


def llm_facts(span: Span, model: str, spec: Spec | None, use: Use) -> LlmFacts:
    """`span` holds this model's series only, or more; `use` tells the share of compute used in a part of it."""
    waiting, running, slots = (
        span.gauge(m.name, model=model) for m in (metrics.WAITING, metrics.RUNNING, metrics.SLOTS)
    )
    crowd: Mask = waiting > 0
    known: Mask = ~np.isnan(running) & ~np.isnan(slots)
    info = newest(span.select(metrics.ENGINE.name, model=model))
    order, tiers = _order(span, model, spec)
    steps = span.total(metrics.STEPS.name, model=model)
    seconds = float(span.between[crowd[1:] & ~np.isnan(span.between)].sum()) if len(span.times) > 1 else 0.0
    prompt_tokens = span.total(metrics.PROMPT_TOKENS.name, model=model)
    declared = spec.models.get(model) if spec is not None else None
    return LlmFacts(
        model=model,
        seconds=span.seconds,
        tiers=tuple(_tier(span, model, tier, spec) for tier in tiers),
        order=order,
        info=dict(info.labels) if info else {},
        slots=most(slots),
        waiting=mean(waiting),
        waiting_share=share(crowd, ~np.isnan(waiting)),
        crowded=seconds,
        alone=share(running <= 1, crowd & ~np.isnan(running)),
        full=share(running >= slots, crowd & known),
        taken=share(running >= slots, known),
        tokens_per_step=quotient(span.total(metrics.OUTPUT_TOKENS.name, model=model), steps),
        steps=steps,
        busy=_busy(span, model),
        finished=span.total(metrics.FINISHED.name, model=model),
        pages=_page_facts(span, model, crowd),
        preemptions=span.total(metrics.PREEMPTIONS.name, model=model),
        prompt_tokens=prompt_tokens,
        hits=quotient(span.total(metrics.PREFIX_HITS.name, model=model), prompt_tokens),
        shared=any(it.shared_prefix for it in declared.traffic.values()) if isinstance(declared, LlmModel) else None,
        **{name: spread_of(span, metric.name, model=model) for name, metric in _HISTOGRAMS.items()},
        refused=_refused(span, model),
        stretches=tuple(_stretches(span, model, use)),
    )


_HISTOGRAMS = {
    "prompts": metrics.PROMPT_LENGTH,
    "outputs": metrics.OUTPUT_LENGTH,
    "itl": metrics.ITL,
    "step": metrics.STEP,
}


def spread_of(span: Span, name: str, **labels: str) -> Spread:
    counts = span.buckets(name, **labels)
    count = span.total(f"{name}_count", **labels) or max(counts.values(), default=0.0)

    def at(q: Fraction) -> float | None:
        return span.quantile(float(q), name, **labels) if count >= samples_needed(q) else None

    most_of = max(counts.values(), default=0.0)
    finite = [bound for bound in sorted(counts) if isfinite(bound)]
    whole = [bound for bound in finite if counts[bound] > most_of - 0.5] or finite[-1:]  # half of one is rounding
    middle, highest = (at(Fraction(q, 100)) for q in (50, 99))
    return Spread(
        count,
        quotient(span.total(f"{name}_sum", **labels), count),
        middle,
        highest,
        whole[0] if whole and most_of > 0.5 else None,
    )


def _order(span: Span, model: str, spec: Spec | None) -> tuple[Order, list[str]]:
    """Tiers that have been seen, the most urgent first, and how that is known."""
    here = span.only(lambda series: series.label("model") == model)
    seen = [
        tier
        for tier in here.labels("tier", metrics.WAITING.name, metrics.SERVICE.name, metrics.TTFT.name + "_count")
        if tier
    ]
    if spec is not None and set(seen) & spec.tiers.keys():
        return "declared", [tier for tier in spec.tiers if tier in seen]
    if any(tier in BACKGROUND for tier in seen):
        return "by name", sorted(seen, key=lambda tier: tier in BACKGROUND)
    return "as they appear", seen


def _tier(span: Span, model: str, tier: str, spec: Spec | None) -> TierFacts:
    of = {"model": model, "tier": tier}
    waiting = span.gauge(metrics.WAITING.name, **of)
    served = span.total(metrics.SERVICE.name, **of)
    spread = {m: spread_of(span, m.name, **of) for m in (metrics.QUEUE, metrics.TTFT, metrics.E2E, metrics.ITL)}
    declared = spec.models.get(model) if spec is not None else None
    promised = declared.targets.get(tier) if isinstance(declared, LlmModel) else None
    bounds = spec.tiers.get(tier) if spec is not None else None
    return TierFacts(
        name=tier,
        finished=span.total(metrics.FINISHED.name, **of),
        waiting_share=share(waiting > 0, ~np.isnan(waiting)),
        waiting_thirds=thirds(waiting),
        unserved=_unserved(span, waiting, span.gauge(metrics.SERVICE.name, **of)),
        service=quotient(served, span.total(metrics.SERVICE.name, model=model)),
        queue=spread[metrics.QUEUE],
        ttft=spread[metrics.TTFT],
        e2e=spread[metrics.E2E],
        itl=spread[metrics.ITL],
        missed=tuple(_missed(span, of, promised)) if promised is not None else (),
        promised=promised is not None,
        gated=None if bounds is None else bounds.idle_below is not None,
    )


def _missed(span: Span, of: dict[str, str], promised: Targets) -> Iterator[Missed]:
    """Targets are edges of their histograms, so that a percentile is over one exactly when it is by the requests."""
    for target, metric in metrics.PROMISED.items():
        limit = getattr(promised, target)
        if limit is None or max(span.buckets(metric.name, **of).values(), default=0) < samples_needed(promised.at):
            continue
        seen = span.quantile(float(promised.at), metric.name, **of)
        if seen is not None and seen > limit / 1e9:
            yield Missed(target.upper(), show_percentile(promised.at), limit / 1e9, seen)


def thirds(values: Values) -> tuple[float, float] | None:
    """Means of the first and the last third."""
    part = len(values) // 3
    first, last = mean(values[:part]), mean(values[len(values) - part :])
    return None if first is None or last is None else (first, last)


def _unserved(span: Span, waiting: Values, service: Values) -> float | None:
    """Longest time in which requests waited all along and the tier's service did not rise; a gap ends it.

    Only between samples that tell of both.
    """
    told = ~np.isnan(waiting) & ~np.isnan(service)
    known = told[1:] & told[:-1] & ~np.isnan(span.between)
    if not known.any():
        return None
    still = known & (waiting[:-1] > 0) & (waiting[1:] > 0) & (service[1:] == service[:-1])
    longest = lasted = 0.0
    for at, seconds in enumerate(span.between):
        lasted = lasted + float(seconds) if still[at] else 0.0
        longest = max(longest, lasted)
    return longest


def _page_facts(span: Span, model: str, crowd: Mask) -> PageFacts:
    used, total = (span.gauge(m.name, model=model) for m in (metrics.PAGES_USED, metrics.PAGES_TOTAL))
    pages = np.divide(used, total, out=np.full(len(used), np.nan), where=total > 0)
    known = ~np.isnan(pages)
    return PageFacts(mean(pages), most(pages), share(pages > PAGES, known), share(pages > PAGES, known & crowd))


def _busy(span: Span, model: str) -> float | None:
    rate = span.rate(f"{metrics.STEP.name}_sum", model=model)
    return None if rate is None else min(1.0, rate)


def _refused(span: Span, model: str) -> float | None:
    found = [span.total(metrics.REJECTS.name, model=model, reason=it) for it in ("queue_full", "queue_timeout")]
    known = [it for it in found if it is not None]
    return sum(known) if known else None


def _stretches(span: Span, model: str, use: Use) -> Iterator[Stretch]:
    """Those in which something was done."""
    for part in span.stretches(min(STRETCHES, int(span.seconds // SHORTEST))) if span.seconds >= SHORTEST else ():
        steps = part.total(metrics.STEPS.name, model=model)
        if not steps:
            continue
        busy = use(part)
        late = spread_of(part, metrics.ITL.name, model=model)
        late = late if late.p99 is not None else spread_of(part, metrics.E2E.name, model=model)
        waited, whole = (part.total(f"{m.name}_sum", model=model) for m in (metrics.QUEUE, metrics.E2E))
        yield Stretch(
            use=_busy(part, model) if busy is None else busy,
            batch=quotient(part.total(metrics.OUTPUT_TOKENS.name, model=model), steps),
            work=part.rate(metrics.SERVICE.name, model=model) or part.rate(metrics.OUTPUT_TOKENS.name, model=model),
            late=late.p99,
            waited=quotient(waited, whole),
            waiting=part.level(metrics.WAITING.name, model=model),
        )
