"""The progress of one request: the least state from which the scheduler derives the rest."""

from __future__ import annotations

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
        "computed",
        "deadline",
        "lease",
        "limit",
        "number",
        "preemptions",
        "prompt_len",
        "request",
        "stop_ids",
        "tokens",
    )

    def __init__(self, number: int, request: Request, arrival: int, limit: int, stop_ids: frozenset[int]) -> None:
        self.number = number
        self.request = request
        self.arrival = arrival
        self.limit = limit  # tokens (prompt + output) at which it ends
        self.stop_ids = stop_ids
        self.deadline: int | None = None  # by when it must have started
        self.tokens = list(request.prompt)
        self.prompt_len = len(request.prompt)
        self.computed = 0
        self.cached = 0  # prompt tokens that came from the prefix cache when it first started
        self.preemptions = 0
        self.lease: Lease | None = None

    @property
    def remaining(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def key(self) -> tuple[int, int]:
        """First come, first served: unique, and the same in every run."""
        return (self.arrival, self.number)
