"""Triton's dynamic batcher on a virtual clock: what becomes of each request that reaches a model, and when.

Follows class DynamicBatchScheduler of Triton core 2.51 (src/dynamic_batch_scheduler.cc) as it is written, waits and
wake-ups of its thread included; what its threads compute takes no time here. Must not know what an execution costs, who
else uses the device, or the SLA file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from config_gen.batching import Batching
from config_gen.simulation.events import Event, Events
from config_gen.simulation.instances import Alone, Cost, Device, Ended, Instances, Payload, Race
from config_gen.simulation.level_queues import Arrived, LevelQueues

__all__ = ["Alone", "Arrived", "Batcher", "Cost", "Device", "Ended", "Race", "simulate"]

POLL = 500_000_000  # ns: longest wait of the batcher's thread, default_wait_microseconds
RACE = Race()


class Batcher:
    """The batcher of one model and its instances, which execute on `device`.

    `ended(request, moment, reason)` tells of each request once: reason "" when it was answered, "timeout" or
    "queue full" when it was refused.
    """

    def __init__(self, events: Events, batching: Batching, device: Device, ended: Ended, race: Race = RACE) -> None:
        self._events, self._ended = events, ended
        self._max, self._delay = batching.max_batch_size, batching.delay
        self._preferred = sorted(batching.preferred) or [batching.max_batch_size]
        self._levels, self._default = len(batching.levels), batching.default_level
        policies = batching.levels or (batching.default_policy,)
        self._queues = LevelQueues(policies)
        plain = not batching.levels and policies[0].timeout is None and policies[0].max_queue is None
        self._instances = Instances(events, batching, device, prefetch=plain, woken=self._wake, ended=ended, race=race)
        self._payload = Payload()  # the one that is filled
        self._full = False  # payload_saturated_
        self._pending = 0  # rows the next batch would take
        self._queued = 0  # rows that wait; as in Triton, refused ones may stay in the count
        self._wanted = 0  # next_preferred_batch_size_
        self._refused: list[Arrived] = []
        # What the thread does: it runs, or waits for a request, for the end of a delay, or for a slot.
        self._state: Literal["runs", "empty", "delay", "slot"] = "empty"
        self._since = 0  # when that wait began
        self._timer: Event | None = None

    def submit(self, request: Arrived) -> None:
        """A request reaches the server now (Enqueue)."""
        self._queued += request.size
        level = request.level if 0 < request.level <= self._levels else self._default
        if not self._queues.enqueue(level - 1 if self._levels else 0, self._events.now, request):
            self._ended(request, self._events.now, "queue full")
            return
        if self._queued >= self._wanted and self._instances.has_slot():
            self._wake()
        elif self._state == "empty" and self._timer is None:
            self._look_again()

    def _wake(self) -> None:
        """The condition variable is notified: nothing happens unless the thread waits on it."""
        state = self._state
        if state == "runs" or (state == "slot" and not self._instances.has_slot()):
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._state = "runs"
        self._run(has_slot=state == "slot")

    def _look_again(self) -> None:
        """Have the thread's wait end after POLL, or after as many of them as brings that into the future."""
        periods = (self._events.now - self._since) // POLL + 1
        self._timer = self._events.at(self._since + periods * POLL, self._poll)

    def _poll(self) -> None:
        """The thread's wait has lasted as long as it may."""
        self._timer = None
        if self._state == "slot" and not self._instances.has_slot():
            self._state = "runs"
            self._queues.reject(self._events.now)
            self._refused += self._queues.take_refused()
            self._tell_refused()
            self._state, self._since = "slot", self._events.now
            self._look_again()
        self._wake()

    def _run(self, has_slot: bool) -> None:
        """Until the thread waits again (BatcherThread); it may have waited for a slot."""
        self._tell_refused()
        while True:
            if not has_slot and not self._may_fill():
                return
            has_slot = False
            if self._payload.state == "executing":
                continue
            wait = self._form()
            self._refused += self._queues.take_refused()
            if wait:  # what was refused is told only after it
                self._state = "delay"
                self._timer = self._events.at(self._events.now + wait, self._poll)
                return
            if self._queues.count:
                self._fill()
            self._tell_refused()

    def _may_fill(self) -> bool:
        """Whether there are requests and a slot for a batch of them; else the thread waits."""
        if self._full or self._payload.state == "executing":
            self._payload, self._full, self._wanted = Payload(), False, 0
        if not self._queues.size:
            self._state, self._since = "empty", self._events.now
            return False
        if not self._instances.has_slot():
            self._state, self._since = "slot", self._events.now
            self._look_again()
            return False
        return True

    def _tell_refused(self) -> None:
        refused, self._refused = self._refused, []
        for request in refused:
            self._ended(request, self._events.now, "timeout")

    def _form(self) -> int:
        """Choose the next batch; ns it should wait for more, 0 when it should go (GetDynamicBatch)."""
        queues, held = self._queues, self._payload.rows
        best, cannot_grow = self._scan()
        now = self._events.now
        age = now - queues.oldest
        late = 0 < self._delay <= age
        if best and not late:
            self._full = self._full or not self._delay
            self._pending = best
            queues.back_to_mark()
            return 0
        if not queues.count:
            return 0
        if cannot_grow or held + self._pending >= self._preferred[-1]:
            self._full = True
            return 0
        return 0 if late or not self._delay else self._rest(now, age)

    def _scan(self) -> tuple[int, bool]:
        """Move the cursor over what fits; rows up to its mark at a preferred size, and whether more did not fit."""
        queues, now, held = self._queues, self._events.now, self._payload.rows
        preferred, best = self._preferred, 0
        if not queues.is_valid(now):
            queues.reset()
            self._pending = 0
        self._queued -= queues.settle(now)
        while queues.count < queues.size:
            size = queues.current[2].size
            rows = held + self._pending + size
            if held or queues.count:
                if rows > preferred[-1] and not best:
                    best = self._pending
                    queues.mark()
                    self._full = True
                if rows > self._max:
                    return best, True
            self._pending += size
            queues.advance()
            self._queued -= queues.settle(now)
            if rows in preferred:
                best = self._pending
                queues.mark()
        return best, False

    def _rest(self, now: int, age: int) -> int:
        """How long a batch that may still grow waits in ns, in whole µs; 0 when it joins what an instance may take."""
        held = self._payload.rows
        rows = held + self._pending
        self._wanted = next((size for size in self._preferred if size > rows), self._preferred[0]) - held
        if not self._full and held and held not in self._preferred:
            return 0
        rest = (self._delay - age) // 1000
        if self._queues.closest:  # a thread wakes up a little late: when the timeout is over
            rest = min(rest, (self._queues.closest - now + 999) // 1000)
        return rest * 1000

    def _fill(self) -> None:
        """Move the chosen requests into the payload, and hand that to the instances if it is new."""
        payload = self._payload
        for _ in range(self._queues.count):
            came, _, request = self._queues.dequeue()
            payload.add(request, came)
        self._queued -= self._pending
        self._pending = 0
        if payload.state == "new":
            self._instances.schedule(payload)


def simulate(
    batching: Batching, arrivals: Iterable[Arrived], cost: Cost, race: Race = RACE
) -> list[tuple[Arrived, int, str]]:
    """What becomes of `arrivals`, which are in the order of their time, where an execution takes `cost(batch)` ns.

    Each with the moment in ns and the reason of its end, in the order of the ends.
    """
    events = Events()
    ends: list[tuple[Arrived, int, str]] = []
    batcher = Batcher(events, batching, Alone(events, cost), lambda *end: ends.append(end), race)
    for request in arrivals:
        events.run(request.at)
        batcher.submit(request)
    events.run()
    return ends
