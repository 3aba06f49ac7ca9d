"""Triton's dynamic batcher on a virtual clock: what becomes of each request that reaches a model, and when.

Follows Triton core 2.51 as it is written: class DynamicBatchScheduler (src/dynamic_batch_scheduler.cc), RateLimiter
(src/rate_limiter.cc), InstanceQueue (src/instance_queue.cc). Its threads take no time here. Must not know what an
execution costs, who else uses the device, or the SLA file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, Protocol

from config_gen.batching import Batching
from config_gen.events import Event, Events
from config_gen.level_queues import Arrived, LevelQueues

__all__ = ["Alone", "Arrived", "Batcher", "Device", "simulate"]

POLL = 500_000_000  # ns: longest wait of the batcher's thread, default_wait_microseconds

Ended = Callable[[Arrived, int, str], None]
Cost = Callable[[Sequence[Arrived]], float]
State = Literal["runs", "empty", "delay", "slot"]  # what the batcher's thread does: its three waits


class Device(Protocol):
    """What executions run on."""

    def begin(self, work: float, done: Callable[[], None]) -> None:
        """Start what takes `work` ns where nothing else runs; `done` is called when it is finished."""


class Alone:
    """A device nobody else uses: done after `work` ns, whatever else it runs."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def begin(self, work: float, done: Callable[[], None]) -> None:
        self._events.at(self._events.now + round(work), done)


class Payload:
    """A batch on its way to an instance; until one takes it, it may grow."""

    __slots__ = ("requests", "rows", "since", "state")

    def __init__(self) -> None:
        self.requests: list[Arrived] = []
        self.rows = 0
        self.since = 0  # when the first of its requests came
        self.state: Literal["new", "scheduled", "executing"] = "new"


