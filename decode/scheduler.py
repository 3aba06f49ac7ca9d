"""Builds the plan of each step: which sequences, how many tokens of each, on which pages.

Owns the tiers' accounts and the law of step times. Who waits and who runs is in `roster`, order and choice are
`policy`'s, pages `kv_cache`'s, chunks `draft`'s; must not know what tokens mean or why a sequence ends.

A step is built in this order: lower tiers give way to the next prompt of a higher one that lacks a slot or pages; one
token for every decoding sequence; prompts under way and new ones, in the order of policy, as far as the budget goes. A
sequence is admitted only with pages for all of its tokens so far, so only decoding can run short of pages; one that was
preempted as often as is allowed comes back with pages for all it can ever hold.
"""

from __future__ import annotations

from decode import policy
from decode.accounts import Accounts
from decode.config import EngineConfig
from decode.draft import Draft, UnderWay
from decode.gaps import Gaps
from decode.kv_cache import KVCache
from decode.plan import StepPlan
from decode.roster import Roster
from decode.sequence import Sequence
from decode.step_time import StepTime, Work

RECENT = 0.1  # weight of a step in the average


class Scheduler:
    """Requests of all tiers, and the step in flight."""

    def __init__(self, config: EngineConfig, cache: KVCache) -> None:
        self.config = config
        self.cache = cache
        self.times = StepTime()
        self.roster = Roster(config, cache)
        self.accounts = Accounts({t.name: t.weight for t in config.tiers})
        self.draft = Draft(config, cache, self.accounts, 0, 0)  # of the step planned last
        self._tiers = frozenset(t.name for t in config.tiers)
        self._gaps = Gaps(config, self.accounts)
        self._elapsed: int | None = None  # of the planned step, until its whole time is known
        self._usual_step = 0.0  # ns: a moving average over all steps, 0 before the first

    def waiting(self, tier: str) -> int:
        """Requests of a tier that wait for pages or a slot, preempted ones included."""
        return len(self.roster.waiting[tier])

    def add(self, sequence: Sequence) -> None:
        queue = self.roster.waiting[sequence.tier.name]
        if not len(queue):
            self.accounts.arrive(sequence.tier.name)
        queue.add(sequence)

    def plan(self, step: int, now: int) -> StepPlan | None:
        """The next step, or None when there is nothing to do."""
        self._learn(now)
        draft = self.draft = Draft(self.config, self.cache, self.accounts, step, now)
        waiting, closed = self.roster.waiting.tiers(), frozenset[str]()
        if waiting:
            self._sort_out_late()
            self.accounts.settle(waiting)
            closed = self._gaps.closed(now, waiting, self.roster.running)
            self._make_way(closed)
        limit, short = self._plan_decodes()
        if waiting or len(draft.planned) < len(self.roster.running):
            under_way = draft.under_way(self.roster.running)
            budget = policy.prompt_budget(self.config, self.times, draft.work, limit, _context(under_way))
            self._plan_prompts(under_way, budget, self._tiers if short else closed)
        self.roster.waiting.started(now, draft.started)
        return draft.plan()

    def executed(self, elapsed: int) -> None:
        """The planned step took `elapsed` ns."""
        self._elapsed = elapsed
        # Not the time of the commit: a replay knows when a step was planned and how long it took, and no more.
        self._gaps.executed(self.draft.now + elapsed, elapsed, self.draft)

    def _learn(self, now: int) -> None:
        """What the last step took. A client waits from token to token: what lies between two steps is part of it."""
        if self._elapsed is not None:
            # With nobody left running the next step may have come much later.
            took = max(now - self.draft.now, self._elapsed) if self.roster.running else self._elapsed
            self.times.learn(self.draft.work, took)
            self._usual_step += (took - self._usual_step) * (RECENT if self._usual_step else 1)
            self._elapsed = None

    # --- giving way ---

    def _heads(self, closed: frozenset[str]) -> list[Sequence]:
        return self.roster.waiting.heads(closed, self.roster.running)

    def _sort_out_late(self) -> None:
        """Who waits and cannot keep the targets of its tier any more lets others pass."""
        config, now = self.config, self.draft.now
        times, running, usual = self.times, len(self.roster.running), self._usual_step
        self.roster.waiting.sort_out(lambda one: policy.in_time(config, one, now, times, running, usual))

    def _make_way(self, closed: frozenset[str]) -> None:
        """Preempt sequences of lower tiers, if that lets the next prompt in line start."""
        if self.config.mode != "continuous" or not self.roster.running or self.roster.running[-1].rank == 0:
            return
        starter = policy.next_prompt(self.config, self.accounts, self._heads(closed))
        if starter is None:
            return
        match, need = self.roster.match(starter, self.draft.step)
        losers: list[Sequence] = []
        candidates = [s for s in self.roster.running if policy.may_evict(self.config, self.accounts, starter, s)]
        slots, freed = policy.free_slots(self.config, len(self.roster.running)), 0
        for loser in policy.cheapest_first(candidates):
            if slots > 0 and self.cache.fits(match, need, self.config.watermark_pages - freed):
                break
            losers.append(loser)
            assert loser.lease is not None
            slots, freed = slots + 1, freed + self.cache.freed_by(loser.lease, match)
        if slots > 0 and self.cache.fits(match, need, self.config.watermark_pages - freed):
            for loser in losers:
                self.roster.preempt(loser, self.draft, self.times)

    # --- decoding ---

    def _plan_decodes(self) -> tuple[float | None, bool]:
        """One token for every decoding sequence. Returns how long the step may take, and whether pages were short."""
        pending = [s for s in self.roster.running if len(s.tokens) - s.computed == 1]
        limit = policy.itl_limit(pending, self.times)
        # For the targets of others: a gap tier that paused for its own would never go on.
        others = policy.itl_limit((s for s in pending if s.tier.idle_below is None), self.times)
        if others is not None and self._gaps:
            pending = self._paused(pending, others)
        short = False
        page_size, cache, decode = self.cache.page_size, self.cache, self.draft.decode
        for sequence in pending:
            lease = sequence.lease
            if lease is None:
                continue  # preempted by an earlier one of this loop
            need = len(sequence.tokens)
            if need > len(lease.table) * page_size and not cache.extend(lease, need):
                short = True
                if not self._make_room(sequence, need):
                    continue
            decode(sequence)
        self.draft.decodes_done()
        return limit, short

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
        done = set(map(id, self.draft.planned))
        lease = sequence.lease
        assert lease is not None
        while not self.cache.extend(lease, need):
            loser = policy.victim(self.config, [s for s in self.roster.running if id(s) not in done])
            assert loser is not None, "a sequence that may not be preempted any more is short of pages"
            self.roster.preempt(loser, self.draft, self.times)
            if loser is sequence:
                return False
        return True

    # --- prompts ---

    def _plan_prompts(self, under_way: UnderWay, budget: int, closed: frozenset[str]) -> None:
        """Prompts under way and new ones, tier by tier in the order of policy, while there is budget."""
        before = len(self.roster.running)
        if self.config.policy == "weighted" and any(line[-1].remaining > budget for line in under_way.values()):
            budget -= self._plan_short(budget // 2, under_way, closed)
        while True:
            offers = {name: line[-1] for name, line in under_way.items() if line} if budget > 0 else {}
            if policy.may_start(self.config, len(self.roster.running), before, budget):
                offers = {head.tier.name: head for head in self._heads(closed)} | offers
            sequence = policy.next_prompt(self.config, self.accounts, offers.values())
            if sequence is None:
                return
            if sequence.lease is not None:
                under_way[sequence.tier.name].pop()
            elif not self.roster.start(sequence, self.draft):
                owed = self.accounts.owed(sequence.tier.name, [h.tier.name for h in self._heads(closed)])
                rank = policy.stopped_by(self.config, sequence, owed)
                closed |= {head.tier.name for head in self._heads(closed) if head.rank >= rank}
                continue
            budget -= self._plan_prompt(sequence, budget)

    def _plan_short(self, budget: int, under_way: UnderWay, closed: frozenset[str]) -> int:
        """Up to half a step goes first to prompts that it completes, so that a long one does not hold up short ones.

        Those next in line are looked at, no others: nobody is overtaken by more than this. Returns the tokens planned.
        """
        left, before = budget, len(self.roster.running)
        long = {id(line[-1]) for line in under_way.values() if line[-1].remaining > budget}
        for line in under_way.values():
            for sequence in reversed(line[:]):
                if id(sequence) not in long and sequence.remaining <= left:
                    line.remove(sequence)
                    left -= self._plan_prompt(sequence, left)
        while policy.may_start(self.config, len(self.roster.running), before, left):
            head = policy.next_prompt(self.config, self.accounts, self._heads(closed))
            if head is None or len(head.tokens) > left or not self.roster.start(head, self.draft):
                break
            left -= self._plan_prompt(head, left)
        return budget - left

    def _plan_prompt(self, sequence: Sequence, budget: int) -> int:
        """Plan as much of a running sequence's prompt as fits `budget`; returns the number of tokens."""
        size = policy.chunk(sequence.remaining, budget)
        if size:
            self.draft.prompt(sequence, size)
        return size


def _context(under_way: UnderWay) -> int:
    """About how many positions a prompt token of this step attends to."""
    lengths = [line[-1].computed for line in under_way.values()]
    return sum(lengths) // len(lengths) if lengths else 0
