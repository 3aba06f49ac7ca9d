"""From a window to the facts that rules judge by: who is there, from when on, and what about the window is odd.

What a just started server does first, and samples at which a model was gone, are left out. Must not know rules.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from config_gen.sla.spec import Spec
from observe import metrics, triton_metrics
from observe.doctor import card_facts as cards
from observe.doctor import llm_facts as llms
from observe.doctor import unary_facts as unary
from observe.doctor.facts import ClientFacts, Facts, LlmFacts, Order
from observe.doctor.spans import Span
from observe.window import Mask, Window

LEAST_SECONDS, LEAST_SAMPLES = 10.0, 10
WARM, WARM_SHARE = 10.0, 0.25  # seconds that a started model warms up, and their largest share of what follows


class DoctorError(ValueError):
    """A window that nothing can be said of; one line."""

    exit_status = 2


def gather(window: Window, spec: Spec | None = None, client: ClientFacts | None = None) -> Facts:
    """Raises DoctorError when the window is too short, or the client did not load while it was sampled."""
    span = Span.of(window)
    if len(span.times) < LEAST_SAMPLES or span.seconds < LEAST_SECONDS:
        raise DoctorError(
            f"holds {len(span.times)} sample{'' if len(span.times) == 1 else 's'} over {span.seconds:.3g} s; at least "
            f"{LEAST_SAMPLES} over {LEAST_SECONDS:.0f} s are needed, and a minute or more is better"
        )
    if client is not None and not len(span.during(client.began, client.ended).times):
        raise DoctorError(
            "holds no sample of the time in which the client loaded (--samples); give those of the same run"
        )
    ours = llms.names(span)
    others = [name for name in unary.names(span) if name not in ours]
    told = [llms.llm_facts(settled(span, model), model, spec, cards.used) for model in ours]
    crowd = _crowd(span)
    gpus = [cards.card_facts(span, gpu, crowd) for gpu in cards.gpus(span)]
    gpus = gpus or [cards.triton_card_facts(span, uuid, crowd) for uuid in cards.triton_gpus(span)]
    return Facts(
        seconds=span.seconds,
        samples=len(span.times),
        llms=tuple(told),
        unary=tuple(unary.unary_facts(settled(span, model), model, cards.used) for model in others),
        cards=tuple(gpus),
        host=cards.host_facts(span),
        client=client,
        inside={} if client is None else dict(_meanwhile(span, client, told)),
        notes=tuple(_notes(span, ours, others, [it.order for it in told if len(it.tiers) > 1])),
    )


def settled(span: Span, model: str) -> Span:
    """Without what came before the model had warmed up, where it started in this window, and without its absences.

    What a language model has published stays on Triton's page when its process is gone; Triton's own count does not.
    """
    counts = span.gauge(triton_metrics.COUNT, model=model)
    healthy = span.gauge(metrics.HEALTHY.name, model=model)
    there: Mask = ~(healthy == 0)
    if not np.isnan(counts).all():
        there &= ~np.isnan(counts)
    steps = span.gauge(metrics.STEPS.name, model=model)
    work = counts if np.isnan(steps).all() else steps
    mine = span.only(lambda series: series.label("model") in ("", model)).where(there)
    if work[0] > 0 or not (work > 0).any():
        return mine
    began = int(span.times[int(np.argmax(work > 0))])
    warm = min(WARM * 1e9, WARM_SHARE * float(span.times[-1] - began))
    return mine.after(began + int(warm))


def _meanwhile(span: Span, client: ClientFacts, found: list[LlmFacts]) -> Iterator[tuple[tuple[str, str], float]]:
    """Medians of whole requests in a model while the client loaded it, by model and tier."""
    for llm in found:
        part = settled(span, llm.model).during(client.began, client.ended)
        for tier in llm.tiers:
            middle = llms.spread_of(part, metrics.E2E.name, model=llm.model, tier=tier.name).p50
            if middle is not None:
                yield (llm.model, tier.name), middle


def _crowd(span: Span) -> Mask | None:
    """At which samples requests waited, anywhere."""
    waiting = [span.gauge(name) for name in (metrics.WAITING.name, triton_metrics.PENDING)]
    return None if np.isnan(waiting).all() else (waiting[0] > 0) | (waiting[1] > 0)


def _notes(span: Span, ours: list[str], others: list[str], orders: list[Order]) -> Iterator[str]:
    if span.gaps:
        yield f"Sampling paused {_times(span.gaps)}; the pauses are left out."
    for model in dict.fromkeys([*ours, *others]):
        if restarts := span.restarts(triton_metrics.COUNT, model=model):
            yield f"{model} was started again {_times(restarts)}: the launcher's output says why."
    missing = [series.label("source") for series, values in span.select("observe_up") if not (values == 1).any()]
    if missing:
        yield f"Not sampled: {', '.join(missing)}. What they would tell is unknown below."
    if "by name" in orders:
        yield "Which tier is the more urgent is guessed from their names; --sla says it."
    elif "as they appear" in orders:
        yield "Tiers are taken to be declared the most urgent first, as they appear; --sla says it."


def _times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count} times"
