"""The waiting requests of one tier: preempted ones first, then first come, first served.

Long ones stand in a line of their own, so that the rest can flow past them while no more of them may run. Must not know
pages, budgets or other tiers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from decode.sequence import Sequence

Line = OrderedDict[int, Sequence]


class Queue:
    """Waiting sequences of a tier."""

    def __init__(self) -> None:
        self._preempted: Line = OrderedDict()
        self._fresh: dict[bool, Line] = {False: OrderedDict(), True: OrderedDict()}  # by Sequence.long

    def __len__(self) -> int:
        return len(self._preempted) + len(self._fresh[False]) + len(self._fresh[True])

    def __iter__(self) -> Iterator[Sequence]:
        for line in (self._preempted, *self._fresh.values()):
            yield from line.values()

    def add(self, sequence: Sequence) -> None:
        """The last to come."""
        self._fresh[sequence.long][sequence.number] = sequence

    def put_back(self, sequence: Sequence) -> None:
        """A preempted one, which goes first; of several, the one that came first to the queue."""
        self._preempted[sequence.number] = sequence
        for number in sorted(self._preempted):
            self._preempted.move_to_end(number)

    def remove(self, sequence: Sequence) -> None:
        for line in (self._preempted, self._fresh[sequence.long]):
            if line.pop(sequence.number, None) is not None:
                return
        raise KeyError(sequence.number)

    def head(self, long_allowed: bool) -> Sequence | None:
        """Who goes next; a fresh long one only if `long_allowed`."""
        lines = [self._preempted] if self._preempted else [self._fresh[False], *([self._fresh[True]] * long_allowed)]
        firsts = [next(iter(line.values())) for line in lines if line]
        return min(firsts, key=lambda s: s.key, default=None)

    def expired(self, now: int) -> list[Sequence]:
        """Fresh ones whose deadline to start has come, by arrival. Deadlines follow arrivals."""
        late = []
        for line in self._fresh.values():
            for sequence in line.values():
                if sequence.deadline is None or sequence.deadline > now:
                    break
                late.append(sequence)
        return sorted(late, key=lambda s: s.key)
