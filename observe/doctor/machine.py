"""What rules judge a GPU and a machine by. None is unknown, never zero; shares from 0 to 1.

Must not know where the numbers come from, nor what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Crowd:
    """What a card did while requests waited, anywhere on the server, in `share` of the samples."""

    share: float | None  # None: nobody told whether requests wait
    compute: float | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """What of a card was at work while it was busy, as shares; `tensor_late`: in the later half of the window.

    `level` is that of tensor cores at all times.
    """

    level: float | None
    tensor: float | None
    tensor_late: float | None
    sm: float | None
    dram: float | None


@dataclass(frozen=True, slots=True)
class Link:
    """PCIe: generation and lanes as they are, at best in this window, and as they could be."""

    generation: float
    lanes: float
    most_generation: float
    most_lanes: float


@dataclass(frozen=True, slots=True)
class Pcie:
    """Bytes a second in the busier direction on average, share of samples near the limit, and what the link carries."""

    rate: float | None
    near: float | None
    link: Link | None
    limit: float | None


@dataclass(frozen=True, slots=True)
class Power:
    """In watts and degrees Celsius, the hottest; whether the driver keeps the card up when nobody uses it."""

    watts: float | None
    limit: float | None
    default: float | None
    hottest: float | None
    persistence: bool | None


@dataclass(frozen=True, slots=True)
class Fault:
    """Number of the last fault (XID), and whether it came in this window."""

    number: float
    new: bool


@dataclass(frozen=True, slots=True)
class CardFacts:
    """A GPU. `compute` is the best that is known of `source`; the driver's utilization also counts what is not full."""

    gpu: str
    seconds: float
    compute: float | None
    source: str
    utilization: float | None
    busy_share: float | None  # of samples in which it was busy nearly all the time
    busy_seconds: float
    work: Tensor
    pcie: Pcie
    memory: float | None  # share in use, on average
    held: Mapping[str, float]  # share of busy samples in which clocks were held down, by reason
    clock: float | None  # share of the highest clock, while held down
    power: Power
    driver: str
    cuda: str
    fault: Fault | None
    crowd: Crowd


@dataclass(frozen=True, slots=True)
class HostFacts:
    cpu: float | None  # share of all cores
    processes: Mapping[str, float]  # cores used by the processes of a model, on average
    pinned: float | None  # bytes of Triton's pinned pool in use, at most
