"""Rules on traffic classes: missing, starving, late, and long prompts in the way of short ones.

Must not know how facts are measured, nor how findings are ranked.
"""

from __future__ import annotations

from config_gen.sla.quantity import show_duration
from observe import alerts_llm, metrics
from observe.amounts import listed
from observe.doctor.facts import Facts, LlmFacts, TierFacts
from observe.doctor.finding import Evidence, Finding, beyond, confidence
from observe.doctor.say import known, number, percent, seconds

LEAST_ENDED = 20  # requests of a tier
MATTERS = 0.1  # share of the service, of a background that is felt
FELT = 0.05  # s of waiting
FELT_FIRST = 0.2  # s to the first token
# Of the background's waiting that an urgent tier waits. Measured with the same load on two cores: 0.59 (0.44 to the
# first token) in order of arrival, 0.04 (0.09) with weights; what is not told has to be plainer.
ALIKE = {"fcfs": 0.25, None: 0.5}
BUSY = 0.5  # share of the time in steps, below which tiers hardly meet
STARVED, GATED = alerts_llm.STARVED, alerts_llm.GATED  # s without service; of a tier that starts in gaps only
SHORTEST = 20.0  # s, and half of a short window
TAIL, HUGE = 8.0, 1024  # times the median prompt; tokens
STALL, FELT_STALL = 8.0, 0.1  # times the median gap or step; s


def tiers_missing(facts: Facts, llm: LlmFacts) -> Finding | None:
    """Two classes share the engine in order of arrival, and the urgent one pays for the other's work."""
    policy, served = llm.info.get("policy"), [tier for tier in llm.tiers if (tier.service or 0) > 0]
    if policy not in ALIKE or len(served) < 2:
        return None
    urgent, others = served[0], served[1:]
    rest = sum(tier.service or 0 for tier in others)
    if (urgent.finished or 0) < LEAST_ENDED or rest < MATTERS or max(llm.busy or 0, llm.waiting_share or 0) < BUSY:
        return None
    other = max(others, key=lambda tier: tier.service or 0)
    queues = _alike(urgent.queue.mean, other.queue.mean, FELT, ALIKE[policy])
    firsts = _alike(urgent.ttft.mean, other.ttft.mean, FELT_FIRST, ALIKE[policy])
    late = bool(urgent.missed)
    # Where nobody tells the policy, only waiting that is alike says that there is none.
    if not (queues or ((firsts or late) and policy == "fcfs")):
        return None
    names = listed([tier.name for tier in others])
    return Finding(
        "tiers-missing",
        "tiers missing",
        llm.model,
        "cause",
        confidence(
            llm.seconds,
            beyond(rest, MATTERS, 0.5),
            ("the policy is fcfs", None if policy is None else True),
            (f"{urgent.name} is over its target", late if urgent.promised else None),
        ),
        known(
            _both("begins", urgent, other, urgent.queue.mean, other.queue.mean, metrics.QUEUE.name),
            _both("has its first token", urgent, other, urgent.ttft.mean, other.ttft.mean, metrics.TTFT.name),
            percent(f"of the service went to {names}", rest, metrics.SERVICE.name),
            None if policy is None else Evidence(f"the policy is {policy}", 1.0, "1", metrics.ENGINE.name),
        ),
        f"let {urgent.name} go before {other.name}: serve {llm.model} with policy weighted, give {urgent.name} "
        f"more weight and {other.name} idle_below 40% in the SLA file's tiers",
    )


def _alike(urgent: float | None, other: float | None, felt: float, alike: float) -> bool:
    """The urgent tier waits as the other one does, by as much as matters."""
    return urgent is not None and other is not None and urgent >= felt and urgent >= alike * other


def _both(
    what: str, urgent: TierFacts, other: TierFacts, first: float | None, last: float | None, source: str
) -> Evidence | None:
    if first is None or last is None:
        return None
    times = [show_duration(it * 1e9) for it in (first, last)]
    return Evidence(
        f"{urgent.name} {what} after {times[0]} on average, {other.name} after {times[1]}", first, "s", source
    )


