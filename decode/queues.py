"""The waiting requests: in each tier preempted ones first, then first come, first served.

Long ones stand in a line of their own, so that the rest can flow past them while no more of them may run. Must not know
pages, budgets or which tier goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator

from decode.config import TierConfig
from decode.load import Pace
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


class Waiting:
    """The queues of all tiers."""

    def __init__(self, tiers: Collection[TierConfig]) -> None:
        self._queues = {tier.name: Queue() for tier in tiers}
        self._max_long = {tier.name: tier.max_long for tier in tiers}
        self._paces = {tier.name: Pace() for tier in tiers}

    def __iter__(self) -> Iterator[Sequence]:
        for queue in self._queues.values():
            yield from queue

    def __getitem__(self, tier: str) -> Queue:
        return self._queues[tier]

    def tiers(self) -> list[str]:
        """Those that have requests waiting."""
        return [name for name, queue in self._queues.items() if len(queue)]

    def remove(self, sequence: Sequence) -> None:
        self._queues[sequence.tier.name].remove(sequence)

    def expired(self, now: int) -> list[Sequence]:
        """Of all tiers, those whose deadline to start has come."""
        return [sequence for queue in self._queues.values() for sequence in queue.expired(now)]

    def started(self, now: int, sequences: Collection[Sequence]) -> None:
        """These left their queues for the first time."""
        for name in {s.tier.name for s in sequences}:
            self._paces[name].started(now, sum(s.tier.name == name for s in sequences), len(self._queues[name]))

    def predicted_wait(self, tier: str) -> int | None:
        """ns that a request of a tier would wait if it came now, None when nothing is known."""
        interval = self._paces[tier].interval
        return None if interval is None else int(interval * len(self._queues[tier]))

    def heads(self, closed: Collection[str], running: Iterable[Sequence]) -> list[Sequence]:
        """Who of each tier starts next beside those `running`; of the `closed` tiers nobody."""
        found = []
        for name, queue in self._queues.items():
            if len(queue) and name not in closed:
                most = self._max_long[name]
                allowed = most is None or sum(s.long and s.tier.name == name for s in running) < most
                head = queue.head(allowed)
                if head is not None:
                    found.append(head)
        return found
