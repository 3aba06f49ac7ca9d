"""Who goes next, who gives way, how much goes into a step: pure functions over a snapshot, no state of their own."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from decode.accounts import Accounts
from decode.config import EngineConfig
from decode.sequence import Sequence
from decode.step_time import StepTime, Work

WAY = 0.05  # of an ITL target, that the way to the client may add to a gap
PATIENCE = 8  # steps of full budget that a tier may be owed before it stops waiting for gaps and for higher tiers


def next_prompt(config: EngineConfig, accounts: Accounts, candidates: Iterable[Sequence]) -> Sequence | None:
    """Which prompt goes on, or starts: one candidate for each tier.

    weighted: the tier with the least virtual time; among tiers less than a step of service behind it, the prompt whose
    first token is due first, then the higher tier.
    """
    offers = list(candidates)
    if len(offers) < 2:
        return offers[0] if offers else None
    if config.policy != "weighted":
        return min(offers, key=lambda s: s.key)
    step = config.max_num_batched_tokens * config.prefill_cost
    least = min(accounts.time(s.tier.name) for s in offers)
    close = [s for s in offers if (accounts.time(s.tier.name) - least) * s.tier.weight <= step]
    return min(close, key=lambda s: (s.due, accounts.time(s.tier.name), s.key))


def may_evict(config: EngineConfig, accounts: Accounts, starter: Sequence, runner: Sequence) -> bool:
    """Whether `runner` gives way so that `starter` can start: it is of a lower tier, and would start after it.

    Equals never evict each other, and nobody is evicted more than `max_preemptions` times.
    """
    if runner.rank <= starter.rank or runner.preemptions >= config.max_preemptions:
        return False
    return next_prompt(config, accounts, (runner, starter)) is starter


def cheapest_first(runners: Iterable[Sequence]) -> list[Sequence]:
    """In the order in which they give way: lowest tier, then least work lost, then the latest arrival."""
    return sorted(runners, key=lambda s: (-s.rank, s.computed, -s.arrival, -s.number))


def swap_pays(config: EngineConfig, times: StepTime, computed: int, pages: int) -> bool:
    """Whether moving `pages` out and in again is predicted to be cheaper than to compute `computed` positions again."""
    again = times.predict(Work(computed, 0, 0, computed * computed // 2)) - times.predict(Work(0, 0, 0, 0))
    return 2 * pages * config.swap_page_time < again


def victim(config: EngineConfig, running: Seq[Sequence]) -> Sequence | None:
    """Who gives way when decoding is short of pages: lowest tier, latest arrival, not preempted too often before."""
    allowed = [s for s in running if s.preemptions < config.max_preemptions]
    return max(allowed, key=lambda s: s.key, default=None)


def gap(config: EngineConfig, load: float, owed: float, idle_below: float | None) -> bool:
    """Whether a tier may start now: the load by others leaves a gap, or it has waited too long for one."""
    if idle_below is None or config.policy != "weighted" or load < idle_below:
        return True
    return owed > PATIENCE * config.max_num_batched_tokens


def stopped_by(config: EngineConfig, blocked: Sequence, owed: float) -> int:
    """From which rank on nobody starts in a step in which `blocked`, whose turn it was, found no pages.

    Pages that come free are for it. Higher tiers may still pass, until its tier is owed too much.
    """
    return 0 if owed > PATIENCE * config.max_num_batched_tokens else blocked.rank


def itl_limit(decoding: Iterable[Sequence], times: StepTime) -> float | None:
    """Most ns that a step may take by prediction so that every sequence decoding in it keeps its ITL target."""
    targets = [s.tier.itl for s in decoding if s.tier.itl is not None]
    return min(targets) * (1 - WAY) / times.late if targets else None


def prompt_budget(config: EngineConfig, times: StepTime, work: Work, limit: float | None, context: int) -> int:
    """Prompt tokens that fit a step which already has `work`; `context` is a guess of what each of them attends to."""
    most = config.max_num_batched_tokens - work.decodes
    if limit is None or most <= 0 or config.policy != "weighted":
        return max(0, most)
    return min(most, max(config.min_prefill_tokens, times.prefill_within(limit, work, context, most)))


def in_time(
    config: EngineConfig, sequence: Sequence, now: int, times: StepTime, running: int, usual_step: float
) -> bool:
    """Whether a waiting sequence that starts now beside those `running` is predicted to keep the targets of its tier:
    as many steps as its prompt needs, each with nobody else's prompt in it but never below `usual_step` ns, then one
    of `usual_step` for each token that it may ask for.

    A client that asks for more tokens than it gets is late too early, and then waits for others of its tier.
    """
    ttft, e2e = sequence.tier.ttft, sequence.tier.e2e
    if config.policy != "weighted" or (ttft is None and e2e is None):
        return True
    length, most = len(sequence.tokens), config.max_num_batched_tokens
    step = max(usual_step, times.predict(Work(min(length, most), running, 0, 0)))
    first = now + -(-length // most) * step
    last = first + (sequence.limit - length) * usual_step
    return (ttft is None or first <= sequence.arrival + ttft) and (e2e is None or last <= sequence.arrival + e2e)


def chunk(remaining: int, budget: int) -> int:
    """How many tokens of a prompt to compute in a step with `budget` tokens left."""
    return min(remaining, budget)


def may_start(config: EngineConfig, running: int, running_before: int, budget: int) -> bool:
    """Whether one more sequence may join: `running` now, `running_before` when the step was begun, tokens left in it.

    serial: one at a time. static: a batch forms while nothing runs and takes nobody in until all of it has ended; it
    fills its slots even when the step has no tokens left for them. continuous: whenever a slot and tokens are free.
    """
    if config.mode == "serial":
        return running == 0
    if config.mode == "static":
        return running_before == 0 and running < config.max_num_seqs
    return budget > 0 and running < config.max_num_seqs


def free_slots(config: EngineConfig, running: int) -> int:
    """How many more sequences may join before one of the `running` ones ends, tokens and pages left aside."""
    if config.mode == "serial":
        return max(0, 1 - running)
    if config.mode == "static" and running:
        return 0
    return config.max_num_seqs - running
