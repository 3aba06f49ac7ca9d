"""What rules judge by: numbers of models, of the client, and all of a window. None is unknown, never zero.

Times are in seconds, shares from 0 to 1. Must not know where the numbers come from, nor what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from observe.doctor.machine import CardFacts, HostFacts

Order = Literal["declared", "by name", "as they appear"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a histogram: how much was counted, and where it lies. A percentile is None of too few to say it."""

    count: float = 0.0
    mean: float | None = None
    p50: float | None = None
    p99: float | None = None
    longest: float | None = None  # upper bound of the last bucket that counted, the last finite one for +Inf


@dataclass(frozen=True, slots=True)
class Stretch:
    """One of equal parts of the window, with what was done in it. `late`: P99 of a latency.

    `batch`: tokens a step, or requests a batch. `use`: share of the compute that was used. `work`: done a second.
    """

    use: float | None
    batch: float | None
    work: float | None
    late: float | None
    waited: float | None  # of the whole time of a request, the share that it waited
    waiting: float | None  # requests, on average


@dataclass(frozen=True, slots=True)
class Missed:
    """A target that the histograms of a tier are over: seconds promised and seen at `at`."""

    metric: str
    at: str
    limit: float
    seen: float


@dataclass(frozen=True, slots=True)
class TierFacts:
    """One traffic class of a language model. `unserved`: longest time that requests waited and none was served,
    None where nobody told of both."""

    name: str
    finished: float | None
    waiting_share: float | None
    waiting_thirds: tuple[float, float] | None  # requests waiting on average, first and last third of the window
    unserved: float | None
    service: float | None  # share of all service
    queue: Spread
    ttft: Spread
    e2e: Spread
    itl: Spread
    missed: tuple[Missed, ...] = ()
    promised: bool = False
    gated: bool | None = None  # starts only below a load (`idle_below`); None: not known


@dataclass(frozen=True, slots=True)
class PageFacts:
    """KV pages: shares in use, and the share of samples with nearly all in use, of all of them and of waiting."""

    level: float | None
    peak: float | None
    full: float | None
    full_waiting: float | None


@dataclass(frozen=True, slots=True)
class LlmFacts:
    """A model that publishes `gapless_*`. `tiers`: the most urgent first. Shares `of waiting` are of the samples with
    requests waiting, `crowded` seconds of them."""

    model: str
    seconds: float
    tiers: tuple[TierFacts, ...]
    order: Order
    info: Mapping[str, str]  # labels of gapless_engine_info, empty where it is missing
    slots: float | None
    waiting: float | None
    waiting_share: float | None
    crowded: float
    alone: float | None  # of waiting: no more than one was running
    full: float | None  # of waiting: every slot was taken
    taken: float | None  # of all samples: every slot was taken
    tokens_per_step: float | None
    steps: float | None
    busy: float | None  # share of the time inside of steps
    finished: float | None
    pages: PageFacts
    preemptions: float | None
    prompt_tokens: float | None
    hits: float | None  # share of prompt tokens taken from the prefix cache
    shared: bool | None  # the SLA file declares common prefixes
    prompts: Spread
    outputs: Spread
    itl: Spread
    step: Spread
    refused: float | None
    stretches: tuple[Stretch, ...]

    @property
    def urgent(self) -> TierFacts | None:
        return self.tiers[0] if self.tiers else None


@dataclass(frozen=True, slots=True)
class UnaryFacts:
    """A model that answers in one piece, as Triton counts. Times are means of a request."""

    model: str
    seconds: float
    requests: float | None
    executions: float | None
    batch: float | None  # requests that were computed together, on average
    pending: float | None
    pending_share: float | None  # of samples with at least two waiting
    pending_thirds: tuple[float, float] | None
    queue: float | None
    moving: float | None  # getting inputs and handing out outputs
    computing: float | None
    refused: float | None
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """What a load generator saw: how late it sent at P99, and P50 of whole requests by model and tier.

    It loaded from `began` to `ended`, in ns since the epoch.
    """

    began: int
    ended: int
    send_lag: float
    whole: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """All of a window."""

    seconds: float
    samples: int
    llms: tuple[LlmFacts, ...]
    unary: tuple[UnaryFacts, ...]
    cards: tuple[CardFacts, ...]
    host: HostFacts
    client: ClientFacts | None
    inside: Mapping[tuple[str, str], float]  # P50 of whole requests in the model while the client loaded it
    notes: tuple[str, ...]

    @property
    def saturated(self) -> bool | None:
        """Whether there is hardly any compute left; None where neither GPUs nor cores were sampled."""
        cards = [card.compute for card in self.cards]
        known = [share for share in (cards or [self.host.cpu]) if share is not None]
        return max(known) > 0.85 if known else None