class Batcher:
    """The batcher of one model and its instances. `cost(batch)` is the work in ns of one execution.

    `ended(request, moment, reason)` tells of each request once: reason "" when it was answered, "timeout" or
    "queue full" when it was refused.
    """

    def __init__(self, events: Events, batching: Batching, device: Device, cost: Cost, ended: Ended) -> None:
        self._events, self._device, self._cost, self._ended = events, device, cost, ended
        self._max, self._delay = batching.max_batch_size, batching.delay
        self._preferred = sorted(batching.preferred) or [batching.max_batch_size]
        self._levels, self._default = len(batching.levels), batching.default_level
        policies = batching.levels or (batching.default_policy,)
        self._queues = LevelQueues(policies)
        self._prefetch = not batching.levels and policies[0].timeout is None and policies[0].max_queue is None
        self._polls = any(policy.timeout and policy.action == "reject" for policy in policies)
        self._instances = self._idle = batching.instances
        self._payloads: deque[Payload] = deque()  # scheduled, no instance has taken them yet
        self._payload = Payload()  # the one that is filled
        self._full = False  # payload_saturated_
        self._pending = 0  # rows the next batch would take
        self._queued = 0  # rows that wait; as in Triton, refused ones stay in the count
        self._wanted = 0  # next_preferred_batch_size_
        self._refused: list[Arrived] = []
        self._state: State = "empty"
        self._since = 0  # when that wait began
        self._timer: Event | None = None

    def submit(self, request: Arrived) -> None:
        """A request reaches the server now (DynamicBatchScheduler::Enqueue)."""
        self._queued += request.size
        level = request.level if 0 < request.level <= self._levels else self._default
        if not self._queues.enqueue(level - 1 if self._levels else 0, self._events.now, request):
            self._ended(request, self._events.now, "queue full")
            return
        stale = self._full or self._payload.state == "executing"
        if self._slot() and (stale or self._queued >= self._wanted):
            self._wake()
        elif self._state == "empty" and self._timer is None:
            self._look_again()

    def _slot(self) -> bool:
        """Whether another payload may be filled (RateLimiter::PayloadSlotAvailable)."""
        return len(self._payloads) < 2 * self._instances if self._prefetch else self._idle > 0

    def _wake(self) -> None:
        """The condition variable is notified: nothing happens unless the thread waits on it."""
        state = self._state
        if state == "runs" or (state == "slot" and not self._slot()):
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
        if self._state == "slot" and not self._slot():
            self._state = "runs"
            self._queues.reject(self._events.now)
            self._refused += self._queues.take_refused()
            self._tell_refused()
            self._state, self._since = "slot", self._events.now
            if not self._slot():
                if self._polls:
                    self._look_again()
                return
        self._wake()

    def _run(self, has_slot: bool) -> None:
        """Until the thread waits again (DynamicBatchScheduler::BatcherThread); it may have waited for a slot."""
        self._tell_refused()
        while True:
            if not has_slot:
                if self._full or self._payload.state == "executing":
                    self._payload, self._full, self._wanted = Payload(), False, 0
                if not self._queues.size:
                    self._state, self._since = "empty", self._events.now
                    return
                if not self._slot():
                    self._state, self._since = "slot", self._events.now
                    if self._polls:
                        self._look_again()
                    return
            has_slot = False
            if self._payload.state == "executing":
                continue
            wait = self._form()
            self._refused += self._queues.take_refused()
            if wait:
                self._state = "delay"
                self._timer = self._events.at(self._events.now + wait, self._poll)
                return
            if self._queues.count:
                self._fill()
            self._tell_refused()

    def _tell_refused(self) -> None:
        refused, self._refused = self._refused, []
        for request in refused:
            self._ended(request, self._events.now, "timeout")

    def _form(self) -> int:
        """Choose the next batch; ns it should wait for more, 0 when it should go (GetDynamicBatch)."""
        queues, now, held = self._queues, self._events.now, self._payload.rows
        if not queues.is_valid(now):
            queues.reset()
            self._pending = 0
        best, largest, cannot_grow = 0, self._preferred[-1], False
        self._queued -= queues.settle(now)
        while queues.count < queues.size:
            size = queues.current[2].size
            rows = held + self._pending + size
            if held or queues.count:
                if rows > largest and not best:
                    best = self._pending
                    queues.mark()
                    self._full = True
                if rows > self._max:
                    cannot_grow = True
                    break
            self._pending += size
            queues.advance()
            self._queued -= queues.settle(now)
            if rows in self._preferred:
                best = self._pending
                queues.mark()
        age = now - queues.oldest
        late = 0 < self._delay <= age
        if best and not late:
            self._full = self._full or not self._delay
            self._pending = best
            queues.back_to_mark()
            return 0
        if not queues.count:
            return 0
        if cannot_grow or held + self._pending >= largest:
            self._full = True
            return 0
        return 0 if late or not self._delay else self._rest(now, age)

    def _rest(self, now: int, age: int) -> int:
        """How long a batch that may still grow waits in ns, in whole µs; 0 when it joins what an instance may take."""
        held = self._payload.rows
        rows = held + self._pending
        self._wanted = next((size for size in self._preferred if size > rows), self._preferred[0]) - held
        if not self._full and held and held not in self._preferred:
            return 0
        rest = self._delay - age
        if self._queues.closest:
            rest = min(rest, self._queues.closest - now) if now <= self._queues.closest else 1000
        return rest // 1000 * 1000

    def _fill(self) -> None:
        """Move the chosen requests into the payload, and that to the instances if it is new."""
        payload = self._payload
        for _ in range(self._queues.count):
            came, _, request = self._queues.dequeue()
            if not payload.requests or came < payload.since:
                payload.since = came
            payload.requests.append(request)
            payload.rows += request.size
        self._queued -= self._pending
        self._pending = 0
        if payload.state == "new":
            payload.state = "scheduled"
            self._payloads.append(payload)
            if self._idle:
                self._start()

    def _start(self) -> None:
        """An instance takes the first payload, and with a delay those behind it that waited longer and fit."""
        payloads = self._payloads
        first = payloads.popleft()
        first.state = "executing"
        while payloads and self._delay and self._events.now - payloads[0].since > self._delay:
            payloads[0].state = "executing"
            if first.rows + payloads[0].rows > self._max:
                break
            more = payloads.popleft()
            first.requests += more.requests
            first.rows += more.rows
        self._idle -= 1
        self._device.begin(self._cost(first.requests), partial(self._done, first))

    def _done(self, payload: Payload) -> None:
        """An execution has ended: the instance takes the next payload or waits for one; answers are sent."""
        self._idle += 1
        if self._payloads:
            self._start()
        self._wake()
        now, ended = self._events.now, self._ended
        for request in payload.requests:
            ended(request, now, "")


def simulate(batching: Batching, arrivals: Iterable[Arrived], cost: Cost) -> list[tuple[Arrived, int, str]]:
    """What becomes of `arrivals`, which are in the order of their time, on a device nobody else uses.

    Each with the moment in ns and the reason of its end, in the order of the ends.
    """
    events = Events()
    ends: list[tuple[Arrived, int, str]] = []
    batcher = Batcher(events, batching, Alone(events), cost, lambda *end: ends.append(end))
    for request in arrivals:
        events.run(request.at)
        batcher.submit(request)
    events.run()
    return ends