def starving(facts: Facts, llm: LlmFacts) -> Finding | None:
    """One tier waits and is not served while others are."""
    waited = [(tier, tier.unserved) for tier in llm.tiers if tier.unserved is not None]
    found = [(tier, time) for tier, time in waited if time >= _patience(llm, tier)]
    served = [tier for tier in llm.tiers if tier not in [it for it, _ in found] and (tier.service or 0) > 0]
    if not found or not served:
        return None
    worst, unserved = max(found, key=lambda it: it[1])
    maybe = worst.gated is None and worst is llm.tiers[-1] and llm.info.get("policy", "weighted") == "weighted"
    meant = (
        ("idle_below does not hold it back (--sla tells)", None) if maybe else ("others were served meanwhile", True)
    )
    return Finding(
        "starving",
        f"{worst.name} starves",
        llm.model,
        "problem",
        confidence(unserved, beyond(unserved, STARVED, 2 * GATED), meant),
        (
            seconds(
                f"{worst.name} waited without any service",
                unserved,
                f'gapless_waiting, gapless_service_total{{tier="{worst.name}"}}',
            ),
            percent(
                f"of the service went to {listed([tier.name for tier in served])}",
                sum(t.service or 0 for t in served),
                metrics.SERVICE.name,
            ),
        ),
        f"serve {llm.model} with policy weighted and raise the weight of {worst.name}, or its idle_below if it has one",
    )


def _patience(llm: LlmFacts, tier: TierFacts) -> float:
    return GATED if tier.gated else max(SHORTEST, min(STARVED, llm.seconds / 2))


def hangs(facts: Facts, llm: LlmFacts) -> Finding | None:
    """Requests wait, and no step is made at all."""
    longest = max((tier.unserved or 0.0 for tier in llm.tiers), default=0.0)
    if llm.steps is None or llm.steps or longest < SHORTEST or longest < llm.seconds / 2:
        return None
    return Finding(
        "hangs",
        "requests wait and nothing is computed",
        llm.model,
        "cause",
        confidence(longest, beyond(longest, SHORTEST, STARVED)),
        (
            seconds("requests waited without any service", longest, "gapless_waiting, gapless_service_total"),
            number("steps", llm.steps, metrics.STEPS.name),
        ),
        f"read the launcher's output and the server's log about {llm.model}, keep both, and restart it",
    )


def urgent_late(facts: Facts, llm: LlmFacts) -> Finding | None:
    """The SLA file's targets, by the histograms that have them as edges."""
    late = [(tier, missed) for tier in llm.tiers for missed in tier.missed]
    if not late:
        return None
    tier, worst = max(late, key=lambda it: it[1].seen / it[1].limit)
    return Finding(
        "over-target",
        f"{listed(list(dict.fromkeys(it.name for it, _ in late)))} over target",
        llm.model,
        "problem",
        confidence(llm.seconds, beyond(worst.seen / worst.limit, 1, 2)),
        tuple(
            seconds(
                f"{it.name}: {one.metric} {one.at} by its histogram, promised {show_duration(one.limit * 1e9)}",
                one.seen,
                f"gapless_{one.metric.lower()}_seconds",
            )
            for it, one in late
        ),
        f"plan {llm.model} for the load that really comes (gapless plan), or give {tier.name} a looser target",
    )


def long_prompts(facts: Facts, llm: LlmFacts) -> Finding | None:
    """Prompts of very different length, and decoding or short prompts that stall."""
    middle, longest = llm.prompts.p50, llm.prompts.p99 or llm.prompts.longest
    if llm.prompts.count < LEAST_ENDED or not middle or longest is None or longest < max(HUGE, TAIL * middle):
        return None
    stalls = [
        (what, spread.p50, spread.p99, name)
        for what, spread, name in (
            ("gap between tokens", llm.itl, metrics.ITL.name),
            ("step", llm.step, metrics.STEP.name),
        )
        if spread.p50 and spread.p99 and spread.p99 >= max(FELT_STALL, STALL * spread.p50)
    ]
    if not stalls:
        return None
    what, usual, long, source = stalls[0]
    return Finding(
        "long-prompts",
        "long prompts block short ones",
        llm.model,
        "cause",
        confidence(
            llm.seconds, beyond(long / usual, STALL, 4 * STALL), ("steps are long, too", len(stalls) > 1 or None)
        ),
        (
            number("P99 of prompt lengths", longest, metrics.PROMPT_LENGTH.name, "tokens"),
            number("median", middle, metrics.PROMPT_LENGTH.name, "tokens"),
            seconds(f"P99 of a {what}, {usual * 1000:.3g} ms at the median", long, source),
        ),
        f"cut {llm.model}'s prompts finer: an ITL target and max_long for tiers, or fewer max_num_batched_tokens; or "
        "send long prompts to a model of their own",
    )
