"""The two clocks a driver can run on. Integer nanoseconds from an arbitrary origin that never goes back."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> int:
        """Nanoseconds."""
        ...

    def spend(self, elapsed: int) -> None:
        """A step took `elapsed` nanoseconds."""
        ...


class WallClock:
    """Real time: a step has spent its time already when it returns."""

    def now(self) -> int:
        return time.monotonic_ns()

    def spend(self, elapsed: int) -> None:
        """Nothing to do."""


class VirtualClock:
    """Simulated time: it passes only by what steps cost and by jumps to the next arrival."""

    def __init__(self, start: int = 0) -> None:
        self._now = start

    def now(self) -> int:
        return self._now

    def spend(self, elapsed: int) -> None:
        self._now += elapsed

    def advance_to(self, moment: int) -> None:
        """Jump forward; a moment in the past changes nothing."""
        self._now = max(self._now, moment)
