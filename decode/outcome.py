"""What became of a simulated load: numbers of tiers and of the machine, no events, so that a million requests fit.

Must not know who counts them.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

GAP = 1000  # ns: gaps between tokens are counted by the whole microsecond
NEVER = float("inf")

COUNTERS = (
    *("sent", "rejected", "failed", "in_time", "output_tokens", "tokens_in_time"),
    *("prompt_tokens", "cached_tokens", "preemptions"),
)


@dataclass
class TierRecord:
    """What became of a tier's requests. Latencies in ns from the arrival, in the order of the ends; inf = a miss."""

    sent: int = 0
    rejected: int = 0
    failed: int = 0
    in_time: int = 0  # ended well before the load was over
    output_tokens: int = 0
    tokens_in_time: int = 0  # output tokens before the load was over
    prompt_tokens: int = 0  # of requests that started and ended
    cached_tokens: int = 0
    preemptions: int = 0
    ttft: array[float] = field(default_factory=lambda: array("d"))
    e2e: array[float] = field(default_factory=lambda: array("d"))
    gaps: Counter[float] = field(default_factory=Counter)  # between two tokens of a request, in GAP; inf = never came
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, other: TierRecord) -> None:
        """Take in what another replica did."""
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ttft.extend(other.ttft)
        self.e2e.extend(other.e2e)
        self.gaps.update(other.gaps)
        self.errors.update(other.errors)


@dataclass
class Outcome:
    """A simulated run of one or more replicas; times in ns. Averages are over the time in which a step ran."""

    tiers: dict[str, TierRecord]
    replicas: int = 1
    span: int = 0  # from the start of the load to the end of the last step
    busy: int = 0  # over all replicas
    steps: int = 0
    preemptions: int = 0
    page_time: float = 0.0  # share of the pages in use, times ns
    pages_peak: float = 0.0  # share
    running_time: int = 0  # sequences in a step, times ns

    @property
    def utilization(self) -> float:
        """Share of the span in which a step ran."""
        return self.busy / max(1, self.span * self.replicas)

    @property
    def pages(self) -> float:
        """Share of the pages in use."""
        return self.page_time / max(1, self.busy)

    @property
    def running(self) -> float:
        """Sequences in a step."""
        return self.running_time / max(1, self.busy)

    def add(self, other: Outcome) -> None:
        """Take in what other replicas did with the same tiers."""
        for name, record in other.tiers.items():
            self.tiers[name].add(record)
        for name in ("replicas", "busy", "steps", "preemptions", "page_time", "running_time"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.span = max(self.span, other.span)
        self.pages_peak = max(self.pages_peak, other.pages_peak)
