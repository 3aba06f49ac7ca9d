"""The waiting requests: in each tier preempted ones first, then first come, first served.

Who can no longer be answered within the targets of its tier lets those pass who still can be, and while such late ones
wait the last to come goes first: in order of arrival everyone would start at the edge of being late, or beyond it. This
is adaptive LIFO (Maurer, "Fail at scale", ACM Queue 13(8), 2015) by targets instead of queue length.

Long ones stand in a line of their own, so that the rest can flow past them while no more of them may run. Must not know
pages, budgets or which tier goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator

from decode.config import TierConfig
from decode.load import Pace
from decode.sequence import Sequence

Line = OrderedDict[int, Sequence]
InTime = Callable[[Sequence], bool]


class Queue:
    """Waiting sequences of a tier."""

    def __init__(self) -> None:
        self._preempted: Line = OrderedDict()
        # By Sequence.long; who is late stands in the other two.
        self._fresh: dict[bool, Line] = {False: OrderedDict(), True: OrderedDict()}
        self._late: dict[bool, Line] = {False: OrderedDict(), True: OrderedDict()}

    def __len__(self) -> int:
        return len(self._preempted) + sum(map(len, self._lines))

    def __iter__(self) -> Iterator[Sequence]:
        for line in (self._preempted, *self._lines):
            yield from line.values()

    @property
    def _lines(self) -> tuple[Line, ...]:
        """Of those that have not run yet."""
        return *self._fresh.values(), *self._late.values()

    def add(self, sequence: Sequence) -> None:
        """The last to come."""
        self._fresh[sequence.long][sequence.number] = sequence

    def put_back(self, sequence: Sequence) -> None:
        """A preempted one, which goes first; of several, the one that came first to the queue."""
        self._preempted[sequence.number] = sequence
        for number in sorted(self._preempted):
            self._preempted.move_to_end(number)

    def remove(self, sequence: Sequence) -> None:
        for line in (self._preempted, self._fresh[sequence.long], self._late[sequence.long]):
            if line.pop(sequence.number, None) is not None:
                return
        raise KeyError(sequence.number)

    def sort_out(self, in_time: InTime) -> None:
        """Who is first in a line and not in time is late from now on."""
        for kind, fresh in self._fresh.items():
            while fresh and not in_time(first := next(iter(fresh.values()))):
                self._late[kind][first.number] = fresh.pop(first.number)
                first.late = True

    def head(self, long_allowed: bool) -> Sequence | None:
        """Who goes next; one that has not run yet and is long only if `long_allowed`."""
        if self._preempted:
            return next(iter(self._preempted.values()))
        allowed = (False, True)[: 1 + long_allowed]
        fresh, late = [self._fresh[kind] for kind in allowed], _first(self._late[kind] for kind in allowed)
        if late is None:
            return _first(fresh)
        last = max((next(reversed(line.values())) for line in fresh if line), key=lambda s: s.key, default=None)
        return last or late

    def overdue(self) -> Sequence | None:
        """Of those who are late, who came first."""
        return _first(self._late.values())

    @property
    def ahead(self) -> int:
        """How many do not let one pass that comes now: all who are not late."""
        return len(self) - sum(map(len, self._late.values()))

    def expired(self, now: int) -> list[Sequence]:
        """Those that have not run yet and whose deadline to start has come, by arrival. Deadlines follow arrivals, and
        so does who is late in a line."""
        found = []
        for line in self._lines:
            for sequence in line.values():
                if sequence.deadline is None or sequence.deadline > now:
                    break
                found.append(sequence)
        return sorted(found, key=lambda s: s.key)


def _first(lines: Iterable[Line]) -> Sequence | None:
    return min((next(iter(line.values())) for line in lines if line), key=lambda s: s.key, default=None)


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
        return None if interval is None else int(interval * self._queues[tier].ahead)

    def sort_out(self, in_time: InTime) -> None:
        """See Queue.sort_out."""
        for queue in self._queues.values():
            queue.sort_out(in_time)

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
