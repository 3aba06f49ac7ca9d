"""Record a run and play it again on the virtual clock: the proof that serving and simulating schedule alike.

A trace holds, per step, when it was planned, the inputs it took, what was drawn and how long it took. A replay feeds
the same to a fresh engine; `digest` over all plans must come out equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from decode.clock import VirtualClock
from decode.config import EngineConfig
from decode.driver import Driver, Round
from decode.engine import Engine
from decode.plan import Event, Input, StepPlan, StepResult


class StepRecord(NamedTuple):
    now: int
    inputs: tuple[Input, ...]
    result: StepResult | None


@dataclass
class Trace:
    """A Driver's observer."""

    records: list[StepRecord] = field(default_factory=list)
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256)

    def step(self, seen: Round, events: Sequence[Event]) -> None:
        self.records.append(StepRecord(seen.now, tuple(seen.inputs), seen.result))
        self._hash.update(repr(seen.plan).encode())

    @property
    def digest(self) -> str:
        """SHA-256 over all plans so far, in order."""
        return self._hash.hexdigest()


class _Replay:
    """Source, executor and sink in one: gives back what was recorded, step by step."""

    def __init__(self, trace: Trace, clock: VirtualClock) -> None:
        self._records = trace.records
        self._clock = clock
        self._at = 0
        self.events: list[Event] = []
        self.profile: dict[str, float] = {}
        clock.advance_to(self._records[0].now if self._records else 0)

    def due(self, now: int) -> Sequence[Input]:
        return self._records[self._at].inputs if self._at < len(self._records) else ()

    def execute(self, plan: StepPlan) -> StepResult:
        result = self._records[self._at].result
        if result is None:
            raise RuntimeError("the recorded step failed, too")
        return result

    def emit(self, events: Sequence[Event]) -> None:
        self.events.extend(events)

    def step(self) -> bool:
        self._at += 1
        if self._at >= len(self._records):
            return False
        self._clock.advance_to(self._records[self._at].now)
        return True

    def wait(self) -> bool:
        return self._at < len(self._records)


def replay(trace: Trace, config: EngineConfig) -> tuple[str, list[Event]]:
    """Run the recorded inputs, draws and step times through a fresh engine; its plans' digest and its events."""
    clock, again = VirtualClock(), Trace()
    script = _Replay(trace, clock)
    driver = Driver(Engine(config), script, clock, script, script, again)
    more = bool(trace.records)
    while more:
        driver.step()
        more = script.step()
    return again.digest, script.events
