"""Facts of a model that answers in one piece, from Triton's own counters. Must not know what they mean."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from observe.doctor.facts import Stretch, UnaryFacts
from observe.doctor.llm_facts import SHORTEST, STRETCHES, Use, thirds
from observe.doctor.spans import Span, mean, share
from observe.triton_metrics import COUNT, DONE, FAILED, PENDING, RUNS, SUMMARY, WHOLE, spent


def names(span: Span) -> list[str]:
    """Models that Triton counts requests of, the language models among them."""
    return span.labels("model", COUNT, RUNS, DONE)


def unary_facts(span: Span, model: str, use: Use) -> UnaryFacts:
    pending = span.gauge(PENDING, model=model)
    parts = {it: _mean(span, it, model) for it in ("queue", "compute_input", "compute_infer", "compute_output")}
    moved = [parts["compute_input"], parts["compute_output"]]
    return UnaryFacts(
        model=model,
        seconds=span.seconds,
        requests=span.total(COUNT, model=model),
        executions=span.total(RUNS, model=model),
        batch=_merged(span, model),
        pending=mean(pending),
        pending_share=share(pending >= 2, ~np.isnan(pending)),
        pending_thirds=thirds(pending),
        queue=parts["queue"],
        moving=None if None in moved else sum(it for it in moved if it is not None),
        computing=parts["compute_infer"],
        refused=span.total(FAILED, model=model, reason="REJECTED"),
        stretches=tuple(_stretches(span, model, use)),
    )


def _merged(span: Span, model: str) -> float | None:
    """Requests a batch; items where requests fail, since those are not told apart by batch."""
    failed = span.total(FAILED, model=model)
    requests = None if failed else span.ratio(DONE, RUNS, model=model)
    return span.ratio(COUNT, RUNS, model=model) if requests is None else requests


def _mean(span: Span, part: str, model: str) -> float | None:
    """Seconds of a request, on average."""
    taken = span.ratio(spent(part), DONE, model=model)
    return None if taken is None else taken / 1e6


def _stretches(span: Span, model: str, use: Use) -> Iterator[Stretch]:
    for part in span.stretches(min(STRETCHES, int(span.seconds // SHORTEST))) if span.seconds >= SHORTEST else ():
        if not part.total(RUNS, model=model):
            continue
        late = part.level(SUMMARY, model=model, quantile="0.99")
        waited = part.ratio(spent("queue"), WHOLE, model=model)
        yield Stretch(
            use=use(part),
            batch=_merged(part, model),
            work=part.rate(COUNT, model=model),
            late=None if late is None else late / 1e6,
            waited=waited,
            waiting=part.level(PENDING, model=model),
        )
