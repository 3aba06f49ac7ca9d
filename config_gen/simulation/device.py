"""Something that several executions share: the cores of a host, or a card. Simulated, on an event loop.

While less is asked for than there is, everything runs at full speed. Beyond that executions slow down alike, as a fair
scheduler of threads or of a card's processes makes them, and short errands do not: a thread that has just woken up goes
first, and a team of threads that lost a core to it waits for that core at its next barrier. What runs after a pause
runs cold. Must not know what is executed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf

from config_gen.simulation.events import Event, Events

TEAM = 0.3  # of the cores that errands leave, what the executions beside them make of it
WARMING, COOLING = 10_000_000, 30_000_000  # ns of work, and of idling, after which caches are warm or cold
COLD = 1.6  # times as long that an errand takes after a pause
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
        self._warmth = 0.0
        self._at = events.now
        self._executions, self._errands = _Lane(), _Lane()
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

    def begin(self, work: float, width: float, done: Done, cold: float = 1.0) -> None:
        """Execute what alone takes `work` ns, after a pause `cold` times that; calls `done` at its end."""
        self._begin(self._executions, work, width, done, cold)

    def errand(self, work: float, done: Done, width: float = 1.0) -> None:
        """The same for something short that goes before executions."""
        self._begin(self._errands, work, width, done, COLD)

    def _begin(self, lane: _Lane, work: float, width: float, done: Done, cold: float) -> None:
        self._advance()
        if lane is self._executions and lane.running:
            work += self._switch
        work *= 1 + (cold - 1) * (1 - self._warmth)
        heappush(lane.running, (lane.progress + work, next(self._order), width, done))
        lane.asked += width
        self._schedule()

    def _advance(self) -> None:
        elapsed = self._events.now - self._at
        if not elapsed:
            return
        self._at = self._events.now
        executions, errands = self._executions, self._errands
        asked = executions.asked + errands.asked
        if asked:
            self._warmth = min(1.0, self._warmth + elapsed / WARMING)
            self.busy += elapsed * min(asked, self.capacity)
            executions.progress += elapsed * executions.rate
            errands.progress += elapsed * errands.rate
        else:
            self._warmth = max(0.0, self._warmth - elapsed / COOLING)

    def _schedule(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        capacity, executions, errands, wait = self.capacity, self._executions, self._errands, inf
        if errands.running:
            errands.rate = capacity / errands.asked if errands.asked > capacity else 1.0
            wait = errands.left / errands.rate
        if executions.running:
            rate = capacity / executions.asked if executions.asked > capacity else 1.0
            if errands.running and errands.asked + executions.asked > capacity:
                free = max(0.0, capacity - errands.asked)
                if executions.asked > len(executions.running):
                    rate *= TEAM * free / capacity
                else:
                    rate = min(1.0, free / executions.asked)
            executions.rate = rate
            wait = min(wait, executions.left / rate) if rate else wait
        if wait < inf:
            self._next = self._events.at(self._events.now + ceil(wait), self._finish)

    def _finish(self) -> None:
        self._next = None
        self._advance()
        ended: list[Done] = []
        self._errands.end(ended)
        self._executions.end(ended)
        self._schedule()
        for done in ended:
            done()


class _Lane:
    """Executions that all go at the same rate. `progress` is ns of work that each would have got since the start."""

    __slots__ = ("asked", "progress", "rate", "running")

    def __init__(self) -> None:
        self.progress, self.rate, self.asked = 0.0, 1.0, 0.0
        self.running: list[tuple[float, int, float, Done]] = []  # until which progress, order, width

    @property
    def left(self) -> float:
        """ns of work until the first of them ends."""
        return max(0.0, self.running[0][0] - self.progress)

    def end(self, ended: list[Done]) -> None:
        """Take out those that are done, into `ended`."""
        running = self.running
        while running and running[0][0] <= self.progress + 0.5:
            _, _, width, done = heappop(running)
            self.asked -= width
            ended.append(done)
        if not running:
            self.progress, self.asked = 0.0, 0.0  # a fresh start keeps the numbers exact


@dataclass(frozen=True, slots=True)
class Place:
    """The part of a device that one instance uses."""

    device: Shared
    width: float
    limited: bool = False

    def begin(self, work: float, done: Done, cold: float = 1.0) -> None:
        """See Shared.begin."""
        self.device.begin(work, self.width, done, cold)

    def admit(self, start: Start, done: Done) -> None:
        """See Shared.admit; at once where the place is not limited."""
        if self.limited:
            self.device.admit(start, done)
        else:
            start(done)
