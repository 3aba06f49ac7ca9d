"""Something that several executions share: the cores of a host, or a card. Simulated, on an event loop.

While less is asked for than there is, each execution runs at full speed; beyond that all slow down alike, as a fair
scheduler of threads or of a card's processes makes them. Must not know what is executed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import ceil

from config_gen.simulation.events import Event, Events

Done = Callable[[], None]
Start = Callable[[Done], None]  # begins something, and calls what it is given at its end


class Shared:
    """`capacity` in the unit of the executions' widths: cores, or 1 for a whole card.

    At most `most` executions of places that are limited run at once, as under Triton's rate limiter; the others wait in
    their order. `switch` in ns is what beginning beside others costs, where processes share a card by time slices.
    `busy` is the integral of what was in use, in capacity times ns.
    """

    def __init__(self, events: Events, capacity: float, switch: float = 0.0, most: int | None = None) -> None:
        self._events, self.capacity, self._switch, self._most = events, capacity, switch, most
        self.busy = 0.0
        self._progress = 0.0  # ns of work that each execution would have got since the start
        self._rate, self._asked = 1.0, 0.0
        self._at = events.now
        self._running: list[tuple[float, int, float, Done]] = []  # until which progress, order, width
        self._limited = 0  # executions of limited places that run
        self._waiting: deque[tuple[Start, Done]] = deque()
        self._order = count()
        self._next: Event | None = None

    def place(self, width: float, limited: bool = False) -> Place:
        """What an instance that takes `width` of it while it executes begins its executions on."""
        return Place(self, width, limited)

    def admit(self, start: Start, done: Done) -> None:
        """`start(ended)` once fewer than `most` are between their start and their end; then `done`."""
        if self._most is not None and self._limited >= self._most:
            self._waiting.append((start, done))
            return
        self._limited += 1

        def ended() -> None:
            self._limited -= 1
            if self._waiting:
                self.admit(*self._waiting.popleft())
            done()

        start(ended)

    def begin(self, work: float, width: float, done: Done) -> None:
        """Execute what alone takes `work` ns; calls `done` at its end."""
        self._advance()
        if self._running:
            work += self._switch
        heappush(self._running, (self._progress + work, next(self._order), width, done))
        self._asked += width
        self._schedule()

    def _advance(self) -> None:
        elapsed = self._events.now - self._at
        self._at = self._events.now
        self._progress += elapsed * self._rate
        self.busy += elapsed * min(self._asked, self.capacity)

    def _schedule(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._running:
            self._rate = min(1.0, self.capacity / self._asked)
            left = max(0.0, self._running[0][0] - self._progress)
            self._next = self._events.at(self._events.now + ceil(left / self._rate), self._finish)
        else:
            self._progress, self._asked = 0.0, 0.0  # a fresh start keeps the numbers exact

    def _finish(self) -> None:
        self._next = None
        self._advance()
        ended = []
        while self._running and self._running[0][0] <= self._progress + 0.5:
            _, _, width, done = heappop(self._running)
            self._asked -= width
            ended.append(done)
        self._schedule()
        for done in ended:
            done()


@dataclass(frozen=True, slots=True)
class Place:
    """The part of a device that one instance uses."""

    device: Shared
    width: float
    limited: bool = False

    def begin(self, work: float, done: Done) -> None:
        """See Shared.begin."""
        self.device.begin(work, self.width, done)

    def admit(self, start: Start, done: Done) -> None:
        """See Shared.admit; at once where the place is not limited."""
        if self.limited:
            self.device.admit(start, done)
        else:
            start(done)
