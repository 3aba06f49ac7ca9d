"""Alerts of a language model, from the metrics that it publishes itself, by tier.

A target is an edge of the histogram that it bounds, so that `histogram_quantile` is over it exactly when the promised
percentile is (observe.metrics.edges). Must not know who reads the alerts.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil

from config_gen.percentiles import samples_needed
from config_gen.sla.quantity import show_duration, show_percentile
from config_gen.sla.spec import LlmModel, LlmTraffic, Tier
from observe import metrics
from observe.alert import MINUTE, WINDOW, Alert, number, series, span
from observe.amounts import listed

LONGEST = 360 * MINUTE  # over which a percentile is taken
PAGES = 0.85  # share of KV pages beyond which queues and timeouts come in bursts
STARVED, GATED = MINUTE, 10 * MINUTE  # s that a tier may wait without service; one that starts in gaps only
WORDS = {"ttft": "the time to the first token", "itl": "the time between tokens", "e2e": "the time to the whole answer"}
NAMES = {"ttft": "GaplessTtftOverTarget", "itl": "GaplessItlOverTarget", "e2e": "GaplessE2eOverTarget"}


def llm_alerts(name: str, model: LlmModel, tiers: dict[str, Tier], pace: float) -> Iterator[Alert]:
    """Those that its targets and its tiers' bounds give reason for. All durations are multiplied by `pace`."""
    for tier, promised in model.targets.items():
        for target in WORDS:
            if getattr(promised, target) is not None:
                yield _late(name, model, tier, target, pace)
    for tier in {**model.traffic, **model.targets}:
        if tiers[tier].max_queue is not None or tiers[tier].queue_timeout is not None:
            yield _refused(name, tier, tiers[tier], pace)
        yield _starving(name, tier, tiers[tier], pace)
    yield _pages(name, model, pace)
    yield _failed(name, pace)
    yield _unhealthy(name, pace)


def looked_at(at: Fraction, traffic: LlmTraffic | None, target: str) -> tuple[float, int]:
    """Over how many seconds a percentile is taken, and the fewest samples that it is believed with.

    Long enough that the declared traffic gives twice the samples that the percentile needs, within bounds.
    """
    needed = samples_needed(at)
    if traffic is None:
        return WINDOW, needed
    rate = traffic.rate * (max(1, traffic.output.median - 1) if target == "itl" else 1)
    window = min(LONGEST, max(WINDOW, MINUTE * ceil(2 * needed / rate / MINUTE)))
    return window, min(needed, max(1, int(rate * window / 2)))


def _late(name: str, model: LlmModel, tier: str, target: str, pace: float) -> Alert:
    promised, traffic = model.targets[tier], model.traffic.get(tier)
    limit = ceil(getattr(promised, target) / 10**6) / 1000  # the scheduler, hence the histogram, has whole ms
    metric, at = metrics.PROMISED[target].name, show_percentile(promised.at)
    seconds, fewest = looked_at(promised.at, traffic, target)
    window = span(seconds * pace)
    buckets = series(f"{metric}_bucket", model=name, tier=tier)
    count = series(f"{metric}_count", model=name, tier=tier)
    expr = (
        f"histogram_quantile({number(float(promised.at))}, sum by (model, tier, le) (rate({buckets}[{window}])))"
        f" > {number(limit)}"
        f" and sum by (model, tier) (increase({count}[{window}])) >= {fewest}"
    )
    shown, declared = show_duration(limit * 1e9), f", declared with {traffic.rate:g} requests/s," if traffic else ""
    return Alert(
        NAMES[target],
        expr,
        2 * MINUTE * pace,
        "critical",
        f"{name}, {tier}: {target.upper()} {at} is over {shown}",
        f"{at} of {WORDS[target]} was {{{{ $value | humanizeDuration }}}} over the last {window}; {name} promises "
        f"{tier}{declared} at most {shown}. Measured in the server: clients have the network on top, and requests that "
        "were refused are not in it. If gapless_queue_seconds grew too, more comes than was planned for: compare the "
        "rate with the declared one, correct the file and run gapless plan. If it did not, steps take longer than "
        "measured: look for neighbours on the machine, then build with --profile again. Figures above the target are "
        "interpolated, and so are all where the server was configured from another file: then generate again.",
        {"model": name, "tier": tier},
    )


