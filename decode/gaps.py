"""When background tiers may start: only in the gaps that the load by others leaves (`idle_below`).

Must not know queues, budgets or pages but for how many of them others hold.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq

from decode import policy
from decode.accounts import Accounts
from decode.config import EngineConfig
from decode.draft import Draft
from decode.load import Load
from decode.sequence import Sequence


class Gaps:
    """Watches what tiers take of the machine. False when no tier of the configuration waits for gaps."""

    def __init__(self, config: EngineConfig, accounts: Accounts) -> None:
        self._config = config
        self._accounts = accounts
        self._load = Load()
        self._gated = [t for t in config.tiers if t.idle_below is not None]

    def __bool__(self) -> bool:
        return bool(self._gated)

    def executed(self, ended: int, elapsed: int, draft: Draft) -> None:
        """A step ended after `elapsed` ns."""
        if self._gated:
            self._load.add(ended, elapsed, draft.shares())

    def closed(self, now: int, waiting: Collection[str], running: Seq[Sequence]) -> frozenset[str]:
        """Tiers among those `waiting` that start nothing now."""
        closed = []
        gated = [tier for tier in self._gated if tier.name in waiting]
        active = {*waiting, *(s.tier.name for s in running)} if gated else set()
        for tier in gated:
            others = active - {tier.name}
            if not others:
                continue
            load = max(self._load.others(tier.name, now), self._pages_of_others(tier.name, running))
            if not policy.gap(self._config, load, self._accounts.owed(tier.name, others), tier.idle_below):
                closed.append(tier.name)
        return frozenset(closed)

    def _pages_of_others(self, tier: str, running: Seq[Sequence]) -> float:
        leases = [s.lease for s in running if s.lease is not None and s.tier.name != tier]
        return len({page for lease in leases for page in lease.table}) / self._config.num_pages
