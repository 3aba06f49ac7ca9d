"""What each tier got, so that tiers with requests waiting share the service by their weights.

A tier's virtual time is the service it got (tokens times their cost) over its weight; whoever has the least goes next.
This is VTC (Sheng et al., "Fairness in serving large language models", OSDI 2024) with one account a tier: a tier whose
queue was empty starts again at the virtual time of those that wait, so that idle time cannot be banked. Then for any
two tiers that both have requests waiting throughout an interval, service over weight differs by at most
2 * max(L, M) / min(weight), L = the most expensive prompt, M = the most service that running sequences can ask for.
Must not know sequences, pages or time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


class Accounts:
    """Virtual time per tier, in weighted tokens."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = dict(weights)
        self._times = dict.fromkeys(weights, 0.0)
        self.served = dict.fromkeys(weights, 0.0)  # weighted tokens; only grows
        self._floor = 0.0  # the least virtual time among tiers that waited when last looked at; never falls

    def time(self, tier: str) -> float:
        """The tier's virtual time."""
        return self._times[tier]

    def arrive(self, tier: str) -> None:
        """A request joins the tier's queue, which was empty."""
        self._times[tier] = max(self._times[tier], self._floor)

    def charge(self, tier: str, service: float) -> None:
        """The tier got `service` weighted tokens."""
        self.served[tier] += service
        self._times[tier] += service / self._weights[tier]

    def settle(self, waiting: Collection[str]) -> None:
        """These tiers have requests waiting now."""
        if waiting:
            self._floor = max(self._floor, min(self._times[tier] for tier in waiting))

    def owed(self, tier: str, others: Collection[str]) -> float:
        """Weighted tokens that `tier` is behind the least served of `others`, 0 when it is not."""
        least = min((self._times[other] for other in others), default=0.0)
        return max(0.0, (least - self._times[tier]) * self._weights[tier])
