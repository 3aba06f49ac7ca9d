"""What a master knows of one worker, and how it finds out what the worker's clock shows.

Must not know how messages travel.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from config_gen.percentiles import percentile
from loadtest import link
from loadtest.run import P99, Worker
from loadtest.samples import Planned


@dataclass
class Member:
    """One worker: `node` is locust's name for it, `name` ours. Times in ns."""

    node: str
    name: str
    pid: int
    requests: Sequence[Planned]
    ready: bool = False
    pings: int = 0
    trip: int = 10**18  # of the fastest ping, there and back
    offset: int = 0  # of its monotonic clock to ours, by that ping
    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("ended", "in_flight", "failed"), 0))
    result: dict[str, Any] = field(default_factory=dict)
    samples: int = 0  # that are here

    def __post_init__(self) -> None:
        self.pieces: Iterator[bytes] = link.pieces(_lines(self.requests))

    @property
    def whole(self) -> bool:
        """Whether all its samples are here."""
        return bool(self.result) and self.samples == self.result["count"]

    def hear_pong(self, sent: int, here: int, now: int) -> None:
        """Its clock showed `here` at some moment between `sent` and `now` of ours: most likely in the middle."""
        self.pings += 1
        if now - sent < self.trip:
            self.trip, self.offset = now - sent, here - (sent + now) // 2

    @property
    def clock(self) -> tuple[int, int]:
        """Its clock less ours, and the error of that: nothing where both may be one clock, as on one machine."""
        error = self.trip // 2 + 1
        return (0, 0) if abs(self.offset) <= error else (self.offset, error)

    def as_worker(self) -> Worker:
        """How it did."""
        lags, result = sorted(self.result["lags"]), self.result
        return Worker(
            name=self.name,
            requests=result["count"],
            send_lag=result["send_lag"],
            loop_lag=percentile(lags, P99) if lags else 0,
            cpu=result["cpu"] / result["wall"],
            clock_error=self.clock[1],
        )


def _lines(requests: Sequence[Planned]) -> Iterator[str]:
    return (json.dumps(asdict(request)) for request in requests)
