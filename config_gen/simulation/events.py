"""A discrete-event loop on a virtual clock: calls that are due at moments in integer ns, run in their order.

Calls of one moment run in the order they were asked for, so that a simulation is the same every time. Must not know
what is simulated, the wall clock or chance.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class Event:
    """A call that is due; one that is cancelled never runs."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Events:
    """`now` in ns is the moment of the event that runs, or ran last."""

    __slots__ = ("_count", "_heap", "now")

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, Event]] = []
        self._count = 0

    def at(self, moment: int, call: Callable[[], None]) -> Event:
        """Have `call` run at `moment` in ns. Raises ValueError for the past."""
        if moment < self.now:
            raise ValueError(f"{moment} ns is over: it is {self.now} ns")
        event = Event(call)
        self._count += 1
        heappush(self._heap, (moment, self._count, event))
        return event

    @property
    def next_at(self) -> int | None:
        """Moment of the next event, None when there is none."""
        heap = self._heap
        while heap and heap[0][2].call is None:
            heappop(heap)
        return heap[0][0] if heap else None

    def step(self) -> bool:
        """Run the next event; whether there was one."""
        heap = self._heap
        while heap:
            moment, _, event = heappop(heap)
            if event.call is not None:
                self.now = moment
                event.call()
                return True
        return False

    def run(self, until: int | None = None) -> None:
        """Run all events up to and including the moment `until`, which is `now` then; without it, until none is left.

        Raises ValueError when `until` is over.
        """
        if until is None:
            while self.step():
                pass
            return
        if until < self.now:
            raise ValueError(f"{until} ns is over: it is {self.now} ns")
        heap = self._heap
        while heap and heap[0][0] <= until:
            moment, _, event = heappop(heap)
            if event.call is not None:
                self.now = moment
                event.call()
        self.now = until
