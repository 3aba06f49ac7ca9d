"""Models as they are served, the load they get, and what was observed of it: data of `joint`, which simulates."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from config_gen.batching import Batching
from config_gen.percentiles import percentile
from config_gen.simulation.batcher import Arrived
from config_gen.sla.spec import LlmModel, OnnxModel
from decode.config import EngineConfig
from decode.executors.cost_model import Law

HOST = "host"
# What Triton, its Python backend and a client on the same machine take of one core, in ns: for a request before it
# reaches the batcher, for a batch that is handed over, for a token that is sent. Measured as the time of their threads:
# 1,100 texts of 8 tokens a second on two cores whose runs take 0.8 ms of core time each; 300 tokens a second beside 18
# requests, 0.24 of a core.
FRONT, HANDOVER, MESSAGE = 1_000_000, 500_000, 750_000
WAKING = 1_000_000  # ns of each request until threads of the client and of Triton have woken up


@dataclass(frozen=True)
class Unary:
    """A batchable model as it is served. `cost` is ns of work of a batch on one instance, which is `width` wide;
    before that `prepare` takes so many ns of so many cores of the host.

    `around` ns of each request are spent outside of it; a share `repeats` is answered from the cache in that time.
    """

    name: str
    model: OnnxModel
    chance: str
    devices: tuple[str, ...]
    width: float
    batching: Batching
    prepare: Callable[[Sequence[Arrived]], tuple[float, float]]
    cost: Callable[[Sequence[Arrived]], float]
    levels: Mapping[str, int]  # of tiers
    around: int = 0
    repeats: float = 0.0
    limited: bool = False  # by the rate limiter of its cards
    front: int = 0  # ns of one core of the host for each request, before it reaches the batcher
    cold: float = 1.0  # times as long that an execution takes after a pause


@dataclass(frozen=True)
class Decoding:
    """An LLM as it is served, an engine on each device; requests are dealt to them in turn."""

    name: str
    model: LlmModel
    chance: str
    devices: tuple[str, ...]
    width: float
    config: EngineConfig
    law: Law
    around: int = 0
    front: int = 0  # ns of one core of the host for each request, before it reaches the engine
    message: int = 0  # and for each token that is sent, beside the steps
    cold: float = 1.0  # times as long that a step takes after a pause


Served = Unary | Decoding


class Capacity(NamedTuple):
    """Of a device: see Shared."""

    capacity: float
    switch: float = 0.0  # ns
    most: int | None = None  # executions of batchable models at once


@dataclass(frozen=True)
class Load:
    """`duration` ns of declared traffic at `scale` times its rates. `seed` fixes who arrives when.

    Answers of tiers with targets are waited for, at most `grace` ns longer; without it, all are. What then has no
    answer never gets one, where its tier has targets; of other tiers it counts as not sent.
    """

    duration: int
    scale: float = 1.0
    seed: int = 0
    grace: int | None = None
    boost: Mapping[tuple[str, str], float] = field(default_factory=dict)  # of the rates of rare tiers

    def traffic(self, name: str, model: LlmModel | OnnxModel) -> dict[str, Any]:
        """What the tiers of a model send, rare ones often enough."""
        return {
            tier: shape.model_copy(update={"rate": shape.rate * self.boost.get((name, tier), 1.0)})
            for tier, shape in model.traffic.items()
        }


@dataclass
class Observed:
    """What came of a load: latencies in ns of every model, tier and metric; infinite: refused.

    `late` holds the same of the later half of the answers alone: where a queue grows, they are worse. `drained` is ns
    from the end of the load to the last answer of a batchable model.
    `executing` is the mean ns of an execution of each batchable model, with what others on its device cost it.
    `pages` is the largest share of KV pages in use of each LLM.
    """

    latencies: dict[tuple[str, str, str], Sequence[float]] = field(default_factory=dict)
    late: dict[tuple[str, str, str], Sequence[float]] = field(default_factory=dict)
    drained: dict[str, int] = field(default_factory=dict)
    executing: dict[str, float] = field(default_factory=dict)
    pages: dict[str, float] = field(default_factory=dict)

    def at(self, model: str, tier: str, metric: str, q: Fraction) -> float | None:
        """The percentile, or None where nothing was sent."""
        found = self.latencies.get((model, tier, metric))
        return percentile(found, q) if found else None

    def keep(self, key: tuple[str, str, str], values: Sequence[float], around: int = 0) -> None:
        """Note latencies in the order of the answers, with what each takes besides."""
        made = [value + around for value in values]
        self.late[key] = sorted(made[len(made) // 2 :])
        self.latencies[key] = sorted(made)

    def over(self, model: str, tier: str, metric: str, target: int) -> Fraction:
        """Share of the requests above the target, of all or of the later half where that is more."""
        shares = [
            Fraction(len(found) - bisect_right(found, target), len(found))
            for found in (self.latencies.get((model, tier, metric)), self.late.get((model, tier, metric)))
            if found
        ]
        return max(shares, default=Fraction(0))

    def worst(self, model: str, tier: str, metric: str, q: Fraction) -> float | None:
        """The percentile of all, or of the later half where that is higher."""
        found, late = self.at(model, tier, metric, q), self.late.get((model, tier, metric))
        return max(found, percentile(late, q)) if found is not None and late else found