def _refused(name: str, tier: str, bounds: Tier, pace: float) -> Alert:
    wanted = series(metrics.REJECTS.name, model=name, tier=tier, reason="~queue_full|queue_timeout")
    limits = [f"max_queue {bounds.max_queue}"] if bounds.max_queue is not None else []
    limits += [f"queue_timeout {show_duration(bounds.queue_timeout)}"] if bounds.queue_timeout is not None else []
    return Alert(
        "GaplessRefusals",
        f"sum by (model, tier, reason) (increase({wanted}[{span(WINDOW * pace)}])) > 0",
        MINUTE * pace,
        "warning",
        f"{name}, {tier}: requests are refused, {{{{ $labels.reason }}}}",
        f"{{{{ $value | humanize }}}} requests in {span(WINDOW * pace)}; the tier has {listed(limits)}. More comes "
        "than is served: let clients try again later, or raise the bound if the wait is still worth it to them, "
        "or give the tier more weight, or plan for the rate that really comes.",
        {"model": name, "tier": tier},
    )


def _starving(name: str, tier: str, bounds: Tier, pace: float) -> Alert:
    waiting, service = (series(metric.name, model=name, tier=tier) for metric in (metrics.WAITING, metrics.SERVICE))
    window = span(MINUTE * pace)
    share = bounds.idle_below
    own = f" It starts only while the load by others is below {share:.0%}, or when it is owed much." if share else ""
    return Alert(
        "GaplessStarving",
        f"min_over_time({waiting}[{window}]) > 0 and increase({service}[{window}]) == 0",
        (STARVED if share is None else GATED) * pace,
        "critical" if share is None else "warning",
        f"{name}, {tier}: requests wait and none of them is served",
        f"At least {{{{ $value }}}} waited all the time, and the tier got no service.{own} Its weight is "
        f"{bounds.weight}. If gapless_steps_total does not grow either, the engine hangs: read the launcher's "
        "output and restart. Else "
        "one long prompt may hold the pages (bound it with max_long), or the weights are too far apart.",
        {"model": name, "tier": tier},
    )


def _pages(name: str, model: LlmModel, pace: float) -> Alert:
    used, total = (series(m.name, model=name) for m in (metrics.PAGES_USED, metrics.PAGES_TOTAL))
    pinned = "kv_cache_memory" if model.kv_cache_memory is None else "kv_cache_memory, which the file pins"
    return Alert(
        "GaplessPagesShort",
        f"{used} / {total} > {number(PAGES)}",
        3 * MINUTE * pace,
        "warning",
        f"{name}: over {PAGES:.0%} of the KV pages are in use",
        "{{ $value | humanizePercentage }} are leased by running requests. Soon requests are preempted, and queues and "
        f"timeouts come together. Raise {pinned}; or lower max_model_len ({model.max_model_len}) to what is really "
        "asked, or max_num_seqs. Pages that are only kept for their prefix are not counted.",
        {"model": name},
    )


def _failed(name: str, pace: float) -> Alert:
    wanted = series(metrics.FINISHED.name, model=name, reason="error")
    window = span(WINDOW * pace)
    return Alert(
        "GaplessStepFailed",
        f"sum by (model, instance) (increase({wanted}[{window}])) > 0",
        0.0,
        "critical",
        f"{name}: a step failed, and its requests with it",
        f"{{{{ $value | humanize }}}} requests in {window} ended with an error, for instance because memory ran out. "
        "The message went to the clients and to the server's log (gapless serve --log-file): keep the log "
        "before anything is restarted. If it was memory: lower kv_cache_memory, gpu_memory_utilization or "
        "max_num_batched_tokens.",
        {"model": name},
    )


def _unhealthy(name: str, pace: float) -> Alert:
    return Alert(
        "GaplessUnhealthy",
        f"{series(metrics.HEALTHY.name, model=name)} == 0",
        MINUTE * pace,
        "critical",
        f"{name}: the engine is broken",
        "The launcher brings a broken engine back within seconds; it has not. Its output says why: look for "
        f"'{name} is broken'. Keep it and the server's log, then restart.",
        {"model": name},
    )
