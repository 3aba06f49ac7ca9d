"""Builds the plan of each step: which sequences, how many tokens of each, on which pages.

Owns the waiting queues and the running list. Order and choice are `policy`'s, pages are `kv_cache`'s; must not know
what tokens mean, why a sequence ends, or what a step costs.

A step serves, in this order: one token for every decoding sequence, then prompts that are under way, then new ones, as
far as `max_num_batched_tokens` goes. A sequence is admitted only with pages for all of its tokens so far, so only
decoding can run short of pages; then the latest arrival that is not in this step yet is preempted (recomputed later).
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from itertools import chain

from decode import policy
from decode.config import EngineConfig
from decode.kv_cache import KVCache
from decode.plan import Chunk, Copy, Draw, StepPlan
from decode.sequence import Sequence

Queue = OrderedDict[int, Sequence]


class Scheduler:
    """Waiting queues per tier, the running list, and the sequences of the step in flight."""

    def __init__(self, config: EngineConfig, cache: KVCache) -> None:
        self.config = config
        self.cache = cache
        self.running: list[Sequence] = []  # sorted by Sequence.key
        self.planned: list[Sequence] = []  # parallel to the last plan's chunks
        self.started: list[Sequence] = []  # first admitted by the last plan
        self.preemptions = 0
        self._fresh: dict[str, Queue] = {t.name: OrderedDict() for t in config.tiers}
        self._preempted: dict[str, Queue] = {t.name: OrderedDict() for t in config.tiers}

    def waiting(self, tier: str) -> int:
        """Requests of a tier that wait for pages or a slot, preempted ones included."""
        return len(self._fresh[tier]) + len(self._preempted[tier])

    def add(self, sequence: Sequence) -> None:
        self._fresh[sequence.request.tier][sequence.number] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence in whatever state; its pages are released."""
        if sequence.lease is not None:
            self.cache.release(sequence.lease)
            sequence.lease = None
            self.running.remove(sequence)
            return
        tier = sequence.request.tier
        if self._fresh[tier].pop(sequence.number, None) is None:
            del self._preempted[tier][sequence.number]

    def expired(self, now: int) -> list[Sequence]:
        """Waiting sequences whose deadline to start has come. Within a tier deadlines follow arrivals."""
        late = []
        for queue in self._fresh.values():
            for sequence in queue.values():
                if sequence.deadline is None or sequence.deadline > now:
                    break
                late.append(sequence)
        return late

    def plan(self, step: int) -> StepPlan | None:
        """The next step, or None when there is nothing to do."""
        self.planned, self.started = [], []
        chunks: list[Chunk] = []
        copies: list[Copy] = []
        short = self._plan_decodes(step, chunks)
        budget = self.config.max_num_batched_tokens - len(chunks)
        if budget > 0:
            budget = self._plan_prompts(step, chunks, budget)
        if not short:
            self._admit(step, chunks, copies, budget)
        return StepPlan(step, tuple(chunks), tuple(copies)) if chunks else None

    def check(self) -> None:
        """Raise AssertionError unless queues, leases and pages agree."""
        self.cache.check([s.lease for s in self.running if s.lease is not None])
        assert all(s.lease is not None for s in self.running), "a running sequence holds no pages"
        assert self.running == sorted(self.running, key=lambda s: s.key), "running out of order"
        for sequence in self._waiting():
            assert sequence.lease is None and sequence.computed == 0, "a waiting sequence holds pages"
        for sequence in self.running:
            assert sequence.lease is not None
            assert len(sequence.lease.table) >= self.cache.pages_for(sequence.computed), "KV without a page"

    def _waiting(self) -> chain[Sequence]:
        queues = chain(self._preempted.values(), self._fresh.values())
        return chain.from_iterable(q.values() for q in queues)

    def _plan_decodes(self, step: int, chunks: list[Chunk]) -> bool:
        """One token for every decoding sequence. Returns whether pages were short."""
        short = False
        page_size, cache = self.cache.page_size, self.cache
        pending = [s for s in self.running if len(s.tokens) - s.computed == 1]
        for sequence in pending:
            lease = sequence.lease
            if lease is None:
                continue  # preempted by an earlier one of this loop
            need = len(sequence.tokens)
            if need > len(lease.table) * page_size and not cache.extend(lease, need):
                short = True
                if not self._make_room(sequence, need):
                    continue
            chunks.append(self._chunk(sequence, 1, step))
        return short

    def _make_room(self, sequence: Sequence, need: int) -> bool:
        """Preempt until `sequence` can hold `need` positions; False when it had to give way itself."""
        done = set(map(id, self.planned))
        lease = sequence.lease
        assert lease is not None
        while not self.cache.extend(lease, need):
            candidates = [s for s in self.running if id(s) not in done]
            loser = candidates[policy.victim(candidates)]
            self._preempt(loser)
            if loser is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the head of its tier's queue, without pages; published ones may still be there when it returns."""
        self.remove(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self.preemptions += 1
        queue = self._preempted[sequence.request.tier]
        queue[sequence.number] = sequence
        queue.move_to_end(sequence.number, last=False)

    def _plan_prompts(self, step: int, chunks: list[Chunk], budget: int) -> int:
        """Go on with prompts under way, oldest first. Returns the budget that is left."""
        planned = len(self.planned)
        if planned == len(self.running):
            return budget
        done = set(map(id, self.planned))
        for sequence in [s for s in self.running if id(s) not in done]:
            if budget == 0:
                break
            size = policy.chunk(sequence.remaining, budget)
            chunks.append(self._chunk(sequence, size, step))
            budget -= size
        return budget

    def _admit(self, step: int, chunks: list[Chunk], copies: list[Copy], budget: int) -> None:
        """Start waiting sequences while policy and pages allow; the first that does not fit stops the queue."""
        before = len(self.running)
        while policy.may_start(self.config, len(self.running), before, budget):
            queue, sequence = self._head()
            if sequence is None:
                return
            tokens = tuple(sequence.tokens)
            match = self.cache.match(tokens, step)
            spare = self.config.watermark_pages if self.running else 0
            if not self.cache.fits(match, len(tokens), spare):
                return
            del queue[sequence.number]
            sequence.lease, todo = self.cache.lease(match, len(tokens))
            sequence.computed = match.cached(self.cache.page_size)
            if sequence.preemptions == 0:
                sequence.cached = sequence.computed
                self.started.append(sequence)
            copies.extend(todo)
            insort(self.running, sequence, key=lambda s: s.key)
            size = policy.chunk(sequence.remaining, budget)
            if size:
                chunks.append(self._chunk(sequence, size, step))
            budget -= size

    def _head(self) -> tuple[Queue, Sequence | None]:
        """The waiting sequence that is next, and the queue it stands in; preempted ones go first in their tier."""
        heads: dict[int, tuple[Queue, Sequence]] = {}
        for tier in self._fresh:
            queue = self._preempted[tier] or self._fresh[tier]
            if queue:
                sequence = next(iter(queue.values()))
                heads[sequence.number] = (queue, sequence)
        best = policy.next_to_start(s for _, s in heads.values())
        return heads[best.number] if best is not None else (OrderedDict(), None)

    def _chunk(self, sequence: Sequence, size: int, step: int) -> Chunk:
        """Plan `size` tokens. Pages they fill are published at once: others may read them within this very step."""
        start, tokens, lease = sequence.computed, sequence.tokens, sequence.lease
        assert lease is not None
        end = start + size
        sequence.computed = end
        self.planned.append(sequence)
        if lease.publishing and end // self.cache.page_size > len(lease.nodes):
            self.cache.publish(lease, tokens, end, step)
        draw = _draw(sequence) if end == len(tokens) else None
        return Chunk(sequence.number, tuple(tokens[start:end]), start, lease.table, draw)


def _draw(sequence: Sequence) -> Draw:
    params, tokens, prompt_len = sequence.request.sampling, sequence.tokens, sequence.prompt_len
    position = len(tokens)
    banned = tuple(sorted(sequence.stop_ids)) if position - prompt_len < params.min_tokens else ()
    if params.penalized:
        return Draw(params, position, banned, tuple(tokens[:prompt_len]), tuple(tokens[prompt_len:]))
    return Draw(params, position, banned)
