"""Builds the plan of each step: which sequences, how many tokens of each, on which pages.

Owns the waiting queues, the running list and the tiers' accounts. Order and choice are `policy`'s, pages are
`kv_cache`'s; must not know what tokens mean or why a sequence ends.

A step is built in this order: lower tiers give way to the next prompt of a higher one that lacks a slot or pages; one
token for every decoding sequence; prompts under way and new ones, in the order of policy, as far as the budget goes. A
sequence is admitted only with pages for all of its tokens so far, so only decoding can run short of pages; one that was
preempted as often as is allowed comes back with pages for all it can ever hold.
"""

from __future__ import annotations

from bisect import insort
from itertools import chain

from decode import policy
from decode.accounts import Accounts
from decode.config import EngineConfig
from decode.kv_cache import KVCache, Match
from decode.load import Load, Pace
from decode.plan import Chunk, Copy, Draw, StepPlan, Swap
from decode.queues import Queue
from decode.sequence import Sequence
from decode.step_time import StepTime, Work


class Scheduler:
    """Waiting queues per tier, the running list, and the sequences of the step in flight."""

    def __init__(self, config: EngineConfig, cache: KVCache) -> None:
        self.config = config
        self.cache = cache
        self.times = StepTime()
        self.running: list[Sequence] = []  # sorted by Sequence.key
        self.planned: list[Sequence] = []  # parallel to the last plan's chunks
        self.started: list[Sequence] = []  # first admitted by the last plan
        self.preemptions = self.swaps = 0  # how often a sequence was evicted, and how often of that to host memory
        self.accounts = Accounts({t.name: t.weight for t in config.tiers})
        self._load = Load()
        self._queues = {t.name: Queue() for t in config.tiers}
        self._gated = [t for t in config.tiers if t.idle_below is not None]
        self._max_long = {t.name: t.max_long for t in config.tiers}
        self._paces = {t.name: Pace() for t in config.tiers}
        self._tokens: dict[str, int] = {}  # by tier, in the step being built
        self._copies: list[Copy | Swap] = []
        self._work = Work(0, 0, 0, 0)
        self._planned_at = 0
        self._elapsed: int | None = None  # of the planned step, until its whole time is known

    def waiting(self, tier: str) -> int:
        """Requests of a tier that wait for pages or a slot, preempted ones included."""
        return len(self._queues[tier])

    def add(self, sequence: Sequence) -> None:
        queue = self._queues[sequence.tier.name]
        if not len(queue):
            self.accounts.arrive(sequence.tier.name)
        queue.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence in whatever state; its pages are released."""
        if sequence.lease is None:
            self._queues[sequence.tier.name].remove(sequence)
            for slot in sequence.slots:
                self.cache.host.give_back(slot)
            return
        self.cache.release(sequence.lease)
        sequence.lease = None
        self.running.remove(sequence)

    def expired(self, now: int) -> list[Sequence]:
        """Waiting sequences whose deadline to start has come."""
        return [sequence for queue in self._queues.values() for sequence in queue.expired(now)]

    def predicted_wait(self, tier: str) -> int | None:
        """ns that a request of a tier would wait if it came now, None when nothing is known."""
        interval = self._paces[tier].interval
        return None if interval is None else int(interval * self.waiting(tier))

    def plan(self, step: int, now: int) -> StepPlan | None:
        """The next step, or None when there is nothing to do."""
        self._learn(now)
        self.planned, self.started, self._tokens, self._planned_at = [], [], {}, now
        self._copies = []
        chunks: list[Chunk] = []
        waiting, closed = [name for name, queue in self._queues.items() if len(queue)], frozenset[str]()
        if waiting:
            self.accounts.settle(waiting)
            closed = self._closed(now, waiting)
            self._make_way(step, closed)
        limit, short = self._plan_decodes(step, chunks)
        if waiting or len(self.planned) < len(self.running):
            budget = policy.prompt_budget(self.config, self.times, self._work, limit, self._context())
            self._plan_prompts(step, chunks, budget, frozenset(self._queues) if short else closed)
        for name in {s.tier.name for s in self.started}:
            self._paces[name].started(now, sum(s.tier.name == name for s in self.started), self.waiting(name))
        return StepPlan(step, tuple(chunks), tuple(self._copies)) if chunks else None

    def executed(self, elapsed: int) -> None:
        """The planned step took `elapsed` ns."""
        self._elapsed = elapsed
        # Not the time of the commit: a replay knows when a step was planned and how long it took, and no more.
        self._load.add(self._planned_at + elapsed, elapsed, self._shares())

    def _learn(self, now: int) -> None:
        """What the last step took. A client waits from token to token: what lies between two steps is part of it."""
        if self._elapsed is not None:
            # With nobody left running the next step may have come much later.
            took = now - self._planned_at if self.running else self._elapsed
            self.times.learn(self._work, max(took, self._elapsed))
            self._elapsed = None

    def check(self) -> None:
        """Raise AssertionError unless queues, leases and pages agree."""
        self.cache.check([s.lease for s in self.running if s.lease is not None])
        assert all(s.lease is not None for s in self.running), "a running sequence holds no pages"
        assert self.running == sorted(self.running, key=lambda s: s.key), "running out of order"
        for sequence in chain.from_iterable(self._queues.values()):
            assert sequence.lease is None and sequence.computed == 0, "a waiting sequence holds pages"
            assert len(sequence.slots) == self.cache.pages_for(sequence.saved), "a saved position without a slot"
        slots = [slot for sequence in chain.from_iterable(self._queues.values()) for slot in sequence.slots]
        assert len(set(slots)) == len(slots) == self.cache.host.size - self.cache.host.free, "a slot is lost"
        for sequence in self.running:
            assert sequence.lease is not None
            assert len(sequence.lease.table) >= self.cache.pages_for(sequence.computed), "KV without a page"
            assert sequence.preemptions <= self.config.max_preemptions, "preempted too often"

    # --- who may start ---

    def _closed(self, now: int, waiting: list[str]) -> frozenset[str]:
        """Tiers that start nothing in this step, for the load by others leaves no gap."""
        closed = []
        gated = [tier for tier in self._gated if tier.name in waiting]
        active = {*waiting, *(s.tier.name for s in self.running)} if gated else set()
        for tier in gated:
            others = active - {tier.name}
            if not others:
                continue
            load = max(self._load.others(tier.name, now), self._pages_of_others(tier.name))
            if not policy.gap(self.config, load, self.accounts.owed(tier.name, others), tier.idle_below):
                closed.append(tier.name)
        return frozenset(closed)

    def _pages_of_others(self, tier: str) -> float:
        leases = [s.lease for s in self.running if s.lease is not None and s.tier.name != tier]
        return len({page for lease in leases for page in lease.table}) / self.config.num_pages

    def _head(self, tier: str) -> Sequence | None:
        """Who of a tier starts next."""
        queue = self._queues[tier]
        most = self._max_long[tier]
        return queue.head(most is None or sum(s.long and s.tier.name == tier for s in self.running) < most)

    def _heads(self, closed: frozenset[str]) -> list[Sequence]:
        heads = [self._head(name) for name, queue in self._queues.items() if len(queue) and name not in closed]
        return [head for head in heads if head is not None]

    def _make_way(self, step: int, closed: frozenset[str]) -> None:
        """Preempt sequences of lower tiers, if that lets the next prompt in line start."""
        if self.config.mode != "continuous" or not self.running or self.running[-1].rank == 0:
            return
        starter = policy.next_prompt(self.config, self.accounts, self._heads(closed))
        if starter is None:
            return
        match, need = self._match(starter, step)
        losers: list[Sequence] = []
        candidates = [s for s in self.running if policy.may_evict(self.config, self.accounts, starter, s)]
        slots, freed = policy.free_slots(self.config, len(self.running)), 0
        for loser in policy.cheapest_first(candidates):
            if slots > 0 and self.cache.fits(match, need, self.config.watermark_pages - freed):
                break
            losers.append(loser)
            assert loser.lease is not None
            slots, freed = slots + 1, freed + self.cache.freed_by(loser.lease, match)
        if slots > 0 and self.cache.fits(match, need, self.config.watermark_pages - freed):
            for loser in losers:
                self._preempt(loser)

    def _match(self, sequence: Sequence, step: int) -> tuple[Match, int]:
        """What of a waiting sequence is cached, and how many positions its lease must cover."""
        last = sequence.preemptions >= self.config.max_preemptions
        return self.cache.match(tuple(sequence.tokens), step), sequence.limit if last else len(sequence.tokens)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to its tier's queue, without pages: to be computed again, or saved in host memory if that is cheaper.

        Published pages may still be there when it returns.
        """
        queue = self._queues[sequence.tier.name]
        assert sequence.lease is not None
        pages = self.cache.pages_for(sequence.computed)
        if pages <= self.cache.host.free and policy.swap_pays(self.config, self.times, sequence.computed, pages):
            sequence.slots, moves = self.cache.swap_out(sequence.lease, sequence.computed)
            sequence.saved = sequence.computed
            self.swaps += 1
            self._copies.extend(moves)
        self.cache.release(sequence.lease)
        sequence.lease = None
        self.running.remove(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self.preemptions += 1
        queue.put_back(sequence)

    # --- decoding ---

    def _plan_decodes(self, step: int, chunks: list[Chunk]) -> tuple[float | None, bool]:
        """One token for every decoding sequence. Returns how long the step may take, and whether pages were short."""
        pending = [s for s in self.running if len(s.tokens) - s.computed == 1]
        limit = policy.itl_limit(pending, self.times)
        if limit is not None and self._gated:
            pending = self._paused(pending, limit)
        short = False
        page_size, cache, planned = self.cache.page_size, self.cache, self.planned
        for sequence in pending:
            lease = sequence.lease
            if lease is None:
                continue  # preempted by an earlier one of this loop
            tokens = sequence.tokens
            need, table = len(tokens), lease.table
            if need > len(table) * page_size:
                if not cache.extend(lease, need):
                    short = True
                    if not self._make_room(sequence, need):
                        continue
                table = lease.table
            sequence.computed = need
            planned.append(sequence)
            if lease.publishing and need // page_size > len(lease.nodes):
                cache.publish(lease, tokens, need, step)
                table = lease.table
            chunks.append(Chunk(sequence.number, (tokens[-1],), need - 1, table, _draw(sequence)))
        self._account_decodes()
        return limit, short

    def _account_decodes(self) -> None:
        """Charge tiers for the tokens of `planned`, all of them decoding; one look at each, there may be thousands."""
        context, charged, self._tokens = 0, dict.fromkeys(self._queues, 0), dict.fromkeys(self._queues, 0)
        for sequence in self.planned:
            end = sequence.computed
            context += end
            self._tokens[sequence.tier.name] += 1
            if end > sequence.charged:
                sequence.charged = end
                charged[sequence.tier.name] += 1
        for tier, count in charged.items():
            if count:
                self.accounts.charge(tier, count * self.config.decode_cost)
        self._work = Work(0, len(self.planned), context, 0)

    def _paused(self, pending: list[Sequence], limit: float) -> list[Sequence]:
        """Leave out sequences of gap tiers, last first, that would make the step too long; they keep their pages."""
        kept = list(pending)
        context = sum(len(s.tokens) for s in kept)
        while kept and kept[-1].tier.idle_below is not None:
            if self.times.predict(Work(0, len(kept), context, 0)) <= limit:
                break
            context -= len(kept.pop().tokens)
        return kept

    def _make_room(self, sequence: Sequence, need: int) -> bool:
        """Preempt until `sequence` can hold `need` positions; False when it had to give way itself."""
        done = set(map(id, self.planned))
        lease = sequence.lease
        assert lease is not None
        while not self.cache.extend(lease, need):
            loser = policy.victim(self.config, [s for s in self.running if id(s) not in done])
            assert loser is not None, "a sequence that may not be preempted any more is short of pages"
            self._preempt(loser)
            if loser is sequence:
                return False
        return True

    # --- prompts ---

    def _plan_prompts(self, step: int, chunks: list[Chunk], budget: int, closed: frozenset[str]) -> None:
        """Prompts under way and new ones, tier by tier in the order of policy, while there is budget."""
        before = len(self.running)
        under_way = self._under_way()
        if self.config.policy == "weighted" and any(line[-1].remaining > budget for line in under_way.values()):
            budget -= self._plan_short(step, chunks, budget // 2, under_way, closed)
        while True:
            offers = {name: line[-1] for name, line in under_way.items() if line} if budget > 0 else {}
            if policy.may_start(self.config, len(self.running), before, budget):
                offers = {head.tier.name: head for head in self._heads(closed)} | offers
            sequence = policy.next_prompt(self.config, self.accounts, offers.values())
            if sequence is None:
                return
            if sequence.lease is not None:
                under_way[sequence.tier.name].pop()
            elif not self._start(sequence, step):
                owed = self.accounts.owed(sequence.tier.name, [h.tier.name for h in self._heads(closed)])
                rank = policy.stopped_by(self.config, sequence, owed)
                closed |= {head.tier.name for head in self._heads(closed) if head.rank >= rank}
                continue
            budget -= self._plan_prompt(sequence, budget, step, chunks)

    def _plan_short(
        self, step: int, chunks: list[Chunk], budget: int, under_way: dict[str, list[Sequence]], closed: frozenset[str]
    ) -> int:
        """Up to half a step goes first to prompts that it completes, so that a long one does not hold up short ones.

        Those next in line are looked at, no others: nobody is overtaken by more than this. Returns the tokens planned.
        """
        left, before = budget, len(self.running)
        long = {id(line[-1]) for line in under_way.values() if line[-1].remaining > budget}
        for line in under_way.values():
            for sequence in reversed(line[:]):
                if id(sequence) not in long and sequence.remaining <= left:
                    line.remove(sequence)
                    left -= self._plan_prompt(sequence, left, step, chunks)
        while policy.may_start(self.config, len(self.running), before, left):
            head = policy.next_prompt(self.config, self.accounts, self._heads(closed))
            if head is None or len(head.tokens) > left or not self._start(head, step):
                break
            left -= self._plan_prompt(head, left, step, chunks)
        return budget - left

    def _plan_prompt(self, sequence: Sequence, budget: int, step: int, chunks: list[Chunk]) -> int:
        """Plan as much of a running sequence's prompt as fits `budget`; returns the number of tokens."""
        size = policy.chunk(sequence.remaining, budget)
        if size:
            self._account_prompt(sequence, size)
            chunks.append(self._chunk(sequence, size, step))
        return size

    def _under_way(self) -> dict[str, list[Sequence]]:
        """Running sequences by tier that are not in this step and have more than a token to compute, oldest last."""
        found: dict[str, list[Sequence]] = {}
        if len(self.planned) < len(self.running):
            done = set(map(id, self.planned))
            for sequence in reversed(self.running):
                if id(sequence) not in done and sequence.remaining > 1:
                    found.setdefault(sequence.tier.name, []).append(sequence)
        return found

    def _start(self, sequence: Sequence, step: int) -> bool:
        """Let a waiting sequence run, if its pages can be had."""
        match, need = self._match(sequence, step)
        if not self.cache.fits(match, need, self.config.watermark_pages if self.running else 0):
            return False
        self._queues[sequence.tier.name].remove(sequence)
        sequence.lease, copies = self.cache.lease(match, need)
        sequence.computed = match.cached(self.cache.page_size)
        if sequence.preemptions == 0:
            sequence.cached = sequence.charged = sequence.computed
            self.started.append(sequence)
        if sequence.saved > sequence.computed:
            sequence.computed = sequence.saved
            self._copies.extend(self.cache.swap_in(sequence.lease, sequence.slots))
        else:
            self._copies.extend(copies)
            for slot in sequence.slots:
                self.cache.host.give_back(slot)
        sequence.saved, sequence.slots = 0, []
        insort(self.running, sequence, key=lambda s: s.key)
        return True

    def _context(self) -> int:
        """About how many positions a prompt token of this step attends to."""
        lengths = [line[-1].computed for line in self._under_way().values()]
        return sum(lengths) // len(lengths) if lengths else 0

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

    def _account_prompt(self, sequence: Sequence, size: int) -> None:
        """Charge the tier for the next `size` positions, as far as it has not paid for them yet."""
        start, end, prompt = sequence.computed, sequence.computed + size, sequence.prompt_len
        first = max(start, sequence.charged)
        prefill, decode = max(0, min(end, prompt) - first), max(0, end - max(first, prompt))
        sequence.charged = max(sequence.charged, end)
        self.accounts.charge(sequence.tier.name, prefill * self.config.prefill_cost + decode * self.config.decode_cost)
        self._tokens[sequence.tier.name] += size
        work = self._work
        self._work = work._replace(
            prefill_tokens=work.prefill_tokens + size,
            prefill_context=work.prefill_context + size * (start + end) // 2,
        )

    def _shares(self) -> dict[str, float]:
        """How much of what a step can hold each tier had in the planned one: of its slots or of its tokens."""
        slots = dict.fromkeys(self._queues, 0)
        for sequence in self.planned:
            slots[sequence.tier.name] += 1
        seqs, tokens = self.config.max_num_seqs, self.config.max_num_batched_tokens
        return {tier: max(slots[tier] / seqs, self._tokens[tier] / tokens) for tier in slots}


def _draw(sequence: Sequence) -> Draw:
    params, tokens, prompt_len = sequence.request.sampling, sequence.tokens, sequence.prompt_len
    if sequence.plain:
        return Draw(params, len(tokens))
    position = len(tokens)
    banned = tuple(sorted(sequence.stop_ids)) if position - prompt_len < params.min_tokens else ()
    if params.penalized:
        return Draw(params, position, banned, tuple(tokens[:prompt_len]), tuple(tokens[prompt_len:]))
    return Draw(params, position, banned)
