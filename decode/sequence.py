"""The progress of one request: the least state from which the scheduler derives the rest."""

from __future__ import annotations

from decode.config import TierConfig
from decode.kv_cache import Lease
from decode.types import Request


class Sequence:
    """Mutable; owned by the engine.

    tokens = prompt + output. KV exists (or is filled by the planned step) for positions [0, computed); what is left of
    `tokens` is to be computed. A sequence holds a lease exactly while it runs.
    """

    __slots__ = (
        "arrival",
        "cached",
        "charged",
        "computed",
        "deadline",
        "late",
        "lease",
        "limit",
        "number",
        "plain",
        "preemptions",
        "prompt_len",
        "rank",
        "request",
        "saved",
        "slots",
        "stop_ids",
        "tier",
        "tokens",
    )

    def __init__(
        self,
        number: int,
        request: Request,
        arrival: int,
        limit: int,
        stop_ids: frozenset[int],
        tier: TierConfig,
        rank: int,
    ) -> None:
        self.number = number
        self.request = request
        self.arrival = arrival
        # Draws need neither the tokens so far nor ids that are banned: nearly all, and one is planned for every token.
        self.plain = request.sampling.min_tokens == 0 and not request.sampling.penalized
        self.limit = limit  # tokens (prompt + output) at which it ends
        self.stop_ids = stop_ids
        self.tier = tier
        self.rank = rank  # 0 = goes first
        self.deadline = None if tier.queue_timeout is None else arrival + tier.queue_timeout  # to start
        self.late = False  # found waiting when it could no longer be answered within its targets
        self.tokens = list(request.prompt)
        self.prompt_len = len(request.prompt)
        self.computed = 0
        self.charged = 0  # the tier has paid for positions [0, charged): what is computed again costs it nothing
        self.cached = 0  # prompt tokens that came from the prefix cache when it first started
        self.preemptions = 0
        self.lease: Lease | None = None
        self.saved = 0  # positions [0, saved) are in `slots` of the host pool while it waits
        self.slots: list[int] = []

    @property
    def remaining(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def long(self) -> bool:
        return self.limit > self.tier.long_tokens

    @property
    def due(self) -> float:
        """When its first token is due, in ns; never, without a target or once it is late."""
        return float("inf") if self.tier.ttft is None or self.late else self.arrival + self.tier.ttft

    @property
    def key(self) -> tuple[int, int, int]:
        """Higher tiers first, then first come, first served: unique, and the same in every run."""
        return (self.rank, self.arrival, self.number)
