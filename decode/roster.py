"""Who waits and who runs, and the pages that go with it: a sequence holds a lease exactly while it runs.

Moves sequences between the two when told; must not know budgets, gaps, or whose turn it is.
"""

from __future__ import annotations

from bisect import insort

from decode import policy
from decode.config import EngineConfig
from decode.draft import Draft
from decode.kv_cache import KVCache, Match
from decode.queues import Waiting
from decode.sequence import Sequence
from decode.step_time import StepTime


class Roster:
    """`running` is sorted by Sequence.key. `preemptions` counts evictions, `swaps` those that saved pages."""

    def __init__(self, config: EngineConfig, cache: KVCache) -> None:
        self.waiting = Waiting(config.tiers)
        self.running: list[Sequence] = []
        self.preemptions = self.swaps = 0
        self._config = config
        self._cache = cache

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence in whatever state; its pages are released."""
        if sequence.lease is None:
            self.waiting.remove(sequence)
            self._free_slots(sequence)
            return
        self._cache.release(sequence.lease)
        sequence.lease = None
        self.running.remove(sequence)

    def match(self, sequence: Sequence, step: int) -> tuple[Match, int]:
        """What of a waiting sequence is cached, and how many positions its lease must cover."""
        last = sequence.preemptions >= self._config.max_preemptions
        return self._cache.match(tuple(sequence.tokens), step), sequence.limit if last else len(sequence.tokens)

    def start(self, sequence: Sequence, draft: Draft) -> bool:
        """Let a waiting sequence run from the step being built on. False (and no change) when pages are short."""
        match, need = self.match(sequence, draft.step)
        if not self._cache.fits(match, need, self._config.watermark_pages if self.running else 0):
            return False
        self.waiting.remove(sequence)
        sequence.lease, copies = self._cache.lease(match, need)
        sequence.computed = match.cached(self._cache.page_size)
        if sequence.preemptions == 0:
            sequence.cached = sequence.charged = sequence.computed
            draft.started.append(sequence)
        if sequence.saved > sequence.computed:
            sequence.computed = sequence.saved
            draft.copies.extend(self._cache.swap_in(sequence.lease, sequence.slots))
            sequence.slots = []
        else:
            draft.copies.extend(copies)
            self._free_slots(sequence)
        sequence.saved = 0
        insort(self.running, sequence, key=lambda s: s.key)
        return True

    def preempt(self, sequence: Sequence, draft: Draft, times: StepTime) -> None:
        """Back to its tier's queue, without pages: to be computed again, or saved in host memory if that is cheaper.

        Published pages may still be there when it returns.
        """
        cache, lease = self._cache, sequence.lease
        assert lease is not None
        pages = cache.pages_for(sequence.computed)
        if pages <= cache.host.free and policy.swap_pays(self._config, times, sequence.computed, pages):
            sequence.slots, moves = cache.swap_out(lease, sequence.computed)
            sequence.saved = sequence.computed
            self.swaps += 1
            draft.copies.extend(moves)
        cache.release(lease)
        sequence.lease = None
        self.running.remove(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self.preemptions += 1
        draft.preempted.append((sequence, sequence.saved > 0))
        self.waiting[sequence.tier.name].put_back(sequence)

    def check(self) -> None:
        """Raise AssertionError unless queues, leases and pages agree."""
        cache = self._cache
        cache.check([s.lease for s in self.running if s.lease is not None])
        assert self.running == sorted(self.running, key=lambda s: s.key), "running out of order"
        for sequence in self.waiting:
            assert sequence.lease is None and sequence.computed == 0, "a waiting sequence holds pages"
            assert len(sequence.slots) == cache.pages_for(sequence.saved), "a saved position without a slot"
        slots = [slot for sequence in self.waiting for slot in sequence.slots]
        assert len(set(slots)) == len(slots) == cache.host.size - cache.host.free, "a slot is lost"
        for sequence in self.running:
            assert sequence.lease is not None, "a running sequence holds no pages"
            assert len(sequence.lease.table) >= cache.pages_for(sequence.computed), "KV without a page"
            assert sequence.preemptions <= self._config.max_preemptions, "preempted too often"

    def _free_slots(self, sequence: Sequence) -> None:
        for slot in sequence.slots:
            self._cache.host.give_back(slot)
        sequence.slots = []
