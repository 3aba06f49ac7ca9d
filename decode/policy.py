"""Who goes next, who gives way: pure functions over a snapshot, no state of their own.

First come, first served for now; weighted tiers change these functions, not the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from decode.config import EngineConfig
from decode.sequence import Sequence


def next_to_start(heads: Iterable[Sequence]) -> Sequence | None:
    """Which of the waiting sequences at the head of their queues starts first: the earliest arrival."""
    return min(heads, key=lambda s: s.key, default=None)


def victim(running: Seq[Sequence]) -> int:
    """Index of the sequence to preempt when pages are short: the latest arrival, which has waited least."""
    return max(range(len(running)), key=lambda i: running[i].key)


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
