"""The instances of a model behind Triton's dynamic batcher, and the batches on their way to them.

Follows Triton core 2.51: class RateLimiter (src/rate_limiter.cc), InstanceQueue (src/instance_queue.cc), Payload
(src/payload.cc). Must not know queues, levels or how a batch is chosen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal, Protocol

from config_gen.batching import Batching
from config_gen.simulation.events import Events
from config_gen.simulation.level_queues import Arrived

Ended = Callable[[Arrived, int, str], None]
Cost = Callable[[Sequence[Arrived]], float]


class Device(Protocol):
    """What executions run on."""

    def begin(self, batch: Sequence[Arrived], done: Callable[[], None]) -> None:
        """Start to execute `batch`; `done` is called when it is finished."""


class Alone:
    """A device nobody else uses: a batch is done after `cost(batch)` ns, whatever else it runs."""

    def __init__(self, events: Events, cost: Cost) -> None:
        self._events, self._cost = events, cost

    def begin(self, batch: Sequence[Arrived], done: Callable[[], None]) -> None:
        """See Device."""
        self._events.at(self._events.now + round(self._cost(batch)), done)


@dataclass(frozen=True, slots=True)
class Race:
    """How often the batcher's thread comes too early when an execution has ended; shares of the executions.

    The instance's thread sends the answers, wakes the batcher, and only then asks for the next batch, which is when it
    counts as waiting. `lost`: the batcher looks before that. `late`: even the next requests of the clients that were
    just answered arrive before that; a part of `lost`. Measured on two cores with Triton 2.51: `lost` from 0.2 on an
    idle machine to 0.8 on a busy one, `late` from 0.003 to 0.1. `seed` is that of the draws.
    """

    lost: float = 0.5
    late: float = 0.04
    seed: int = 0


class Payload:
    """A batch on its way to an instance; until one takes it, it may grow."""

    __slots__ = ("requests", "rows", "since", "state")

    def __init__(self) -> None:
        self.requests: list[Arrived] = []
        self.rows = 0
        self.since = 0  # when the first of its requests came, ns
        self.state: Literal["new", "scheduled", "executing"] = "new"

    def add(self, request: Arrived, came: int) -> None:
        if not self.requests or came < self.since:
            self.since = came
        self.requests.append(request)
        self.rows += request.size


class Instances:
    """`woken` is called when the batcher's thread should look again; `ended` for each request that was answered.

    With `prefetch` up to two batches for each instance are made while all are busy, without it none.
    """

    def __init__(
        self,
        events: Events,
        batching: Batching,
        device: Device,
        *,
        prefetch: bool,
        woken: Callable[[], None],
        ended: Ended,
        race: Race,
    ) -> None:
        self._events, self._device, self._woken, self._ended = events, device, woken, ended
        self._max, self._delay = batching.max_batch_size, batching.delay
        self._most = 2 * batching.instances if prefetch else 0
        self._idle = batching.instances
        self._payloads: deque[Payload] = deque()  # scheduled, no instance has taken them yet
        self._lost, self._late, self._chance = race.lost, race.late, Random(race.seed)

    def has_slot(self) -> bool:
        """Whether another batch may be made (RateLimiter::PayloadSlotAvailable)."""
        return len(self._payloads) < self._most if self._most else self._idle > 0

    def schedule(self, payload: Payload) -> None:
        """Hand over a new batch (RateLimiter::EnqueuePayload); an instance that waits takes it at once."""
        payload.state = "scheduled"
        self._payloads.append(payload)
        if self._idle:
            self._start()

    def _start(self) -> None:
        """An instance takes the first batch, and with a delay those behind it that waited longer than that and fit."""
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
        self._device.begin(first.requests, partial(self._done, first))

    def _done(self, payload: Payload) -> None:
        """An execution has ended (Payload::Execute), its instance asks for the next (RateLimiter::DequeuePayload)."""
        chance = self._chance.random()
        if chance < self._late:
            self._answer(payload)
        if chance < self._lost:
            self._woken()
        self._idle += 1
        if self._payloads:
            self._start()
            self._woken()
        elif chance >= self._lost:
            self._woken()
        if chance >= self._late:
            self._answer(payload)

    def _answer(self, payload: Payload) -> None:
        now, ended = self._events.now, self._ended
        for request in payload.requests:
            ended(request, now, "")
