"""Small cases for the simulated batcher: requests, what an execution of them costs, and what a device saw of them."""

from __future__ import annotations

from collections.abc import Sequence

from config_gen.batching import Batching
from config_gen.simulation.batcher import Alone, Arrived, Batcher, Race
from config_gen.simulation.events import Events

MS = 1_000_000
LUCKY = Race(lost=0, late=0)  # the batcher never looks too early
UNLUCKY = Race(lost=1, late=0)


def cost(batch: Sequence[Arrived]) -> float:
    return 40 * MS + 5 * MS * sum(request.size for request in batch)


def at(*moments: float, level: int = 0) -> list[Arrived]:
    """Requests at these ms."""
    return [Arrived(round(moment * MS), level) for moment in moments]


class Execution:
    """One, as its device saw it."""

    def __init__(self, began: int, batch: Sequence[Arrived]) -> None:
        self.began, self.batch = began, tuple(batch)
        self.ended = began + round(cost(batch))

    @property
    def rows(self) -> int:
        return sum(request.size for request in self.batch)


def observed(
    batching: Batching, arrivals: Sequence[Arrived], race: Race = LUCKY
) -> tuple[list[tuple[Arrived, int, str]], list[Execution]]:
    """What `simulate` says, and the executions behind it."""
    events = Events()
    ends: list[tuple[Arrived, int, str]] = []
    executions: list[Execution] = []

    def noted(batch: Sequence[Arrived]) -> float:
        executions.append(Execution(events.now, batch))
        return cost(batch)

    batcher = Batcher(events, batching, Alone(events, noted), lambda *end: ends.append(end), race)
    for request in arrivals:
        events.run(request.at)
        batcher.submit(request)
    events.run()
    return ends, executions


def shape(executions: Sequence[Execution]) -> list[tuple[float, int]]:
    """When each began in ms, and its rows."""
    return [(execution.began / MS, execution.rows) for execution in executions]
