"""What tiers have done of late: how much of the machine they took, how fast their requests started.

Must not know sequences or policy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

WINDOW = 5_000_000_000  # ns


class Load:
    """Share of step capacity that each tier took over the last WINDOW ns; time without a step counts as free."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, dict[str, float]]] = deque()
        self._taken: dict[str, float] = {}  # ns times share
        self._began: int | None = None

    def add(self, now: int, elapsed: int, shares: Mapping[str, float]) -> None:
        """A step ended at `now` after `elapsed` ns; `shares` says how much of what a step can hold each tier had."""
        if self._began is None:
            self._began = now - elapsed
        taken = {tier: elapsed * share for tier, share in shares.items()}
        self._steps.append((now, taken))
        for tier, part in taken.items():
            self._taken[tier] = self._taken.get(tier, 0.0) + part
        self._forget(now)

    def others(self, tier: str, now: int) -> float:
        """What other tiers took since the window opened; 0 to 1."""
        self._forget(now)
        if self._began is None:
            return 0.0
        span = min(WINDOW, max(1, now - self._began))
        return min(1.0, max(0.0, sum(part for name, part in self._taken.items() if name != tier)) / span)

    def _forget(self, now: int) -> None:
        while self._steps and self._steps[0][0] <= now - WINDOW:
            for tier, part in self._steps.popleft()[1].items():
                self._taken[tier] -= part
        if not self._steps:
            self._taken.clear()  # rounding does not pile up


class Pace:
    """How long lies between two starts of a tier while others of it wait: a moving average in ns, None = not known."""

    def __init__(self) -> None:
        self.interval: float | None = None
        self._since: int | None = None

    def started(self, now: int, count: int, waiting: int) -> None:
        """`count` requests started now, and `waiting` are left."""
        if self._since is not None:
            interval = (now - self._since) / count
            old = interval if self.interval is None else self.interval
            self.interval = old + (interval - old) * min(1.0, 0.1 * count)
        self._since = now if waiting else None
