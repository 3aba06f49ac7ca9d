"""The queues that requests wait in before Triton's dynamic batcher puts them into a batch: one for each priority level.

Follows class PriorityQueue of Triton core's src/scheduler_utils.cc (release 2.51), cursor and all: what the batcher
sees of timeouts and levels depends on where its cursor stands. Must not know instances, delays or the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from config_gen.batching import QueuePolicy


@dataclass(slots=True)
class Arrived:
    """A request that reached the batcher `at` ns, of `size` rows and `length` tokens; `tag` is the caller's own."""

    at: int
    level: int
    size: int = 1
    length: int = 0
    tag: object = None


Waiting = tuple[int, int, Arrived]  # when it came, when it expires (0: never), the request
Cursor = tuple[int, int, int, int, int, bool]  # its level, place there, requests before it, closest, oldest, delayed


class PolicyQueue:
    """One level. Requests that outlive a timeout are refused, or wait in `delayed` behind all that have not."""

    __slots__ = ("delayed", "max_queue", "queue", "refused", "rejects", "timeout")

    def __init__(self, policy: QueuePolicy) -> None:
        self.timeout = policy.timeout or 0
        self.rejects = policy.action == "reject"
        self.max_queue = policy.max_queue or 0
        self.queue: deque[Waiting] = deque()
        self.delayed: deque[Waiting] = deque()
        self.refused: list[Arrived] = []

    def expire(self, place: int, now: int) -> int:
        """Put what has expired at `place` and right behind it where it belongs; rows refused (ApplyPolicy)."""
        queue, refused = self.queue, 0
        while place < len(queue) and 0 < queue[place][1] <= now:
            entry = queue[place]
            del queue[place]
            if self.rejects:
                self.refused.append(entry[2])
                refused += entry[2].size
            else:
                self.delayed.append((entry[0], 0, entry[2]))
        return refused

    def reject(self, now: int) -> int:
        """Refuse all that expired, wherever they wait; their number (RejectTimeoutRequests)."""
        late = [entry for entry in self.queue if 0 < entry[1] <= now] if self.rejects and self.timeout else []
        if late:
            self.refused += [entry[2] for entry in late]
            self.queue = deque(entry for entry in self.queue if not 0 < entry[1] <= now)
        return len(late)


class LevelQueues:
    """All levels and the cursor, which stands behind the `count` requests that the next batch would take.

    `closest` is the first expiry among those, 0 when there is none, and `oldest` the moment the first of them came.
    """

    __slots__ = ("_at_delayed", "_level", "_mark", "_place", "_queues", "_valid", "closest", "count", "oldest", "size")

    def __init__(self, policies: Sequence[QueuePolicy]) -> None:
        self._queues = [PolicyQueue(policy) for policy in policies]
        self.size = 0
        self.reset()
        self._valid = False
        self.mark()

    def enqueue(self, level: int, now: int, request: Arrived) -> bool:
        """Let a request wait at `level`, counted from 0; False when that queue is full."""
        own = self._queues[level]
        if own.max_queue and len(own.queue) + len(own.delayed) >= own.max_queue:
            return False
        own.queue.append((now, now + own.timeout if own.timeout else 0, request))
        self.size += 1
        if level < self._level or (level == self._level and self._at_delayed):
            self._valid = False
        return True

    def dequeue(self) -> Waiting:
        """Take the first of the highest level that has one."""
        self._valid = False
        for own in self._queues:
            if own.queue or own.delayed:
                self.size -= 1
                return (own.queue or own.delayed).popleft()
        raise IndexError("no request waits")

    def is_valid(self, now: int) -> bool:
        """Whether the cursor still stands where a fresh look would put it; never without timeouts (IsCursorValid)."""
        return self._valid and now < self.closest

    def reset(self) -> None:
        """Put the cursor before the first request."""
        self._level = self._place = self.count = self.closest = self.oldest = 0
        self._at_delayed, self._valid = False, True

    def mark(self) -> None:
        self._mark: Cursor = (self._level, self._place, self.count, self.closest, self.oldest, self._at_delayed)

    def back_to_mark(self) -> None:
        self._level, self._place, self.count, self.closest, self.oldest, self._at_delayed = self._mark

    def settle(self, now: int) -> int:
        """Move the cursor on to a request that may join the batch; rows refused on the way (ApplyPolicyAtCursor)."""
        refused = 0
        while True:
            own = self._queues[self._level]
            if own.timeout:
                before = len(own.refused)
                refused += own.expire(self._place, now)
                self.size -= len(own.refused) - before
            if self._place < len(own.queue) + len(own.delayed) or self.size <= self.count:
                return refused
            self._level += 1
            self._place = 0

    @property
    def current(self) -> Waiting:
        """The request at the cursor."""
        own = self._queues[self._level]
        waiting = len(own.queue)
        return own.queue[self._place] if self._place < waiting else own.delayed[self._place - waiting]

    def advance(self) -> None:
        """Take the request at the cursor into the batch (AdvanceCursor)."""
        came, expires, _ = self.current
        if expires and (not self.closest or expires < self.closest):
            self.closest = expires
        if not self.count or came < self.oldest:
            self.oldest = came
        self._place += 1
        self.count += 1
        self._at_delayed = self._place > len(self._queues[self._level].queue)

    def reject(self, now: int) -> None:
        """Refuse all that expired at any level (RejectTimeoutRequests)."""
        for level, own in enumerate(self._queues):
            refused = own.reject(now)
            self.size -= refused
            if refused and level == self._level:
                self._valid = False

    def take_refused(self) -> list[Arrived]:
        """Those refused since the last call."""
        found: list[Arrived] = []
        for own in self._queues:
            if own.refused:
                found += own.refused
                own.refused = []
        return found
